"""The status of a resource, and the events of its changes. Pure.

Three conditions: *Accepted* (the configuration accepts it), *Ready* (callers get it) and
*Degraded* (it is or was served, but not as configured). A condition's time is that of its last
change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leaseway.control_plane.config.kubernetes.resources import (
    MAX_RESOURCES,
    CustomResource,
)
from leaseway.control_plane.config.schema.issues import ConfigIssue

_MAX_MESSAGE: Final = 4_000
_MAX_LISTED: Final = 5
_COUNTS_INTERVAL: Final = 10.0
"""Minimum seconds between two statuses of a resource that differ only in counts."""
_MAX_NOTE: Final = 1_024
"""Bytes of an event's note; the API refuses a longer one."""


@dataclass(frozen=True)
class Condition:
    """A condition: whether it is true, the reason in one word, and a message."""

    holds: bool
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Facts:
    """The facts about a resource for its status.

    Attributes:
        accepted: Whether the configuration accepts it.
        ready: Whether callers get what it declares.
        degraded: Whether it has a problem although it is or was served.
        counts: Numbers by the names of their status fields.
    """

    accepted: Condition
    ready: Condition
    degraded: Condition
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceEvent:
    """A Kubernetes event about a resource."""

    kind: str
    reason: str
    note: str


def accepted_condition(issues: Sequence[ConfigIssue]) -> Condition:
    """Return the condition *Accepted* of a resource with these issues."""
    errors = [issue.message for issue in issues if issue.severity == "error"]
    if errors:
        stays = "Its last valid version stays in force, if there is one."
        return Condition(False, issues_reason(issues), f"{sentences(errors)} {stays}")
    warnings = [issue.message for issue in issues]
    return Condition(True, "Valid", sentences(warnings))


LEFT_OUT: Final = Condition(
    False,
    "TooManyResources",
    f"It is ignored: only the {MAX_RESOURCES} oldest resources of its kind in the namespace are"
    " read. Remove others.",
)
"""The condition *Accepted* of a resource beyond the limit."""


def issues_reason(issues: Sequence[ConfigIssue]) -> str:
    """Return the first error's reason as Kubernetes spells reasons: `BadValue`."""
    first = next(issue for issue in issues if issue.severity == "error")
    return "".join(part.capitalize() for part in str(first.reason).split("_"))


def next_status(
    resource: CustomResource, before: Mapping[str, Any], facts: Facts, now: str
) -> tuple[dict[str, Any], list[ResourceEvent]] | None:
    """Return a resource's new status and the events, or None if the status is current.

    `before` is its last written status, `now` the time in the format of Kubernetes.
    """
    old = {
        condition["type"]: condition
        for condition in before.get("conditions") or ()
        if isinstance(condition, Mapping) and "type" in condition
    }
    given = {"Accepted": facts.accepted, "Ready": facts.ready, "Degraded": facts.degraded}
    conditions = [
        _condition(kind, condition, old.get(kind, {}), resource.generation, now)
        for kind, condition in given.items()
    ]
    status = {
        "observedGeneration": resource.generation,
        **facts.counts,
        "conditions": conditions,
    }
    if all(before.get(name) == value for name, value in status.items()):
        return None
    events = [
        event
        for condition in conditions
        if (event := _event(condition, old.get(condition["type"], {}))) is not None
    ]
    return status, events


def is_due(before: Mapping[str, Any], status: Mapping[str, Any], age: float) -> bool:
    """Return whether to write a new status now; `age` is the seconds since the last write.

    One that differs only in counts may wait: leases come and go with each session, and every write
    is one to the cluster's store and an event to all that watch.
    """
    names = ("observedGeneration", "conditions")
    return age >= _COUNTS_INTERVAL or any(before.get(name) != status[name] for name in names)


def _condition(
    kind: str, condition: Condition, old: Mapping[str, Any], generation: int, now: str
) -> dict[str, Any]:
    status = "True" if condition.holds else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since or now,
        "reason": condition.reason,
        "message": condition.message[:_MAX_MESSAGE],
    }


_EVENTS: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("Accepted", "False"): ("Warning", "Rejected"),
    ("Accepted", "True"): ("Normal", "Accepted"),
    ("Ready", "True"): ("Normal", "Ready"),
    ("Ready", "False"): ("Warning", "NotReady"),
    ("Degraded", "True"): ("Warning", "Degraded"),
    ("Degraded", "False"): ("Normal", "Recovered"),
}


def _event(new: Mapping[str, Any], old: Mapping[str, Any]) -> ResourceEvent | None:
    """Return the event of a condition's change; a first one has an event if it is bad, or Ready."""
    kind, status = new["type"], new["status"]
    same = old.get("status") == status and (
        status != "False" or kind != "Accepted" or old.get("message") == new["message"]
    )
    severity, reason = _EVENTS[kind, status]
    expected = severity == "Normal" and kind != "Ready"
    waiting = kind == "Ready" and status == "False"
    if same or (not old and (expected or waiting)):
        return None
    note = (new["message"] or f"{kind} is {status}.").encode(errors="replace")
    return ResourceEvent(severity, reason, note[:_MAX_NOTE].decode(errors="ignore"))


def sentences(messages: Sequence[str]) -> str:
    """Return the first of different messages, and how many more there are."""
    unique = list(dict.fromkeys(messages))
    more = f" And {len(unique) - _MAX_LISTED} more." if len(unique) > _MAX_LISTED else ""
    return " ".join(unique[:_MAX_LISTED]) + more
