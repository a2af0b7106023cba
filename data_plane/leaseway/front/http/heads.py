"""What heads of requests lead to, so that the next request with the same one is answered at once.

A head in a session leads to that session, whatever is asked in it. One of a modern client leads to
calls of the same tool with the same `_meta`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

from leaseway.front.calling.media import MediaWish
from leaseway.front.calling.sessions import LiveSession
from leaseway.front.greeting import MODERN_MARK
from leaseway.front.http.streams import Reply
from leaseway.front.messages import ABSENT, Message, RpcError, read_message


class Front(Protocol):
    """What answers requests whose head is known."""

    def begin(
        self, scope: str, session_id: str | None, message: Message
    ) -> tuple[LiveSession | None, bool]:
        """Say in which session a request goes on, and whether it does."""

    def run(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to answer a request."""

    async def in_session(
        self, reply: Reply, live: LiveSession, message: Message, media: MediaWish | None
    ) -> None:
        """Answer a request in a session."""

    async def enveloped(
        self,
        reply: Reply,
        message: Message,
        scope: str,
        headers: Mapping[str, str],
        answers: tuple[str, ...],
        live: LiveSession | None,
    ) -> None:
        """Answer a modern client's request."""


class Envelope(msgspec.Struct):
    """What of a call's params its headers repeat, and its `_meta`."""

    name: str | None = None
    meta: msgspec.Raw = msgspec.field(default=ABSENT, name="_meta")


_read_envelope: Final = msgspec.json.Decoder(Envelope).decode


def envelope_of(message: Message) -> Envelope:
    """Return what of a request's params its headers repeat, and its `_meta`."""
    try:
        return _read_envelope(message.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Envelope()  # the call itself says what is wrong


class InSession:
    """What the head of a request in a session leads to."""

    ends_with_connection = False

    def __init__(
        self,
        front: Front,
        scope: str,
        session_id: str,
        versioned: bool,
        streams: bool,
        media: MediaWish | None,
    ) -> None:
        self._front = front
        self._scope = scope
        self._session_id = session_id
        self._versioned = versioned
        self._streams = streams
        self._media = media

    def begin(self, body: bytes, reply: Reply) -> asyncio.Task[None] | None:
        """Begin to answer a request."""
        try:
            message = read_message(body)
        except RpcError:
            return None
        if not self._versioned and MODERN_MARK in body:
            return None
        live, goes_on = self._front.begin(self._scope, self._session_id, message)
        if not goes_on or live is None:
            return None
        reply.streams = self._streams
        return self._front.run(self._front.in_session(reply, live, message, self._media))


class Enveloped:
    """What the head of a modern client's call leads to, with the same name and `_meta`."""

    ends_with_connection = True

    def __init__(
        self,
        front: Front,
        scope: str,
        headers: Mapping[str, str],
        envelope: Envelope,
        handle: str | None,
        answers: tuple[str, ...],
        streams: bool,
    ) -> None:
        self._front = front
        self._scope = scope
        self._headers = headers
        self._name = envelope.name
        self._meta = bytes(envelope.meta)
        self._handle = handle
        self._answers = answers
        self._streams = streams

    def begin(self, body: bytes, reply: Reply) -> asyncio.Task[None] | None:
        """Begin to answer a request."""
        try:
            message = read_message(body)
        except RpcError:
            return None
        envelope = envelope_of(message)
        if (
            message.method != "tools/call"
            or envelope.name != self._name
            or bytes(envelope.meta) != self._meta
        ):
            return None
        live, goes_on = self._front.begin(self._scope, self._handle, message)
        if not goes_on:
            return None
        reply.streams = self._streams
        request = self._front.enveloped(
            reply, message, self._scope, self._headers, self._answers, live
        )
        return self._front.run(request)
