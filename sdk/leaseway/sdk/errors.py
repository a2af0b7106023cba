"""The exceptions that clients raise.

Each class stands for one reason
(docs/design.md#errors). Catch the narrowest one that you can handle::

    LeasewayError               .reason .message .started .retry_after .metadata
      ├ ToolNotFound              no such tool, prompt, resource or server
      ├ ServerNotReady            the server is configured but has no tools yet
      ├ InvalidArguments          .violations of the tool's input schema
      ├ InvalidRequest            the request is invalid
      ├ ServerError               .code .data: the MCP server returned a JSON-RPC error
      ├ ServerLost                .exit_status .stderr: its process or connection ended
      ├ FateUnknown               the worker was lost after the call was sent
      ├ WorkerLost                the worker could not be reached; the call was not sent
      ├ Draining                  the worker accepts no new calls
      ├ NotApplied                the worker's registry is behind that of the control plane
      ├ Overloaded                the worker's queue is full
      ├ Syncing                   the control plane still collects the leases of workers
      ├ NotLeader                 another control plane is the leader
      ├ ControlPlaneUnavailable   needed (first list, placement) and unreachable
      ├ StoreUnavailable          the control plane cannot use its store
      ├ DeadlineExceeded          the timeout passed; also a TimeoutError
      ├ Cancelled                 the call was cancelled
      ├ LeaseError                .lease_id: the lease has ended
      │   ├ LeaseExpired          it was not renewed in time
      │   ├ LeaseRevoked          the worker or an operator ended it
      │   ├ LeaseReleased         its session released it
      │   └ LeaseLost             its worker exited, or does not have it
      ├ NotLeasable               the server is shared: call it without a lease
      ├ SessionRequired           the server is leased: call it in a session
      ├ UserRequired              the server acts for users: call it for one
      ├ ResultTooLarge            the result exceeds its limit
      ├ ToolDiffers               the worker's tool differs from the listed one
      ├ ArtifactLost              the artifact no longer exists
      ├ Unauthenticated           the key is missing or wrong
      ├ PermissionDenied          the credential does not allow this
      ├ ConfirmationRequired      .confirmation_id: a person must approve the call
      ├ LoginRequired             .server, .url: a person must log in to the remote server
      ├ AuthorizationFailed       .oauth_error: the worker got no token for the remote server
      ├ RateLimited               too many calls; .retry_after
      ├ Capacity                  no worker has capacity for another lease; .retry_after
      ├ InputRequired             .method: the server sent a request that has no handler
      ├ IncompatibleVersion       the two sides speak different protocol versions
      └ InternalError             a bug in Leaseway

`result_type` of `call_tool` adds two more, which have no reason: `ToolError` and `ResultTypeError`
(`leaseway.sdk.calls.typed_results`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from leaseway.wire.advice import ADVICE, LOGIN_PAGE
from leaseway.wire.errors import Fault, Reason, Started


@dataclass(frozen=True)
class Violation:
    """One argument that violates a tool's input schema.

    Attributes:
        field: The argument's path, such as `$.options.depth`; `$` or empty for the whole object.
        message: The violated rule.
    """

    field: str
    message: str


_MAX_VIOLATIONS: Final = 5
"""Limit of the violations in the text of an error."""
_WHOLE_OBJECT: Final = ("", "$")
"""The fields of violations that concern all arguments together."""

_CLASSES: Final[dict[Reason, type[LeasewayError]]] = {}
"""The class of each reason, registered by `LeasewayError.__init_subclass__`."""


class LeasewayError(Exception):
    """A request failed or was rejected. The base class of all errors.

    Attributes:
        reason: The reason, a constant of the class; docs/runbook.md explains each one.
        message: What happened and where, in sentences.
        advice: What an operator does about it, in sentences; empty if there is nothing. Tracebacks
            show it, and `str()` does not: a model may read that.
        started: Whether the MCP server has started the call: `no`, `yes` or `unknown`. After `no`,
            repeating the call is safe.
        retry_after: Seconds after which another try may succeed, or None if unknown.
        metadata: Details for programs, such as `server`, `worker` and `lease`.
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
        self.advice = self.metadata.get(ADVICE, "")
        self._violations = tuple(violations)
        if self.advice:
            self.add_note(self.advice)

    def __reduce__(self) -> tuple[Any, ...]:
        # Task queues pickle exceptions. The default calls the constructor, which differs between
        # subclasses, and those of users.
        return _rebuild, (type(self), self.args), vars(self)


def _rebuild(kind: type[LeasewayError], args: tuple[Any, ...]) -> LeasewayError:
    error = kind.__new__(kind)
    error.args = args
    return error


class ToolNotFound(LeasewayError, reason=Reason.TOOL_NOT_FOUND):
    """No tool, prompt, resource or server has this name, or a filter hides it.

    The message names the nearest ones.
    """


class ServerNotReady(LeasewayError, reason=Reason.SERVER_NOT_READY):
    """The server is configured but has not started yet; the message names its problem."""


class InvalidArguments(LeasewayError, reason=Reason.INVALID_ARGUMENTS):
    """The arguments violate the tool's input schema; the server was not called.

    `str()` of the error is `message` and the first violations, so that a log line shows both.
    """

    def __str__(self) -> str:
        parts = [
            f"{'arguments' if v.field in _WHOLE_OBJECT else v.field}: {v.message.rstrip('.')}"
            for v in self._violations
            if v.message not in self.message
        ]
        more = len(parts) - _MAX_VIOLATIONS
        if more > 0:
            parts[_MAX_VIOLATIONS:] = [f"and {more} more"]
        return f"{self.message} {'; '.join(parts)}." if parts else self.message

    @property
    def violations(self) -> list[Violation]:
        """The violations, one for each argument."""
        return list(self._violations)


class InvalidRequest(LeasewayError, reason=Reason.INVALID_REQUEST):
    """The request is invalid, for example an unknown worker or a `ttl` of a week."""


class ServerError(LeasewayError, reason=Reason.SERVER_ERROR):
    """The MCP server returned a JSON-RPC error."""

    @property
    def code(self) -> int | None:
        """The JSON-RPC error code, or None if the server sent none."""
        return _integer(self.metadata.get("code"))

    @property
    def data(self) -> Any:
        """The `data` of the JSON-RPC error, or None if the server sent none."""
        text = self.metadata.get("data")
        if not text:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


class ServerLost(LeasewayError, reason=Reason.SERVER_LOST):
    """The MCP server's process exited, or its connection was lost."""

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None if unknown or not a process."""
        return _integer(self.metadata.get("exit_status"))

    @property
    def stderr(self) -> str:
        """The last lines that the process wrote to stderr, with secrets redacted."""
        return self.metadata.get("stderr", "")


class FateUnknown(LeasewayError, reason=Reason.FATE_UNKNOWN):
    """The worker was lost after the call was sent; whether it ran is unknown."""


class WorkerLost(LeasewayError, reason=Reason.WORKER_LOST):
    """The worker could not be reached; the call was not sent."""


class Draining(LeasewayError, reason=Reason.DRAINING):
    """The worker is shutting down and accepts no new calls."""


class NotApplied(LeasewayError, reason=Reason.NOT_APPLIED):
    """The worker has not applied the registry version that the call was resolved at."""


class Overloaded(LeasewayError, reason=Reason.OVERLOADED):
    """The worker's queue is full."""


class Syncing(LeasewayError, reason=Reason.SYNCING):
    """The control plane has just started and still collects the leases of workers."""


class NotLeader(LeasewayError, reason=Reason.NOT_LEADER):
    """Another control plane is the leader."""


class ControlPlaneUnavailable(LeasewayError, reason=Reason.CONTROL_PLANE_UNAVAILABLE):
    """The control plane is needed (first list, placement of a lease) and unreachable."""


class StoreUnavailable(LeasewayError, reason=Reason.STORE_UNAVAILABLE):
    """The control plane cannot use its store, in which approvals are kept."""


class DeadlineExceeded(LeasewayError, TimeoutError, reason=Reason.DEADLINE_EXCEEDED):
    """The timeout passed; the call is cancelled at the server. Also a `TimeoutError`."""


class Cancelled(LeasewayError, reason=Reason.CANCELLED):
    """The call was cancelled, but not by its caller; for example, the client was closed."""


class LeaseError(LeasewayError):
    """The session's lease has ended.

    The session's calls to that server fail with the same error until `acquire` or `release`,
    because a new instance does not have the state of the lost one.
    """

    @property
    def lease_id(self) -> str:
        """The lease's id, or empty if unknown."""
        return self.metadata.get("lease", "")


class LeaseExpired(LeaseError, reason=Reason.LEASE_EXPIRED):
    """The lease was not renewed in time."""


class LeaseRevoked(LeaseError, reason=Reason.LEASE_REVOKED):
    """The worker or an operator ended the lease."""


class LeaseReleased(LeaseError, reason=Reason.LEASE_RELEASED):
    """Another client of the session released the lease, or its idle limit passed."""


class LeaseLost(LeaseError, reason=Reason.LEASE_LOST):
    """The lease's worker exited, or does not have the lease, or the lease's server died."""


class NotLeasable(LeasewayError, reason=Reason.NOT_LEASABLE):
    """The server is shared; call its tools without a lease."""


class SessionRequired(LeasewayError, reason=Reason.SESSION_REQUIRED):
    """The server is leased; call its tools in a session."""


class UserRequired(LeasewayError, reason=Reason.USER_REQUIRED):
    """The server acts for users: use a user's credential, or name the user of the session."""


class ResultTooLarge(LeasewayError, reason=Reason.RESULT_TOO_LARGE):
    """The result exceeds 16 MiB; request less at a time."""


class ToolDiffers(LeasewayError, reason=Reason.TOOL_DIFFERS):
    """The worker's tool is missing, or differs from the listed one."""


class ArtifactLost(LeasewayError, reason=Reason.ARTIFACT_LOST):
    """The artifact no longer exists, or belongs to another session."""


class Unauthenticated(LeasewayError, reason=Reason.UNAUTHENTICATED):
    """The key is missing or wrong; see the `key` parameter and LEASEWAY_KEY."""


class PermissionDenied(LeasewayError, reason=Reason.PERMISSION_DENIED):
    """The caller's credential does not allow this."""


class ConfirmationRequired(LeasewayError, reason=Reason.CONFIRMATION_REQUIRED):
    """A person must approve the call first; see `AsyncClient.approve`."""

    @property
    def confirmation_id(self) -> str:
        """The id of the approval that the call needs."""
        return self.metadata.get("confirmation_id", "")

    @property
    def may_approve(self) -> bool:
        """Whether the caller's own credential may approve it."""
        return self.metadata.get("may_approve") == "yes"


class LoginRequired(LeasewayError, reason=Reason.LOGIN_REQUIRED):
    """A person must log in to the remote server, or log in again; the message says how."""

    @property
    def server(self) -> str:
        """The id of the server."""
        return self.metadata.get("server", "")

    @property
    def tenant(self) -> str:
        """The tenant that needs the login."""
        return self.metadata.get("tenant", "")

    @property
    def user(self) -> str:
        """The user who needs it; empty if the tenant itself does."""
        return self.metadata.get("user", "")

    @property
    def url(self) -> str:
        """The address where a login begins, for a person's browser; empty if there is none."""
        return self.metadata.get(LOGIN_PAGE, "")


class AuthorizationFailed(LeasewayError, reason=Reason.AUTHORIZATION_FAILED):
    """The worker got no token for the remote server, so that the call was not sent.

    It is also the error of a caller's token that cannot be checked for the moment.
    """

    @property
    def oauth_error(self) -> str:
        """The code that the authorization server answered with, such as `invalid_client`."""
        return self.metadata.get("oauth_error", "")


class RateLimited(LeasewayError, reason=Reason.RATE_LIMITED):
    """Too many calls; `retry_after` is the time to wait."""


class Capacity(LeasewayError, reason=Reason.CAPACITY):
    """No worker has capacity for another lease; `retry_after` is the time to wait."""


class InputRequired(LeasewayError, reason=Reason.INPUT_REQUIRED):
    """The server sent the caller a request that has no handler; the message names what to pass."""

    @property
    def method(self) -> str:
        """The method of the server's request, such as `elicitation/create`, or empty."""
        return self.metadata.get("method", "")


class IncompatibleVersion(LeasewayError, reason=Reason.INCOMPATIBLE_VERSION):
    """The two sides speak different protocol versions; upgrade the older one."""


class InternalError(LeasewayError, reason=Reason.INTERNAL):
    """A bug in Leaseway, or a peer that is not Leaseway."""


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def error_from_fault(fault: Fault) -> LeasewayError:
    """Return the exception for a fault."""
    return _CLASSES[fault.reason](
        fault.message,
        started=fault.started,
        retry_after=fault.retry_delay,
        metadata=fault.metadata,
        violations=[Violation(field, message) for field, message in fault.violations],
    )
