"""The messages of ended leases."""

from __future__ import annotations

import pytest

from leaseway.data_plane.core.leases.errors import lease_ended, wrong_holder
from leaseway.data_plane.core.leases.table import EndedLease
from leaseway.wire.errors import Reason
from leaseway.wire.messages.states import LeaseOutcome


@pytest.mark.parametrize(
    ("how", "why", "reason", "said"),
    [
        ("expired", "", Reason.LEASE_EXPIRED, "Lease w1 has expired. The state"),
        ("released", "", Reason.LEASE_RELEASED, "Lease w1 was released. The state"),
        ("revoked", "it was too old.", Reason.LEASE_REVOKED, "w1 was revoked: it was too old. "),
        ("lost", "exit status 1", Reason.LEASE_LOST, "w1 was lost: exit status 1. The state"),
    ],
)
def test_an_ended_lease_has_its_outcome_and_cause_in_the_message(
    how: LeaseOutcome, why: str, reason: Reason, said: str
) -> None:
    fault = lease_ended("w1", EndedLease(how, why, 0.0))
    assert fault.reason is reason
    assert said in fault.message
    assert fault.metadata == {"lease": "w1", "advice": "Acquire a new lease."}


def test_a_lease_without_a_record_is_lost() -> None:
    fault = lease_ended("w1", None)
    assert fault.reason is Reason.LEASE_LOST
    assert "may have restarted" in fault.message


def test_a_long_lease_id_is_cut_in_messages() -> None:
    name = "x" * 5000
    for fault in (lease_ended(name, None), wrong_holder(name)):
        assert len(fault.message) < 300
        assert fault.metadata["lease"] == "x" * 64
