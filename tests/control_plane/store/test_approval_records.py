"""The bytes of approvals in the store."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from leaseway.control_plane.approval_records import decode, encode
from leaseway.control_plane.core.approvals import ApprovalRecord, ApprovalRequest
from leaseway.control_plane.core.moment import Moment

NOW = Moment(50.0, 1_000.0)
FULL = ApprovalRecord(
    id="a1",
    number=3,
    question=ApprovalRequest(
        tenant="acme",
        agent="billing",
        session="s1",
        of_session=True,
        server_id="bank",
        tool="pay",
        digest="d1",
        arguments="{}",
        asked_by="key 1",
        extra='{"task":{}}',
        worker_id="w1",
    ),
    state="used",
    asked=900.0,
    until=1_200.0,
    ends=250.0,
    decided_by="ann",
    note="Paid.",
    use_id="call-1",
)


def test_each_field_of_an_approval_is_stored() -> None:
    for value in (FULL, FULL.question):
        unset = [
            found.name for found in fields(value) if getattr(value, found.name) == found.default
        ]
        assert not unset, "give the new field another value than its default"
    assert decode(encode(FULL), NOW) == FULL


def test_a_member_that_an_earlier_release_did_not_store_has_its_default() -> None:
    stored = json.loads(encode(FULL))
    del stored["note"], stored["question"]["worker_id"]
    assert decode(json.dumps(stored).encode(), NOW) == replace(
        FULL, note="", question=replace(FULL.question, worker_id="")
    )
