"""What answers one POST: JSON, a stream of events, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp

from leaseway.data_plane.mcp import http_answers as answers
from leaseway.data_plane.mcp.codec import Envelope
from leaseway.data_plane.mcp.http_endpoint import SESSION_ID, HttpEndpoint
from leaseway.data_plane.mcp.http_events import EventReader
from leaseway.data_plane.mcp.http_renewal import SessionForgotten
from leaseway.data_plane.mcp.wire import Era

__all__ = ["AnswerReader", "Asked"]


class Asked(NamedTuple):
    """A request that was posted.

    Attributes:
        key: Names it.
        headers: What it carried.
        session: The session that it was sent in, or empty: the connection may be in another one
            by the time of its answer.
        opens: Whether its answer may open a session.
    """

    key: object
    headers: Mapping[str, str]
    session: str
    opens: bool = False


class AnswerReader:
    """Reads the answers of one connection.

    Args:
        server: The server's id, for messages.
        endpoint: Told of sessions that answers open.
        events: Reads those that are streams.
        take: Takes a message that came in the answer to a request.
        waits: Says whether anybody still waits for a request.
    """

    def __init__(
        self,
        server: str,
        endpoint: HttpEndpoint,
        events: EventReader,
        take: Callable[[object, Envelope], None],
        waits: Callable[[object], bool],
    ) -> None:
        self._server = server
        self._endpoint = endpoint
        self._events = events
        self._take = take
        self._waits = waits

    async def read(self, asked: Asked, response: aiohttp.ClientResponse, era: Era) -> None:
        """Read an answer to its end, or until nobody waits for more of it.

        Raises:
            Fault: It is a refusal, nothing that can be read, or ends too early.
            SessionForgotten: The server does not know the session.
            aiohttp.ClientError: It broke.
        """
        if response.status >= 400:
            await self._read_refusal(asked, response, era)
            return
        if asked.opens and SESSION_ID in response.headers:
            self._endpoint.open_session(response.headers[SESSION_ID])
        if response.content_type == "application/json" and response.status != 202:
            self._take_json(asked.key, await answers.read_body(self._server, response))
        elif response.content_type == "text/event-stream":
            resumable = not era.modern
            await self._events.read(asked.key, response, asked.headers, resumable=resumable)
        else:
            what = f"HTTP status {response.status} and content type {response.content_type}"
            raise answers.unreadable(self._server, what)
        if self._waits(asked.key):
            raise answers.ended_early(self._server)

    async def _read_refusal(self, asked: Asked, response: aiohttp.ClientResponse, era: Era) -> None:
        body = await answers.read_body(self._server, response)
        in_session = asked.session and era.version and not era.modern
        if in_session and _names_session(response.status, body):
            raise SessionForgotten
        message = answers.rpc_error(body)
        if message is not None:
            self._take(asked.key, message)
            return
        raise answers.status_fault(self._server, response.status, response.headers)

    def _take_json(self, key: object, body: bytes) -> None:
        try:
            messages = answers.decode_body(body)
        except ValueError:
            raise answers.unreadable(self._server, "a body that is no JSON-RPC") from None
        for message in messages:
            self._take(key, message)


def _names_session(status: int, body: bytes) -> bool:
    """Say whether a refusal means an unknown session: 404, or 400 with words as some put it."""
    return status == 404 or (status == 400 and b"session id" in body[:1024].lower())
