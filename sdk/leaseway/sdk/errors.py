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
      ├ InputRequired             .method: the server asks what the caller cannot answer
      ├ IncompatibleVersion       the two sides speak different protocols
      └ InternalError             a fault in Leaseway

Two more come of `result_type` alone and have no reason of their own: `ToolError` and
`ResultTypeError`, in `leaseway.sdk.calls.typed_results`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from leaseway.wire.errors import Fault, Reason, Started


@dataclass(frozen=True)
class Violation:
    """One way in which arguments break a tool's input schema.

    Attributes:
        field: Where in the arguments, such as `options.depth`; empty for the whole object.
        message: What is wrong there.
    """

    field: str
    message: str


_MOST_VIOLATIONS: Final = 5
"""Violations that the text of an error names."""
_AS_A_WHOLE: Final = ("", "$")
"""The fields of violations that are about the arguments as a whole."""

_CLASSES: Final[dict[Reason, type[LeasewayError]]] = {}
"""The class of each reason; the classes below enter themselves."""


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

    def __init_subclass__(cls, *, reason: Reason | None = None) -> None:
        if reason is not None:
            cls.reason = reason
            _CLASSES[reason] = cls

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

    def __reduce__(self) -> tuple[Any, ...]:
        # Task queues send exceptions between processes; the default would lose the keywords.
        make = partial(
            type(self),
            self.message,
            started=self.started,
            retry_after=self.retry_after,
            metadata=dict(self.metadata),
            violations=self._violations,
        )
        return make, ()


class ToolNotFound(LeasewayError, reason=Reason.TOOL_NOT_FOUND):
    """No tool or server has this name, or it is filtered; the message names the nearest ones."""


class ServerNotReady(LeasewayError, reason=Reason.SERVER_NOT_READY):
    """The server is configured, but has offered no tools yet; the message says its problem."""


class InvalidArguments(LeasewayError, reason=Reason.INVALID_ARGUMENTS):
    """The arguments break the tool's input schema; the server was not called.

    Its text goes on after `message` with the first violations, so that a log line says what to
    correct.
    """

    def __str__(self) -> str:
        named = [
            f"{'arguments' if one.field in _AS_A_WHOLE else one.field}: {one.message.rstrip('.')}"
            for one in self._violations
            if one.message not in self.message
        ]
        more = len(named) - _MOST_VIOLATIONS
        rest = [f"and {more} more"] if more > 0 else []
        text = "; ".join([*named[:_MOST_VIOLATIONS], *rest])
        return f"{self.message} {text}." if text else self.message

    @property
    def violations(self) -> list[Violation]:
        """What is wrong, one entry a field."""
        return list(self._violations)


class InvalidRequest(LeasewayError, reason=Reason.INVALID_REQUEST):
    """The request itself makes no sense, such as a time to live of a week."""


class ServerError(LeasewayError, reason=Reason.SERVER_ERROR):
    """The MCP server answered with a JSON-RPC error."""

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


class ServerLost(LeasewayError, reason=Reason.SERVER_LOST):
    """The MCP server's process died, or its connection was lost."""

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None where there is no process to tell it."""
        return _integer(self.metadata.get("exit_status"))

    @property
    def stderr(self) -> str:
        """The last lines that it wrote to stderr, secrets redacted."""
        return self.metadata.get("stderr", "")


class FateUnknown(LeasewayError, reason=Reason.FATE_UNKNOWN):
    """The call was sent, then the connection to the worker was lost."""


class WorkerLost(LeasewayError, reason=Reason.WORKER_LOST):
    """The worker could not be reached; the call was not sent."""


class Draining(LeasewayError, reason=Reason.DRAINING):
    """The worker takes no more work."""


class NotApplied(LeasewayError, reason=Reason.NOT_APPLIED):
    """The worker is behind the registry version that the call was resolved at."""


class Overloaded(LeasewayError, reason=Reason.OVERLOADED):
    """The worker's queue is full."""


class Syncing(LeasewayError, reason=Reason.SYNCING):
    """The control plane has just started and is asking workers what they hold."""


class NotLeader(LeasewayError, reason=Reason.NOT_LEADER):
    """Another control plane leads."""


class ControlPlaneUnavailable(LeasewayError, reason=Reason.CONTROL_PLANE_UNAVAILABLE):
    """The control plane was needed (first list, placement) and cannot be reached."""


class DeadlineExceeded(LeasewayError, TimeoutError, reason=Reason.DEADLINE_EXCEEDED):
    """The timeout passed; the server is told that nobody waits any more."""


class Cancelled(LeasewayError, reason=Reason.CANCELLED):
    """The call was cancelled by something else than the task that waits for it."""


class LeaseError(LeasewayError):
    """A lease is no longer held.

    The session's calls to that server fail with the same error until `acquire` or `release`:
    a fresh client would not have the state that the lost one had.
    """

    @property
    def lease_id(self) -> str:
        """The lease, or an empty string where the peer did not name it."""
        return self.metadata.get("lease", "")


class LeaseExpired(LeaseError, reason=Reason.LEASE_EXPIRED):
    """The lease was not renewed in time."""


class LeaseRevoked(LeaseError, reason=Reason.LEASE_REVOKED):
    """The worker or an operator ended the lease."""


class LeaseReleased(LeaseError, reason=Reason.LEASE_RELEASED):
    """Someone of the same session released the lease, or nobody called on it for its idle limit."""


class LeaseLost(LeaseError, reason=Reason.LEASE_LOST):
    """The worker that held the lease is gone or does not know it."""


class NotLeasable(LeasewayError, reason=Reason.NOT_LEASABLE):
    """The server is shared; call its tools without a lease."""


class SessionRequired(LeasewayError, reason=Reason.SESSION_REQUIRED):
    """The server is leased; call its tools in a session."""


class ResultTooLarge(LeasewayError, reason=Reason.RESULT_TOO_LARGE):
    """The result exceeds its bound."""


class ToolDiffers(LeasewayError, reason=Reason.TOOL_DIFFERS):
    """On that worker, the tool is missing or is not what it was when it was listed."""


class ArtifactLost(LeasewayError, reason=Reason.ARTIFACT_LOST):
    """The artifact is gone."""


class Unauthenticated(LeasewayError, reason=Reason.UNAUTHENTICATED):
    """No key was sent, or a wrong one; see the `key` parameter and LEASEWAY_KEY."""


class PermissionDenied(LeasewayError, reason=Reason.PERMISSION_DENIED):
    """The caller is not allowed to do this."""


class ConfirmationRequired(LeasewayError, reason=Reason.CONFIRMATION_REQUIRED):
    """A person has to agree first."""

    @property
    def confirmation_id(self) -> str:
        """Names what a person has to agree to."""
        return self.metadata.get("confirmation_id", "")

    @property
    def may_approve(self) -> bool:
        """Whether the caller's own credential may agree to it."""
        return self.metadata.get("may_approve") == "yes"


class RateLimited(LeasewayError, reason=Reason.RATE_LIMITED):
    """Too many calls; `retry_after` says when there is room again."""


class Capacity(LeasewayError, reason=Reason.CAPACITY):
    """No worker has room for another lease; `retry_after` says when to try again."""


class InputRequired(LeasewayError, reason=Reason.INPUT_REQUIRED):
    """The server asks something that this caller cannot answer; the message says what to pass."""

    @property
    def method(self) -> str:
        """What it asks for, such as `elicitation/create`; empty where that was not said."""
        return self.metadata.get("method", "")


class IncompatibleVersion(LeasewayError, reason=Reason.INCOMPATIBLE_VERSION):
    """The two sides speak different versions of the protocol; upgrade the older one."""


class InternalError(LeasewayError, reason=Reason.INTERNAL):
    """A fault in Leaseway itself, or a peer that is not Leaseway."""


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def error_from_fault(fault: Fault) -> LeasewayError:
    """Return the exception that callers see for a fault of the wire."""
    return _CLASSES[fault.reason](
        fault.message,
        started=fault.started,
        retry_after=fault.retry_delay,
        metadata=fault.metadata,
        violations=[Violation(field, message) for field, message in fault.violations],
    )
