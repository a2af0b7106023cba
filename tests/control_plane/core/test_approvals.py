"""Approvals are bound to one call, used once, and expire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.control_plane.core.approvals import (
    LIFETIME,
    MAX_TENANT_OPEN,
    ApprovalRecord,
    ApprovalRequest,
    Approvals,
)
from leaseway.control_plane.core.moment import Moment
from leaseway.wire.errors import Fault, Reason

PAY = ApprovalRequest("acme", "billing", "d1", False, "bank", "pay", "digest-1", "{}", "key 1")


def at(seconds: float) -> Moment:
    return Moment(seconds, 1_800_000_000.0 + seconds)


def waiting(
    approvals: Approvals, question: ApprovalRequest = PAY, seconds: float = 0.0
) -> ApprovalRecord:
    verdict, approval = approvals.ask(question, at(seconds), use=False)
    assert verdict == "waiting"
    assert approval is not None
    return approval


def test_an_approved_call_runs_once() -> None:
    told: list[str] = []
    approvals = Approvals()
    approvals.changed.connect(lambda approval, action: told.append(action))
    first = waiting(approvals)
    assert waiting(approvals).id == first.id
    approvals.decide(first.id, "acme", "key ann", at(1), approve=True)
    assert approvals.ask(PAY, at(2), use=False)[0] == "approved"
    assert approvals.ask(PAY, at(2), use=True)[0] == "approved"
    assert waiting(approvals, seconds=3).id != first.id
    assert told == ["asked", "approved", "used", "asked"]


@pytest.mark.parametrize(
    "other",
    [
        replace(PAY, tenant="rival"),
        replace(PAY, agent="sales"),
        replace(PAY, server_id="bank-2"),
        replace(PAY, tool="refund"),
        replace(PAY, digest="digest-2"),
    ],
)
def test_an_approval_counts_for_one_call_only(other: ApprovalRequest) -> None:
    approvals = Approvals()
    approvals.decide(waiting(approvals).id, "", "key ann", at(1), approve=True)
    assert waiting(approvals, other).state == "waiting"
    assert approvals.ask(other, at(1), use=True)[0] == "waiting"
    assert approvals.ask(PAY, at(1), use=True)[0] == "approved"


def test_an_approval_counts_in_its_session_only_if_the_server_keeps_state() -> None:
    for of_session, verdict in ((False, "approved"), (True, "waiting")):
        approvals = Approvals()
        question = replace(PAY, of_session=of_session)
        approvals.decide(waiting(approvals, question).id, "", "ann", at(1), approve=True)
        elsewhere = replace(question, session="d2")
        assert approvals.ask(elsewhere, at(1), use=True)[0] == verdict


def test_a_denied_call_stays_denied_until_it_expires() -> None:
    approvals = Approvals()
    approvals.decide(waiting(approvals).id, "acme", "key ann", at(1), approve=False, note="no")
    verdict, approval = approvals.ask(PAY, at(LIFETIME - 1), use=True)
    assert verdict == "denied"
    assert approval is not None
    assert (approval.decided_by, approval.note) == ("key ann", "no")
    assert approvals.ask(PAY, at(LIFETIME + 1), use=True)[0] == "waiting"


def test_a_second_decision_is_rejected() -> None:
    approvals = Approvals()
    approval = waiting(approvals)
    approvals.decide(approval.id, "", "key ann", at(1), approve=False)
    with pytest.raises(Fault) as refused:
        approvals.decide(approval.id, "", "key bob", at(1), approve=True)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert "already denied by key ann" in refused.value.message
    assert approvals.ask(PAY, at(2), use=True)[0] == "denied"


def test_another_tenants_approval_is_unknown() -> None:
    approvals = Approvals()
    approval = waiting(approvals)
    messages = []
    for approval_id in (approval.id, "0" * 16):
        with pytest.raises(Fault) as refused:
            approvals.decide(approval_id, "rival", "key eve", at(1), approve=True)
        messages.append(refused.value.message.replace(approval_id, "ID"))
    assert messages[0] == messages[1]
    assert not approvals.listed("rival", at(1))
    assert [one.id for one in approvals.listed("acme", at(1))] == [approval.id]


def test_expired_approvals_are_neither_decided_nor_used() -> None:
    approvals = Approvals()
    late = waiting(approvals)
    with pytest.raises(Fault, match="expired"):
        approvals.decide(late.id, "", "key ann", at(LIFETIME), approve=True)
    again = waiting(approvals, seconds=LIFETIME)
    approvals.decide(again.id, "", "key ann", at(LIFETIME + 10), approve=True)
    assert approvals.next_deadline() == 2 * LIFETIME + 10
    assert approvals.ask(PAY, at(2 * LIFETIME + 10), use=True)[0] == "waiting"
    states = {one.id: one.state for one in approvals.listed("", at(2 * LIFETIME + 10))}
    assert states[late.id] == states[again.id] == "expired"


def test_a_tenant_at_its_limit_does_not_block_others() -> None:
    approvals = Approvals()
    for number in range(MAX_TENANT_OPEN):
        waiting(approvals, replace(PAY, digest=str(number)))
    assert approvals.ask(PAY, at(0), use=False) == ("full", None)
    waiting(approvals, replace(PAY, tenant="rival"))
    approvals.decide(approvals.listed("acme", at(0))[0].id, "", "ann", at(1), approve=False)
    waiting(approvals)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "use", "approve", "deny", "wait"]),
        st.sampled_from(["1", "2"]),
        st.floats(0, LIFETIME / 2),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_approval_allows_one_call_at_most(steps: list[tuple[str, str, float]]) -> None:
    approvals, now = Approvals(), 0.0
    agreed = {"1": 0, "2": 0}
    ran = {"1": 0, "2": 0}
    for step, digest, seconds in steps:
        question = replace(PAY, digest=digest)
        if step == "wait":
            now += seconds
        elif step in ("ask", "use"):
            verdict, _ = approvals.ask(question, at(now), use=step == "use")
            ran[digest] += step == "use" and verdict == "approved"
        else:
            for one in approvals.listed("", at(now)):
                if one.question == question and one.state == "waiting":
                    approvals.decide(one.id, "", "ann", at(now), approve=step == "approve")
                    agreed[digest] += step == "approve"
        assert all(ran[each] <= agreed[each] for each in ran)
