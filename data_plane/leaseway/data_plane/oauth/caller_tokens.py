"""The callers' own tokens, for servers that act for whoever calls.

The requests of a call use the token that came with it. All others of a subject, such as those that
open a connection, use the newest. See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import secret_forms
from leaseway.wire.sharing.newest import Newest


@dataclass(eq=False)
class CallToken:
    """The token that came with one call; it is redacted in all texts until the call has ended.

    Attributes:
        key: The subject's server.
        token: The token; empty once the call has ended.
    """

    key: VariantKey
    token: str = field(repr=False)
    _hidden: Hidden | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._hidden = hide(secret_forms((self.token,)))

    def of(self, key: VariantKey) -> str:
        """Return the token for a subject of a server; empty if it is not this one's, or no more."""
        return self.token if key == self.key else ""

    def end(self) -> None:
        """Let what the call began, and outlives it, use the newest token from now on."""
        self.token, self._hidden = "", None

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the token for requests in the block, and in tasks that begin in it."""
        before = _of_call.set(self)
        try:
            yield
        finally:
            _of_call.reset(before)


_of_call: ContextVar[CallToken | None] = ContextVar("token of a call", default=None)


class CallerTokens:
    """The newest token of each subject of a server: the last 4,096 that were used.

    They are redacted in all texts while they are here.
    """

    def __init__(self) -> None:
        self._tokens: Newest[VariantKey, tuple[str, Hidden]] = Newest(bounds.MAX_OAUTH_GRANTS)

    def give(self, key: VariantKey, token: str) -> None:
        """Use a token for a subject's requests from now on.

        Raises:
            Fault: INVALID_REQUEST: it can be no token.
        """
        known = self._tokens.get(key)
        if known is not None and known[0] == token:
            self._tokens.move_to_end(key)
            return
        check_caller_token(token)
        self._tokens[key] = (token, hide(secret_forms((token,))))

    def of(self, key: VariantKey) -> str:
        """Return the call's own token, or else the newest of a subject; empty for none."""
        of_call = _of_call.get()
        if of_call is not None and (token := of_call.of(key)):
            return token
        known = self._tokens.get(key)
        return known[0] if known is not None else ""


def check_caller_token(token: str) -> None:
    """Refuse a text that can be no token.

    Raises:
        Fault: INVALID_REQUEST. The message does not repeat it.
    """
    if len(token) > bounds.MAX_OAUTH_TOKEN or not all(
        "!" <= character <= "~" for character in token
    ):
        raise Fault(
            Reason.INVALID_REQUEST,
            f"subject_token is no token: it has at most {bounds.MAX_OAUTH_TOKEN} characters, all of"
            " them printable ASCII without spaces.",
        )
