"""To which session a call belongs: rules, tried in order.

A model, a host or its HTTP library says it in some way, or in none. No rule lets a client reach a
session of another principal or tenant: ids are bound to their owner, and what a host says itself
only tells the conversations of one owner apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from leaseway.front.protocol.handshake import INFO_KEY
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.table import EndedConversation, SessionTable
from leaseway.sdk import Tool
from leaseway.wire.messages.mcp import (
    CONVERSATION_KEYS,
    DEFAULT_SESSION_RULES,
    INVALID_PARAMS,
    SESSION_ARGUMENT,
)

ARGUMENT: Final = "argument"
HANDLE: Final = "handle"
CONVERSATION: Final = "conversation"
MCP_SESSION: Final = "mcp-session"
COOKIE: Final = "cookie"
PRINCIPAL: Final = "principal"
CONVERSATION_HEADER: Final = "Leaseway-Conversation"
"""The header in which a program sends an id of its own for the conversation."""
_OF_WORDS: Final = frozenset({ARGUMENT, HANDLE, CONVERSATION})
"""Rules that apply only to calls that say a session in words of their own."""


@dataclass(frozen=True)
class SessionOptions:
    """How a front finds the session of a call.

    Attributes:
        rules: Of `SESSION_RULES`, in the order in which they are tried.
        argument: The preferred name of the argument of leased tools.
        conversation_keys: The keys of `_meta` in which hosts send ids of their conversations.
    """

    rules: tuple[str, ...] = DEFAULT_SESSION_RULES
    argument: str = SESSION_ARGUMENT
    conversation_keys: tuple[str, ...] = CONVERSATION_KEYS

    def rules_of(self, tool: Tool | None) -> tuple[str, ...]:
        """Return the rules by which the session of a tool's calls is found."""
        return (tool.sessions_from if tool is not None else ()) or self.rules


class TakesCookie(Protocol):
    """A reply that can have a cookie."""

    def set_cookie(self, cookie: str) -> None:
        """Set the value of the `Set-Cookie` header of the response; without one if it is empty."""


class Cookie(Protocol):
    """The session cookie of a request over HTTP, which may be missing."""

    @property
    def live(self) -> LiveSession | None:
        """Its session."""

    @property
    def is_lost(self) -> bool:
        """Whether its session has ended, which was not told yet."""

    def set_on(self, reply: TakesCookie, session_id: str) -> None:
        """Make the client return a session's id, or forget it if that is empty."""

    def take_back(self, reply: TakesCookie, session_id: str) -> None:
        """Let a session end untold whose id was set on a reply."""


class Carried(NamedTuple):
    """What requests with the same head carry beside their `_meta`.

    Attributes:
        sessions: The sessions of its caller.
        protocol: The session of `Mcp-Session-Id`, or of the connection on stdio.
        handle: The session of a handle in `_meta` or a header.
        cookie: The session cookie; None without HTTP.
        conversation: The program's own id of the conversation, in a header; empty without one.
    """

    sessions: SessionTable
    protocol: LiveSession | None = None
    handle: LiveSession | None = None
    cookie: Cookie | None = None
    conversation: str = ""

    def named(self, scope: str, client: str, *, tells_end: bool = True) -> LiveSession | None:
        """Return the session of the conversation in the header; None without one.

        Raises:
            EndedConversation, TooManySessions: As `SessionTable.conversation`.
        """
        if not self.conversation:
            return None
        words = (CONVERSATION, CONVERSATION_HEADER, self.conversation)
        return self.sessions.conversation(scope, client, words, tells_end=tells_end)


def carried_in(
    headers: Mapping[str, str],
    sessions: SessionTable,
    protocol: LiveSession | None,
    handle: LiveSession | None,
    cookie: Cookie,
) -> Carried:
    """Return what a request over HTTP carries, with what its headers say of a conversation."""
    return Carried(
        sessions=sessions,
        protocol=protocol,
        handle=handle,
        cookie=cookie,
        conversation=headers.get(CONVERSATION_HEADER, ""),
    )


def client_name(meta: Mapping[str, Any], carried: Carried) -> str:
    """Return the name of a client's program, or empty."""
    info = meta.get(INFO_KEY)
    name = info.get("name") if isinstance(info, dict) else None
    if isinstance(name, str):
        return name
    return carried.protocol.sealed.client if carried.protocol is not None else ""


def is_offered(rules: Sequence[str], has_session: bool) -> bool:
    """Return whether tools with these rules have the argument for a client.

    Args:
        rules: The rules, in order.
        has_session: Whether the client's protocol says its session with every request.
    """
    return not (has_session and MCP_SESSION in rules)


class Conversations:
    """Finds the session of a call by everything but its arguments.

    Args:
        options: How.
    """

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        rules = options.rules
        before = rules[: rules.index(MCP_SESSION)] if MCP_SESSION in rules else (COOKIE,)
        is_plain = _OF_WORDS.issuperset(before)
        self._plain_rules = rules if is_plain else None

    @property
    def is_plain(self) -> bool:
        """Whether a client that says nothing else calls in the session of its protocol."""
        return self._plain_rules is not None

    def find(
        self,
        carried: Carried,
        meta: Mapping[str, Any],
        scope: str,
        rules: Sequence[str],
        *,
        tells_end: bool = True,
        reply: TakesCookie | None = None,
    ) -> LiveSession | None:
        """Return the session of the first rule that applies, or None.

        Args:
            carried: What the request carries.
            meta: Its `_meta`.
            scope: The server that the client sees; empty means all.
            rules: The rules, in order.
            tells_end: Whether the client is told that the session has ended.
            reply: Takes a cookie; None without HTTP.

        Raises:
            EndedConversation: The session has ended, and `tells_end` is set; told once.
            JsonRpcError: `_meta` is wrong, or there are too many sessions.
        """
        protocol, live = carried.protocol, None
        if (
            # What nearly every call of a client with `initialize` is, found without the loop.
            protocol is not None
            and not protocol.place
            and not meta
            and carried.handle is None
            and not carried.conversation
            and rules is self._plain_rules
        ):
            return protocol
        for rule in rules:
            if rule == HANDLE:
                live = carried.handle
            elif rule == MCP_SESSION:
                if protocol is not None and protocol.place:
                    live = carried.sessions.placed(protocol, tells_end=tells_end)
                else:
                    live = protocol
            elif rule == CONVERSATION:
                live = self._by_host(carried, meta, scope, tells_end) if meta else None
                if live is None and carried.conversation:
                    client = client_name(meta, carried)
                    live = carried.named(scope, client, tells_end=tells_end)
            elif rule == COOKIE:
                live = _by_cookie(carried.cookie, reply, tells_end)
            elif rule == PRINCIPAL:
                client, words = client_name(meta, carried), (PRINCIPAL,)
                sessions = carried.sessions
                live = sessions.conversation(scope, client, words, tells_end=tells_end)
            if live is not None:
                break
        if protocol is not None and live is not None and live is not protocol:
            protocol.let_out(live)
        return live

    def _by_host(
        self, carried: Carried, meta: Mapping[str, Any], scope: str, tells_end: bool
    ) -> LiveSession | None:
        for key in self.options.conversation_keys:
            value = meta.get(key)
            if value is None:
                continue
            if not isinstance(value, str) or not value:
                text = f"`_meta` key {key[:100]} must be the id of a conversation: a string."
                raise JsonRpcError(INVALID_PARAMS, text)
            words = (CONVERSATION, key, value)
            return carried.sessions.conversation(
                scope, client_name(meta, carried), words, tells_end=tells_end
            )
        return None


def _by_cookie(
    cookie: Cookie | None, reply: TakesCookie | None, tells_end: bool
) -> LiveSession | None:
    if cookie is None:
        return None
    if tells_end and reply is not None and cookie.is_lost:
        cookie.set_on(reply, "")
        raise EndedConversation
    return cookie.live
