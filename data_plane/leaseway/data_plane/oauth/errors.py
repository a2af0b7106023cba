"""Why a token cannot be obtained, and the faults that callers get for it."""

from __future__ import annotations

import shlex
from typing import Final, Protocol

from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import redact

_MAX_DESCRIPTION: Final = 200
INSUFFICIENT_SCOPE: Final = "insufficient_scope"


class AuthorizationError(Exception):
    """An attempt to obtain a token failed; the text is the end of a sentence, without secrets.

    Attributes:
        code: OAuth's own error code, or empty.
        url: The address that failed, or empty.
        is_outage: Whether there was no response, or one that says that it is about the moment.
        is_unexplained: Whether the request was refused without a code of OAuth.
        is_lasting: Whether another try fails in the same way until somebody acts.
        needs_login: Whether a person must log in (again).
        has_ended: Whether there was a login that has expired or was revoked.
        is_of_caller: Whether the token that the caller brought is not accepted.
        retry_delay: Seconds that the authorization server asks to wait, or None.
    """

    is_of_caller = False
    is_unexplained = False

    def __init__(
        self,
        text: str,
        *,
        code: str = "",
        url: str = "",
        is_outage: bool = False,
        is_lasting: bool = False,
        needs_login: bool = False,
        has_ended: bool = False,
        retry_delay: float | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.url = url
        self.is_outage = is_outage
        self.is_lasting = is_lasting
        self.needs_login = needs_login
        self.has_ended = has_ended
        self.retry_delay = retry_delay

    @property
    def lacks_login(self) -> bool:
        """Whether a person has yet to log in, or to grant more."""
        return self.needs_login and not self.has_ended


class UnexplainedRefusalError(AuthorizationError):
    """A request was refused, and nothing says why."""

    is_unexplained = True


def described(text: str) -> str:
    """Return what an authorization server says about an error, for a message."""
    line = "".join(
        character if character.isprintable() else " " for character in redact(text[:2_000])
    ).strip()
    return line[:_MAX_DESCRIPTION].rstrip(".")


class Subject(Protocol):
    """Whose token is wanted, for which server."""

    @property
    def server(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def user(self) -> str: ...


def fault_of(wanted: Subject, error: AuthorizationError) -> Fault:
    """Return the fault of a call, or of a start, that got no token."""
    if error.needs_login:
        return _login_required(wanted, error)
    server = wanted.server
    metadata = {"server": server, "problem": Reason.AUTHORIZATION_FAILED.value}
    if error.code:
        metadata["oauth_error"] = error.code
    if error.is_of_caller:
        metadata["whose"] = "caller"
        return Fault(
            Reason.AUTHORIZATION_FAILED,
            f"No token for the server {server}: {error}. That is about the token that came with the"
            " call: call again with a valid one of whoever the call is for.",
            metadata=metadata,
        )
    advice = (
        "Correct auth in its entry, or the client at its authorization server."
        if error.is_lasting
        else "It is tried again."
    )
    return Fault(
        Reason.AUTHORIZATION_FAILED,
        f"No token for the server {server}: {error}. {advice}",
        metadata=metadata,
        retry_delay=error.retry_delay,
    )


def unaccepted(wanted: Subject) -> Fault:
    """Return the fault of a call whose server refuses a token that has just been issued."""
    error = AuthorizationError(
        "it refuses a token that its authorization server has just issued; check resource,"
        " scopes and issuer, and the clocks of both",
        is_lasting=True,
    )
    return fault_of(wanted, error)


def no_caller_token(server: str) -> Fault:
    """Return the fault of a call, or of a start, whose caller has brought no token."""
    return Fault(
        Reason.USER_REQUIRED,
        f"Server {server} acts for its caller by the caller's own token, and this call has none."
        " Call it with a token as credential, or give the token of whoever the call is for"
        " (client.session(key, subject_token=...)).",
        metadata={"server": server, "whose": "caller"},
    )


def needs_scopes(server: str, scope: str) -> Fault:
    """Return the fault of a call for which the caller's token does not suffice (step-up)."""
    scope = described(scope)
    return Fault(
        Reason.AUTHORIZATION_FAILED,
        f"Server {server} needs a token with the scopes {scope or 'that it does not name'}, which"
        " the caller's token does not give. Call again with a token that has them.",
        metadata={
            "server": server,
            "problem": Reason.AUTHORIZATION_FAILED.value,
            "oauth_error": INSUFFICIENT_SCOPE,
            "scope": scope,
            "whose": "caller",
        },
    )


def _login_required(wanted: Subject, error: AuthorizationError) -> Fault:
    server, tenant, user = wanted.server, wanted.tenant, wanted.user
    command = _login_command(wanted)
    whom = f"the tenant {tenant} needs a login" if tenant else "a login is needed"
    if user:
        whom = f"the user {user} of the tenant {tenant} needs a login"
    metadata = {
        **for_operators(f"Log in on the worker's machine with: {command}."),
        "server": server,
        "tenant": tenant,
        "user": user,
        "login": "ended" if error.has_ended else "missing",
        "command": command,
        "problem": Reason.LOGIN_REQUIRED.value,
    }
    return Fault(
        Reason.LOGIN_REQUIRED,
        f"For the server {server} {whom}: {error}.",
        metadata={name: value for name, value in metadata.items() if value},
    )


def _login_command(wanted: Subject) -> str:
    named = {"tenant": wanted.tenant, "user": wanted.user}
    words = [f"--{option} {shlex.quote(name)}" for option, name in named.items() if name]
    return " ".join(["leaseway login", wanted.server, *words])
