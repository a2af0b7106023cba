"""Conditions, counts and events of a resource."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from leaseway.control_plane.config.kubernetes.resources import CustomResource
from leaseway.control_plane.config.kubernetes.status import (
    Condition,
    Facts,
    ResourceEvent,
    accepted_condition,
    is_due,
    next_status,
)
from leaseway.control_plane.config.schema.issues import ConfigIssue, IssueReason

_RESOURCE = CustomResource(kind="MCPServer", namespace="apps", name="time", uid="u", generation=3)
_WELL = Facts(
    accepted=Condition(True, "Valid"),
    ready=Condition(True, "Serving"),
    degraded=Condition(False, "AsConfigured"),
    counts={"tools": 2},
)
_T1, _T2 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def _issue(severity: Literal["error", "warning"], message: str) -> ConfigIssue:
    reason = IssueReason.BAD_VALUE
    return ConfigIssue(
        file="f", line=1, column=1, key="k", severity=severity, reason=reason, message=message
    )


def test_a_status_says_the_generation_that_it_is_of() -> None:
    made = next_status(_RESOURCE, {}, _WELL, _T1)

    assert made is not None
    status, events = made
    assert status["observedGeneration"] == 3
    assert status["tools"] == 2
    assert {condition["type"]: condition["status"] for condition in status["conditions"]} == {
        "Accepted": "True",
        "Ready": "True",
        "Degraded": "False",
    }
    assert events == [ResourceEvent("Normal", "Ready", "Ready is True.")]


def test_what_is_said_already_is_not_written_again() -> None:
    made = next_status(_RESOURCE, {}, _WELL, _T1)
    assert made is not None

    assert next_status(_RESOURCE, made[0], _WELL, _T2) is None


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    made = next_status(_RESOURCE, {}, _WELL, _T1)
    assert made is not None
    worse = replace(_WELL, degraded=Condition(True, "ServerLost", "It ended."), counts={"tools": 0})

    after = next_status(_RESOURCE, made[0], worse, _T2)

    assert after is not None
    times = {
        condition["type"]: condition["lastTransitionTime"] for condition in after[0]["conditions"]
    }
    assert times == {"Accepted": _T1, "Ready": _T1, "Degraded": _T2}
    assert after[1] == [ResourceEvent("Warning", "Degraded", "It ended.")]


def test_counts_alone_make_no_event() -> None:
    made = next_status(_RESOURCE, {}, _WELL, _T1)
    assert made is not None

    after = next_status(_RESOURCE, made[0], replace(_WELL, counts={"tools": 5}), _T2)

    assert after is not None
    assert after[1] == []


def test_counts_alone_are_written_at_intervals_and_conditions_at_once() -> None:
    made = next_status(_RESOURCE, {}, _WELL, _T1)
    assert made is not None
    before, _ = made
    counted = {**before, "tools": 3}
    later = next_status(replace(_RESOURCE, generation=4), before, _WELL, _T1)
    assert later is not None

    assert not is_due(before, counted, 9.9)
    assert is_due(before, counted, 10.0)
    assert is_due(before, later[0], 0.0)
    assert is_due({}, before, 0.0)


def test_a_second_mistake_is_told_like_the_first() -> None:
    bad = replace(_WELL, accepted=accepted_condition([_issue("error", "One is wrong.")]))
    made = next_status(_RESOURCE, {}, bad, _T1)
    assert made is not None
    other = replace(_WELL, accepted=accepted_condition([_issue("error", "Two is wrong.")]))

    after = next_status(_RESOURCE, made[0], other, _T2)

    assert after is not None
    assert [event.reason for event in after[1]] == ["Rejected"]
    assert "Two is wrong." in after[1][0].note


def test_the_note_of_an_event_has_as_many_bytes_as_the_api_takes() -> None:
    bad = replace(_WELL, accepted=accepted_condition([_issue("error", "x" + 800 * "ü")]))

    made = next_status(_RESOURCE, {}, bad, _T1)

    assert made is not None
    (note,) = (event.note for event in made[1] if event.reason == "Rejected")
    assert note == "x" + 511 * "ü"


def test_an_error_is_not_accepted_and_a_warning_is() -> None:
    bad = accepted_condition([_issue("warning", "Odd."), _issue("error", "Wrong.")])
    odd = accepted_condition([_issue("warning", "Odd.")])

    assert (bad.holds, bad.reason) == (False, "BadValue")
    assert bad.message == "Wrong. Its last valid version stays in force, if there is one."
    assert (odd.holds, odd.message) == (True, "Odd.")


def test_many_messages_are_counted() -> None:
    said = accepted_condition([_issue("error", f"Wrong {number}.") for number in range(9)]).message

    assert "Wrong 4." in said
    assert "Wrong 5." not in said
    assert "And 4 more." in said
