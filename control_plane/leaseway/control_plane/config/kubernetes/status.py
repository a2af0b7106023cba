"""What a resource's status says, and the events that a change of it makes. Pure.

Three conditions: *Accepted* (the configuration takes it as it stands), *Ready* (callers get it)
and *Degraded* (it is served, but not as it should be, or not any more). A condition's time is that
of its last change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leaseway.control_plane.config.kubernetes.resources import CustomResource
from leaseway.control_plane.config.schema.issues import ConfigIssue

_LONGEST: Final = 4_000
_LISTED: Final = 5


@dataclass(frozen=True)
class Condition:
    """A condition: whether it holds, why in one word, and in sentences."""

    holds: bool
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Facts:
    """What is known of a resource.

    Attributes:
        accepted: Whether the configuration takes it.
        ready: Whether callers get what it declares; None where that is not asked of its kind.
        degraded: Whether something is wrong with it while it is served, or was.
        counts: Numbers by the names of their fields.
    """

    accepted: Condition
    ready: Condition | None
    degraded: Condition
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceEvent:
    """Something for operators to see beside the resource."""

    kind: str
    reason: str
    note: str


def accepted_condition(issues: Sequence[ConfigIssue]) -> Condition:
    """Return whether a resource with these issues is accepted."""
    errors = [issue.message for issue in issues if issue.severity == "error"]
    if errors:
        stays = "What was served before stays in force."
        return Condition(False, issues_reason(issues), f"{_sentences(errors)} {stays}")
    warnings = [issue.message for issue in issues]
    return Condition(True, "Valid", _sentences(warnings))


def issues_reason(issues: Sequence[ConfigIssue]) -> str:
    """Return the first error's reason as Kubernetes spells reasons: `BadValue`."""
    first = next(issue for issue in issues if issue.severity == "error")
    return "".join(part.capitalize() for part in str(first.reason).split("_"))


def next_status(
    resource: CustomResource, before: Mapping[str, Any], facts: Facts, now: str
) -> tuple[dict[str, Any], list[ResourceEvent]] | None:
    """Return a resource's status and what to tell; None where it says all that already.

    Args:
        resource: The one that the facts are of.
        before: Its status as it was last written.
        facts: What is known.
        now: The time, as Kubernetes writes it.
    """
    old = {
        each["type"]: each
        for each in before.get("conditions") or ()
        if isinstance(each, Mapping) and "type" in each
    }
    verdicts = {"Accepted": facts.accepted, "Ready": facts.ready, "Degraded": facts.degraded}
    conditions = [
        _condition(kind, verdict, old.get(kind, {}), resource.generation, now)
        for kind, verdict in verdicts.items()
        if verdict is not None
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


def _condition(
    kind: str, verdict: Condition, old: Mapping[str, Any], generation: int, now: str
) -> dict[str, Any]:
    status = "True" if verdict.holds else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": since or now,
        "reason": verdict.reason,
        "message": verdict.message[:_LONGEST],
    }


_SAID: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("Accepted", "False"): ("Warning", "Rejected"),
    ("Accepted", "True"): ("Normal", "Accepted"),
    ("Ready", "True"): ("Normal", "Ready"),
    ("Ready", "False"): ("Warning", "NotReady"),
    ("Degraded", "True"): ("Warning", "Degraded"),
    ("Degraded", "False"): ("Normal", "Recovered"),
}


def _event(new: Mapping[str, Any], old: Mapping[str, Any]) -> ResourceEvent | None:
    """Return what a condition's change is worth; a first one is told if it is bad, or Ready."""
    kind, status = new["type"], new["status"]
    same = old.get("status") == status and (
        status != "False" or kind != "Accepted" or old.get("message") == new["message"]
    )
    severity, reason = _SAID[kind, status]
    expected = severity == "Normal" and kind != "Ready"
    waiting = kind == "Ready" and status == "False"
    if same or (not old and (expected or waiting)):
        return None
    return ResourceEvent(severity, reason, new["message"] or f"{kind} is {status}.")


def _sentences(messages: Sequence[str]) -> str:
    said = list(dict.fromkeys(messages))
    more = f" And {len(said) - _LISTED} more." if len(said) > _LISTED else ""
    return " ".join(said[:_LISTED]) + more
