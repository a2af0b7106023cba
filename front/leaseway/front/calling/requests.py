"""One request of a client, and what every method does with its params. Used by `methods`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from opentelemetry import context as otel_context

from leaseway.front.calling.conversations import Carried, Conversations, TakesCookie
from leaseway.front.calling.media import MEDIA_KEY, MediaMode, link_media, parse_media_mode
from leaseway.front.protocol.envelope import RequestMessage
from leaseway.front.protocol.handshake import LOG_LEVEL_KEY
from leaseway.front.protocol.messages import (
    JsonRpcError,
    ParamsT,
    encode,
    parse_params,
)
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.live_session import LiveSession
from leaseway.sdk import ToolResult
from leaseway.sdk.relay import BegunCall
from leaseway.wire.bounds import MAX_META
from leaseway.wire.channels.trace_context import context_from
from leaseway.wire.messages.mcp import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    TRACEPARENT,
    TRACESTATE,
    is_reserved_meta,
)


class Request:
    """One request of a client, in flight.

    Args:
        message: The JSON-RPC message.
        listener: Sends notifications and server requests to the client.
        modern: Whether the client speaks 2026-07-28 or newer.
        scope: The server that the client sees; empty means all.
        carried: What tells its session, beside its `_meta` and its arguments.
        reply: Takes the cookie of its response; None without HTTP.

    Attributes:
        has_session: Whether the client's protocol says its session with every request, and the
            client does not seem to begin a new one for each.
        meta: The request's `_meta`.
        media: How the client wants images and audio; None means the default.
        begun: The call that it has begun, until that goes on.
        waiting: The session that waits for the client's next try, or has waited for this one.
    """

    # Class attributes are set on an instance only if they differ, which in most requests is rare.
    has_session = False
    meta: Mapping[str, Any] = MappingProxyType({})
    media: MediaMode | None = None
    waiting = ""
    begun: BegunCall | None = None

    def __init__(
        self,
        message: RequestMessage,
        listener: Listener,
        modern: bool,
        scope: str,
        carried: Carried,
        reply: TakesCookie | None = None,
    ) -> None:
        self.message = message
        self.listener = listener
        self.modern = modern
        self.scope = scope
        self.carried = carried
        self.reply = reply

    @property
    def session_id(self) -> str:
        """The id of the protocol's session; empty on stdio, and for a client without one."""
        protocol = self.carried.protocol
        return protocol.id if protocol is not None else ""


def protocol_session(request: Request) -> LiveSession:
    """Return the session of the protocol; raises `JsonRpcError` without one."""
    if request.carried.protocol is None:
        raise JsonRpcError(
            INVALID_REQUEST,
            f"{request.message.method} needs a session: send the Mcp-Session-Id that the response "
            "to initialize has.",
        )
    return request.carried.protocol


def session_of(
    request: Request, conversations: Conversations, *, tells_end: bool = True
) -> LiveSession | None:
    """Return the session of a request without arguments for one, or None.

    Raises:
        EndedConversation: It has ended, and `tells_end` is set.
    """
    return conversations.find(
        request.carried,
        request.meta,
        request.scope,
        conversations.options.rules,
        tells_end=tells_end,
        reply=request.reply,
    )


async def admit_leased(request: Request, live: LiveSession) -> None:
    """Admit the session of a request to leases if it has got one, of a leased server.

    Raises:
        JsonRpcError: As `SessionTable.admit`.
    """
    if live.on_idle is None and live.id and live.sdk.leases():
        await request.carried.sessions.admit(live)


def wants_links(request: Request, by_default: MediaMode) -> bool:
    """Return whether a client wants links to images and audio that it can read later."""
    return (request.media or by_default) == "links"


class Asked(NamedTuple):
    """What the `_meta` of a request asks for, beside its session and its media.

    Attributes:
        token: The client's progress token as JSON, or empty if it requests no progress.
        log_level: The lowest level of log messages that it requests, or empty.
        relayed: The part of `_meta` for the server, as a JSON object, or empty.
    """

    token: bytes
    log_level: str
    relayed: bytes

    def apply(self, listener: Listener) -> None:
        """Let the client's side of a request pass that on."""
        if self.token:
            listener.token = self.token
            listener.wants_progress = True
        if self.log_level:
            listener.log_level = self.log_level
        if self.relayed:
            listener.meta = self.relayed


def asked_in(meta: Mapping[str, Any], *, modern: bool) -> Asked:
    """Return what a request's `_meta` asks for; raises `JsonRpcError` if that is wrong."""
    token, level, relayed = b"", "", b""
    sent, lowest = meta.get("progressToken"), meta.get(LOG_LEVEL_KEY)
    if sent is not None:
        if isinstance(sent, bool) or not isinstance(sent, str | int):
            raise JsonRpcError(INVALID_PARAMS, "A progressToken is a string or an integer.")
        token = encode(sent)
    if modern and lowest is not None:
        level = log_level(lowest)
    members = {key: value for key, value in meta.items() if not is_reserved_meta(key)}
    if members:
        relayed = encode(members)
        if len(relayed) > MAX_META:
            raise JsonRpcError(INVALID_PARAMS, f"`_meta` has at most {MAX_META} bytes.")
    return Asked(token, level, relayed)


def read_params(request: Request, kind: type[ParamsT]) -> ParamsT:
    """Parse a request's params and apply their `_meta`: progress, log level, media.

    Raises:
        JsonRpcError: They do not match the method's schema.
    """
    params = parse_params(request.message, kind)
    meta = params.meta
    if meta:
        request.meta = meta
        if MEDIA_KEY in meta:
            request.media = parse_media_mode(meta[MEDIA_KEY])
        asked_in(meta, modern=request.modern).apply(request.listener)
    return params


def log_level(value: object) -> str:
    """Return a client's lowest level of log messages; raises `JsonRpcError` for anything else."""
    if isinstance(value, str) and value in LOG_LEVELS:
        return value
    text = f"The log level must be one of {', '.join(LOG_LEVELS)}."
    raise JsonRpcError(INVALID_PARAMS, text)


def payload_of(result: ToolResult, request: Request) -> bytes:
    """Return a result's payload, with links to artifacts if the client wants links."""
    return result.payload if request.listener.inline_media else link_media(result.payload)


def pass_input_responses(request: Request, responses: bytes, state: str | None) -> None:
    """Pass a modern client's answers to an `input_required` result on to the server.

    Args:
        request: The request with the answers.
        responses: The answers: a JSON object, or empty.
        state: The server's own state, or None.
    """
    parts = []
    if responses:
        parts.append(b'"inputResponses":%b' % responses)
    if state is not None:
        parts.append(b'"requestState":%b' % encode(state))
    if parts:
        request.listener.input = b"{%b}" % b",".join(parts)


def trace_in(meta: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the `traceparent` and `tracestate` of a request's `_meta`, or None without them."""
    traceparent, tracestate = meta.get(TRACEPARENT), meta.get(TRACESTATE, "")
    if isinstance(traceparent, str) and isinstance(tracestate, str):
        return traceparent, tracestate
    return None


@contextlib.contextmanager
def traced(meta: Mapping[str, Any]) -> Iterator[None]:
    """Continue the client's trace in the block if `_meta` has a traceparent."""
    trace = trace_in(meta)
    if trace is None:
        yield
        return
    token = otel_context.attach(context_from(*trace))
    try:
        yield
    finally:
        otel_context.detach(token)
