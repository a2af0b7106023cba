"""Until when leases may be served without another word of the control plane."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.leases.contact import PlaneContact

PATIENCE = 10.0


@given(
    st.lists(
        st.tuples(
            st.floats(0, 8), st.sampled_from(["send", "arrive", "answer", "lose", "begin anew"])
        ),
        max_size=60,
    )
)
def test_leases_are_served_no_longer_than_a_control_plane_that_is_there_keeps_them(
    steps: list[tuple[float, str]],
) -> None:
    now = kept_until = 0.0
    contact = PlaneContact().welcomed(PATIENCE, now)
    sent: list[float] = []
    answers: list[float] = []
    for seconds, step in steps:
        now += seconds
        match step:
            case "send":
                sent.append(now)
            case "arrive" if sent:
                answers.append(sent.pop(0))
                kept_until = now + PATIENCE
            case "answer" if answers:
                contact = contact.answered(answers.pop(0), now)
            case "lose":
                sent, answers = [], []
            case "begin anew":  # answers on the earlier stream may still arrive
                contact = contact.welcomed(PATIENCE, now)
                sent = []
            case _:
                pass
        assert contact.until <= kept_until


def test_the_answer_counts_from_when_its_pulse_was_sent() -> None:
    contact = PlaneContact().welcomed(PATIENCE, 0.0)
    assert contact.until == -inf
    contact = contact.answered(1.0, 7.0)
    assert contact.until == 11.0
    assert contact.answered(0.5, 8.0).until == 11.0
    assert contact.answered(99.0, 8.0).until == 18.0  # no answer is of a pulse to come


def test_leases_are_served_while_no_control_plane_can_be_reached() -> None:
    contact = PlaneContact().welcomed(PATIENCE, 0.0).answered(0.0, 0.0)
    for now in (13.0, 20.0, 27.0):
        contact = contact.missed(now, planes=1)
        assert contact.until == now + PATIENCE
    assert contact.welcomed(PATIENCE, 28.0).until == 10.0  # one is back, and has the say


def test_none_of_several_control_planes_leads_only_after_an_attempt_at_each() -> None:
    contact = PlaneContact().welcomed(PATIENCE, 0.0).answered(0.0, 0.0)
    contact = contact.missed(13.0, planes=2)
    assert contact.until == 10.0
    assert contact.missed(14.0, planes=2).until == 24.0


def test_a_control_plane_that_refuses_the_worker_is_there_also_if_it_says_nothing_else() -> None:
    contact = PlaneContact().welcomed(PATIENCE, 0.0).answered(0.0, 0.0)
    assert contact.waited(12.0).until == 22.0
    refused = contact.missed(12.0, planes=1).refused()
    assert refused.until == 10.0
    assert refused.waited(20.0).until == 10.0
    assert refused.missed(21.0, planes=1).until == 31.0


def test_a_stream_is_silent_after_the_patience_without_an_answer() -> None:
    contact = PlaneContact().welcomed(PATIENCE, 20.0)
    assert not contact.is_silent(29.9)
    assert contact.is_silent(30.0)
    assert not contact.answered(25.0, 26.0).is_silent(34.9)


def test_a_control_plane_that_answers_no_pulses_confirms_nothing() -> None:
    contact = PlaneContact().welcomed(0.0, 5.0)
    assert contact.until == inf
    assert not contact.is_silent(1e9)
