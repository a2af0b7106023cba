"""What can go wrong, as exceptions.

One class a reason (DESIGN §7); catch the narrowest one that you can act on::

    LeasewayError
      ├ ToolNotFound              no such tool or server; the message names the nearest
      ├ ServerNotReady            configured, but it has no tools yet
      ├ InvalidArguments          .violations: what breaks the tool's input schema
      ├ InvalidRequest            the request itself makes no sense
      ├ ServerError               .code .data: the MCP server's JSON-RPC error
      ├ ServerLost                .exit_status .stderr: its process or connection ended
      ├ FateUnknown               sent, then the connection to the worker was lost
      ├ WorkerLost                the worker could not be reached; nothing was sent
      ├ Draining                  the worker takes no more work
      ├ NotApplied                the worker is behind the registry
      ├ Overloaded                the worker's queue is full
      ├ Syncing                   the control plane is still asking workers what they hold
      ├ NotLeader                 another control plane leads
      ├ ControlPlaneUnavailable   needed (first list, placement) and unreachable
      ├ DeadlineExceeded          the timeout passed; also a TimeoutError
      ├ Cancelled                 the call was cancelled
      ├ LeaseError                .lease_id
      │   ├ LeaseExpired          not renewed in time
      │   ├ LeaseRevoked          ended by the worker or an operator
      │   ├ LeaseReleased         released by someone of the session
      │   └ LeaseLost             the worker that held it is gone or does not know it
      ├ NotLeasable               the server is shared: call it without a lease
      ├ SessionRequired           the server is leased: call it in a session
      ├ ResultTooLarge            the result exceeds its bound
      ├ ToolDiffers               the tool is not on that worker what it was when listed
      ├ ArtifactLost              the artifact is gone
      ├ Unauthenticated           no key, or a wrong one
      ├ PermissionDenied          not allowed
      ├ ConfirmationRequired      .confirmation_id: a person has to agree first
      ├ RateLimited               too many calls; .retry_after
      ├ Capacity                  no room for another lease; .retry_after
      ├ InputRequired             the server asks something that the caller cannot answer
      ├ IncompatibleVersion       the two sides speak different protocols
      └ InternalError             a fault in Leaseway
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from leaseway.wire.fault import Fault, Reason, Started

__all__ = [
    "ArtifactLost",
    "Cancelled",
    "Capacity",
    "ConfirmationRequired",
    "ControlPlaneUnavailable",
    "DeadlineExceeded",
    "Draining",
    "FateUnknown",
    "IncompatibleVersion",
    "InputRequired",
    "InternalError",
    "InvalidArguments",
    "InvalidRequest",
    "LeaseError",
    "LeaseExpired",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRevoked",
    "LeasewayError",
    "NotApplied",
    "NotLeader",
    "NotLeasable",
    "Overloaded",
    "PermissionDenied",
    "RateLimited",
    "ResultTooLarge",
    "ServerError",
    "ServerLost",
    "ServerNotReady",
    "SessionRequired",
    "Syncing",
    "ToolDiffers",
    "ToolNotFound",
    "Unauthenticated",
    "Violation",
    "WorkerLost",
]


@dataclass(frozen=True)
class Violation:
    """One way in which arguments break a tool's input schema.

    Attributes:
        field: Where in the arguments, such as `options.depth`; empty for the whole object.
        message: What is wrong there.
    """

    field: str
    message: str


class LeasewayError(Exception):
    """Something was refused or failed; the base of all others.

    Attributes:
        reason: Why, as a constant that programs can compare.
        message: What happened, where, and what to do, in sentences.
        started: Whether the MCP server may have begun to work on the call: `no`, `yes` or
            `unknown`. After `no`, another try is safe.
        retry_after: Seconds after which another try may succeed, or None.
        metadata: Facts for programs, such as `server`, `worker` and `lease`.
    """

    reason: ClassVar[Reason] = Reason.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        started: Started = "no",
        retry_after: float | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Iterable[Violation] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.started: Started = started
        self.retry_after = retry_after
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self._violations = tuple(violations)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Task queues send exceptions between processes; the default would lose the keywords.
        return _rebuild, (
            type(self),
            self.message,
            self.started,
            self.retry_after,
            dict(self.metadata),
            self._violations,
        )


def _rebuild(
    kind: type[LeasewayError],
    message: str,
    started: Started,
    retry_after: float | None,
    metadata: Mapping[str, str],
    violations: tuple[Violation, ...],
) -> LeasewayError:
    return kind(
        message,
        started=started,
        retry_after=retry_after,
        metadata=metadata,
        violations=violations,
    )


class ToolNotFound(LeasewayError):
    """No tool or server has this name, or it is filtered; the message names the nearest ones."""

    reason = Reason.TOOL_NOT_FOUND


class ServerNotReady(LeasewayError):
    """The server is configured, but has offered no tools yet; the message says its problem."""

    reason = Reason.SERVER_NOT_READY


class InvalidArguments(LeasewayError):
    """The arguments break the tool's input schema; the server was not called."""

    reason = Reason.INVALID_ARGUMENTS

    @property
    def violations(self) -> list[Violation]:
        """What is wrong, one entry a field."""
        return list(self._violations)


class InvalidRequest(LeasewayError):
    """The request itself makes no sense, such as a time to live of a week."""

    reason = Reason.INVALID_REQUEST


class ServerError(LeasewayError):
    """The MCP server answered with a JSON-RPC error."""

    reason = Reason.SERVER_ERROR

    @property
    def code(self) -> int | None:
        """The JSON-RPC error code, or None where the server sent none."""
        return _integer(self.metadata.get("code"))

    @property
    def data(self) -> Any:
        """The `data` of the JSON-RPC error, or None where the server sent none."""
        text = self.metadata.get("data")
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text


class ServerLost(LeasewayError):
    """The MCP server's process died, or its connection was lost."""

    reason = Reason.SERVER_LOST

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None where there is no process to tell it."""
        return _integer(self.metadata.get("exit_status"))

    @property
    def stderr(self) -> str:
        """The last lines that it wrote to stderr, secrets redacted."""
        return self.metadata.get("stderr", "")


class FateUnknown(LeasewayError):
    """The call was sent, then the connection to the worker was lost."""

    reason = Reason.FATE_UNKNOWN


class WorkerLost(LeasewayError):
    """The worker could not be reached; the call was not sent."""

    reason = Reason.WORKER_LOST


class Draining(LeasewayError):
    """The worker takes no more work."""

    reason = Reason.DRAINING


class NotApplied(LeasewayError):
    """The worker is behind the registry version that the call was resolved at."""

    reason = Reason.NOT_APPLIED


class Overloaded(LeasewayError):
    """The worker's queue is full."""

    reason = Reason.OVERLOADED


class Syncing(LeasewayError):
    """The control plane has just started and is asking workers what they hold."""

    reason = Reason.SYNCING


class NotLeader(LeasewayError):
    """Another control plane leads."""

    reason = Reason.NOT_LEADER


class ControlPlaneUnavailable(LeasewayError):
    """The control plane was needed (first list, placement) and cannot be reached."""

    reason = Reason.CONTROL_PLANE_UNAVAILABLE


class DeadlineExceeded(LeasewayError, TimeoutError):
    """The timeout passed; the server is told that nobody waits any more."""

    reason = Reason.DEADLINE_EXCEEDED


class Cancelled(LeasewayError):
    """The call was cancelled by something else than the task that waits for it."""

    reason = Reason.CANCELLED


class LeaseError(LeasewayError):
    """A lease is no longer held.

    The session's calls to that server fail with the same error until `acquire` or `release`:
    a fresh client would not have the state that the lost one had.
    """

    @property
    def lease_id(self) -> str:
        """The lease, or an empty string where the peer did not name it."""
        return self.metadata.get("lease", "")


class LeaseExpired(LeaseError):
    """The lease was not renewed in time."""

    reason = Reason.LEASE_EXPIRED


class LeaseRevoked(LeaseError):
    """The worker or an operator ended the lease."""

    reason = Reason.LEASE_REVOKED


class LeaseReleased(LeaseError):
    """Someone of the same session released the lease."""

    reason = Reason.LEASE_RELEASED


class LeaseLost(LeaseError):
    """The worker that held the lease is gone or does not know it."""

    reason = Reason.LEASE_LOST


class NotLeasable(LeasewayError):
    """The server is shared; call its tools without a lease."""

    reason = Reason.NOT_LEASABLE


class SessionRequired(LeasewayError):
    """The server is leased; call its tools in a session."""

    reason = Reason.SESSION_REQUIRED


class ResultTooLarge(LeasewayError):
    """The result exceeds its bound."""

    reason = Reason.RESULT_TOO_LARGE


class ToolDiffers(LeasewayError):
    """On that worker, the tool is missing or is not what it was when it was listed."""

    reason = Reason.TOOL_DIFFERS


class ArtifactLost(LeasewayError):
    """The artifact is gone."""

    reason = Reason.ARTIFACT_LOST


class Unauthenticated(LeasewayError):
    """No key was sent, or a wrong one; see the `key` parameter and LEASEWAY_KEY."""

    reason = Reason.UNAUTHENTICATED


class PermissionDenied(LeasewayError):
    """The caller is not allowed to do this."""

    reason = Reason.PERMISSION_DENIED


class ConfirmationRequired(LeasewayError):
    """A person has to agree first."""

    reason = Reason.CONFIRMATION_REQUIRED

    @property
    def confirmation_id(self) -> str:
        """Names what a person has to agree to."""
        return self.metadata.get("confirmation_id", "")


class RateLimited(LeasewayError):
    """Too many calls; `retry_after` says when there is room again."""

    reason = Reason.RATE_LIMITED


class Capacity(LeasewayError):
    """No worker has room for another lease; `retry_after` says when to try again."""

    reason = Reason.CAPACITY


class InputRequired(LeasewayError):
    """The server asks something that this caller cannot answer."""

    reason = Reason.INPUT_REQUIRED


class IncompatibleVersion(LeasewayError):
    """The two sides speak different versions of the protocol; upgrade the older one."""

    reason = Reason.INCOMPATIBLE_VERSION


class InternalError(LeasewayError):
    """A fault in Leaseway itself, or a peer that is not Leaseway."""

    reason = Reason.INTERNAL


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _leaves(kind: type[LeasewayError]) -> Iterable[type[LeasewayError]]:
    for child in kind.__subclasses__():
        if child is LeaseError:
            yield from _leaves(child)
        else:
            yield child


_CLASSES: Final[Mapping[Reason, type[LeasewayError]]] = {
    kind.reason: kind for kind in _leaves(LeasewayError)
}


def error_from_fault(fault: Fault) -> LeasewayError:
    """Return the exception that callers see for a fault of the wire."""
    return _CLASSES[fault.reason](
        fault.message,
        started=fault.started,
        retry_after=fault.retry_delay,
        metadata=fault.metadata,
        violations=[Violation(field, message) for field, message in fault.violations],
    )
