"""Approvals are bound to one call, used once, and expire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.control_plane.core.builders import PAY

from leaseway.control_plane.core.approvals import (
    LIFETIME,
    MAX_TENANT_OPEN,
    ApprovalRecord,
    ApprovalRequest,
    Approvals,
)
from leaseway.control_plane.core.moment import Moment
from leaseway.wire.bounds import MAX_APPROVAL
from leaseway.wire.errors import Fault, Reason


def at(seconds: float) -> Moment:
    return Moment(seconds, 1_800_000_000.0 + seconds)


def waiting(
    approvals: Approvals, question: ApprovalRequest = PAY, seconds: float = 0.0
) -> ApprovalRecord:
    verdict, approval = ask(approvals, question, seconds)
    assert verdict == "waiting"
    assert approval is not None
    return approval


def ask(
    approvals: Approvals,
    question: ApprovalRequest,
    seconds: float,
    *,
    use: bool = False,
    use_id: str = "",
) -> tuple[str, ApprovalRecord | None]:
    """Ask, and apply what changes at once."""
    answer = approvals.ask(question, at(seconds), use=use, use_id=use_id)
    if answer.changes:
        assert answer.record is not None
        approvals.apply(answer.record)
    return answer.verdict, answer.record


def decide(
    approvals: Approvals, approval_id: str, tenant: str, by: str, seconds: float, **how: Any
) -> None:
    """Decide, and apply the decision at once."""
    approvals.apply(approvals.decide(approval_id, tenant, by, at(seconds), **how))


def test_an_approved_call_runs_once() -> None:
    told: list[str] = []
    approvals = Approvals()
    approvals.changed.connect(lambda approval, action: told.append(action))
    first = waiting(approvals)
    assert waiting(approvals).id == first.id
    decide(approvals, first.id, "acme", "key ann", 1, approve=True)
    assert ask(approvals, PAY, 2)[0] == "approved"
    assert ask(approvals, PAY, 2, use=True)[0] == "approved"
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
    decide(approvals, waiting(approvals).id, "", "key ann", 1, approve=True)
    assert waiting(approvals, other).state == "waiting"
    assert ask(approvals, other, 1, use=True)[0] == "waiting"
    assert ask(approvals, PAY, 1, use=True)[0] == "approved"


def test_an_approval_counts_in_its_session_only_if_the_server_keeps_state() -> None:
    for of_session, verdict in ((False, "approved"), (True, "waiting")):
        approvals = Approvals()
        question = replace(PAY, of_session=of_session)
        decide(approvals, waiting(approvals, question).id, "", "ann", 1, approve=True)
        elsewhere = replace(question, session="d2")
        assert ask(approvals, elsewhere, 1, use=True)[0] == verdict


def test_a_denied_call_stays_denied_until_it_expires() -> None:
    approvals = Approvals()
    decide(approvals, waiting(approvals).id, "acme", "key ann", 1, approve=False, note="no")
    verdict, approval = ask(approvals, PAY, LIFETIME - 1, use=True)
    assert verdict == "denied"
    assert approval is not None
    assert (approval.decided_by, approval.note) == ("key ann", "no")
    assert ask(approvals, PAY, LIFETIME + 1, use=True)[0] == "waiting"


def test_a_second_decision_is_rejected() -> None:
    approvals = Approvals()
    approval = waiting(approvals)
    decide(approvals, approval.id, "", "key ann", 1, approve=False)
    with pytest.raises(Fault) as refused:
        decide(approvals, approval.id, "", "key bob", 1, approve=True)
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert "already denied by key ann" in refused.value.message
    assert ask(approvals, PAY, 2, use=True)[0] == "denied"


def test_another_tenants_approval_is_unknown() -> None:
    approvals = Approvals()
    approval = waiting(approvals)
    messages = []
    for approval_id in (approval.id, "0" * 16):
        with pytest.raises(Fault) as refused:
            decide(approvals, approval_id, "rival", "key eve", 1, approve=True)
        messages.append(refused.value.message.replace(approval_id, "ID"))
    assert messages[0] == messages[1]
    assert not approvals.listed("rival", at(1))
    assert [each_approval.id for each_approval in approvals.listed("acme", at(1))] == [approval.id]


def test_expired_approvals_are_neither_decided_nor_used() -> None:
    approvals = Approvals()
    late = waiting(approvals)
    with pytest.raises(Fault, match="expired"):
        decide(approvals, late.id, "", "key ann", LIFETIME, approve=True)
    again = waiting(approvals, seconds=LIFETIME)
    decide(approvals, again.id, "", "key ann", LIFETIME + 10, approve=True)
    assert approvals.next_deadline() == 2 * LIFETIME + 10
    assert ask(approvals, PAY, 2 * LIFETIME + 10, use=True)[0] == "waiting"
    states = {
        approval.id: approval.state for approval in approvals.listed("", at(2 * LIFETIME + 10))
    }
    assert states[late.id] == states[again.id] == "expired"


def test_a_tenant_at_its_limit_does_not_block_others() -> None:
    approvals = Approvals()
    for number in range(MAX_TENANT_OPEN):
        waiting(approvals, replace(PAY, digest=str(number)))
    assert ask(approvals, PAY, 0) == ("full", None)
    waiting(approvals, replace(PAY, tenant="rival"))
    decide(approvals, approvals.listed("acme", at(0))[0].id, "", "ann", 1, approve=False)
    waiting(approvals)


def test_nothing_holds_before_it_is_applied() -> None:
    told: list[str] = []
    approvals = Approvals()
    approvals.changed.connect(lambda approval, action: told.append(action))
    asked = approvals.ask(PAY, at(0), use=False)
    assert (asked.verdict, asked.changes, approvals.listed("", at(0))) == ("waiting", True, [])
    first = waiting(approvals)
    assert approvals.decide(first.id, "", "ann", at(1), approve=True).state == "approved"
    assert ask(approvals, PAY, 1, use=True)[0] == "waiting"
    decide(approvals, first.id, "", "ann", 1, approve=True)
    used = approvals.ask(PAY, at(2), use=True, use_id="call-1")
    assert (used.verdict, used.changes) == ("approved", True)
    assert ask(approvals, PAY, 2)[0] == "approved"
    assert told == ["asked", "approved"]


def test_a_call_that_asks_again_gets_its_own_use_and_no_other_call_does() -> None:
    approvals = Approvals()
    first = waiting(approvals)
    decide(approvals, first.id, "", "ann", 1, approve=True)
    assert ask(approvals, PAY, 2, use=True, use_id="call-1")[0] == "approved"
    other = waiting(approvals, seconds=3)
    assert ask(approvals, PAY, 4, use=True, use_id="call-2") == ("waiting", other)
    verdict, again = ask(approvals, PAY, 5, use=True, use_id="call-1")
    assert (verdict, again and again.id) == ("approved", first.id)
    refund = replace(PAY, tool="refund")
    assert ask(approvals, refund, 5, use=True, use_id="call-1")[0] == "waiting"


def test_a_later_control_plane_goes_on_where_the_earlier_one_ended() -> None:
    told: list[str] = []
    earlier, later = Approvals(), Approvals()
    later.changed.connect(lambda approval, action: told.append(action))
    refund, charge = replace(PAY, tool="refund"), replace(PAY, tool="charge")
    late, used, agreed = (waiting(earlier, question) for question in (PAY, refund, charge))
    for each_approval in (used, agreed):
        decide(earlier, each_approval.id, "", "ann", LIFETIME - 1, approve=True)
    ask(earlier, refund, LIFETIME - 1, use=True, use_id="call-1")
    kept = earlier.listed("", at(LIFETIME - 1))
    later.restore(kept, at(LIFETIME))
    assert not told
    states = {
        each_approval.id: each_approval.state for each_approval in later.listed("", at(LIFETIME))
    }
    assert states == {late.id: "expired", used.id: "used", agreed.id: "approved"}
    assert ask(later, refund, LIFETIME, use=True, use_id="call-1")[0] == "approved"
    assert ask(later, charge, LIFETIME, use=True)[0] == "approved"
    assert waiting(later, refund, LIFETIME).number == agreed.number + 1


def test_what_is_removed_is_named_until_it_is_deleted_elsewhere() -> None:
    approvals = Approvals()
    first = waiting(approvals)
    long_ago = 3 * LIFETIME + 3_600
    assert approvals.next_deadline() == LIFETIME
    assert not approvals.listed("", at(long_ago))
    assert approvals.removed() == {first.id}
    approvals.confirm_removed([first.id])
    assert not approvals.removed()


def test_a_request_with_more_than_people_are_shown_is_not_kept() -> None:
    approvals = Approvals()
    assert ask(approvals, replace(PAY, arguments="x" * (MAX_APPROVAL + 1)), 0)[0] == "full"
    assert ask(approvals, replace(PAY, session="x" * 17_000), 0)[0] == "full"
    waiting(approvals, replace(PAY, arguments="x" * MAX_APPROVAL))


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
            verdict, _ = ask(approvals, question, now, use=step == "use")
            ran[digest] += step == "use" and verdict == "approved"
        else:
            for approval in approvals.listed("", at(now)):
                if approval.question == question and approval.state == "waiting":
                    decide(approvals, approval.id, "", "ann", now, approve=step == "approve")
                    agreed[digest] += step == "approve"
        assert all(ran[approval] <= agreed[approval] for approval in ran)
