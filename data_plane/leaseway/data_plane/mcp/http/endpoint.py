"""One MCP endpoint: how requests are made there, and what each of them carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict
from yarl import URL

from leaseway.data_plane.mcp.http.errors import redirect_target, unreadable
from leaseway.data_plane.mcp.protocol.transport import Receipt
from leaseway.wire.errors import Fault, Reason

SESSION_ID: Final = "mcp-session-id"
_ACCEPT: Final = "application/json, text/event-stream"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
_MAX_REDIRECTS: Final = 4


class HttpEndpoint:
    """Makes requests to one URL, with the configured headers and the session's id.

    Args:
        server: The server's id, for messages.
        url: The address.
        http: The worker's pooled client.
        headers: Configured headers, resolved.
        session_id: A session that exists already, or empty.

    Attributes:
        url: The address.
        session_id: The session that requests belong to; empty for none.
        session_is_ours: Whether the session was opened here and is to be ended here.

    Raises:
        Fault: SERVER_NOT_READY: the URL is none, or a header can't be sent.
    """

    def __init__(
        self,
        server: str,
        url: str,
        http: aiohttp.ClientSession,
        headers: Mapping[str, str],
        session_id: str,
    ) -> None:
        self.url = parsed_url(server, url, ("http", "https"))
        self.session_id = session_id
        self.session_is_ours = False
        self._server = server
        self._http = http
        self._headers = check_headers(server, headers)

    def open_session(self, session_id: str) -> None:
        self.session_id = session_id
        self.session_is_ours = True

    def leave_session(self) -> None:
        """Belong to none: the server does not know it any more."""
        self.session_id = ""

    async def request(
        self,
        method: Literal["POST", "GET", "DELETE"],
        headers: Mapping[str, str],
        body: RequestBody | None = None,
    ) -> aiohttp.ClientResponse:
        """Make a request and return its response, whatever its status; redirects are followed.

        Raises:
            Fault: A redirect that must not be followed.
            aiohttp.ClientError: The connection could not be made, or broke.
            OSError: Likewise.
        """
        sent = CIMultiDict(self._headers)
        sent["accept"] = _ACCEPT if method == "POST" else "text/event-stream"
        if self.session_id:
            sent[SESSION_ID] = self.session_id
        sent.update(headers)
        url = self.url
        for _ in range(_MAX_REDIRECTS):
            response = await self._http.request(
                method, url, data=body, headers=sent, allow_redirects=False, timeout=_TIMEOUT
            )
            try:
                target = redirect_target(response, self._server)
            except Exception:
                response.release()
                raise
            if target is None:
                return response
            response.release()
            url = target
        raise unreadable(self._server, "redirects that do not end")


class RequestBody(Payload):
    """A request's body, which notes that it was handed to the socket."""

    def __init__(self, value: bytes, entry: Receipt | None = None) -> None:
        super().__init__(value, content_type="application/json")
        self._size = len(value)
        self._entry = entry

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return it as text (aiohttp asks for it in its own messages)."""
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        if self._entry is not None:
            self._entry.written = True
        await writer.write(self._value)


def check_headers(server: str, headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return configured headers as they are sent.

    Raises:
        Fault: SERVER_NOT_READY: one can't be sent.
    """
    for name, value in headers.items():
        if not value.isprintable():
            raise _unusable(
                server,
                f"headers.{name} of the server {server} holds a character "
                "that no header may hold (a line break, say): give it as one line.",
            )
    return CIMultiDict(headers)


def parsed_url(server: str, url: str, schemes: tuple[str, str]) -> URL:
    """Return an address of one of two schemes.

    Raises:
        Fault: SERVER_NOT_READY: it is none.
    """
    try:
        parsed = URL(url)
        if parsed.scheme in schemes and parsed.host:
            return parsed
    except ValueError:
        pass
    raise _unusable(
        server,
        f"The url of the server {server} is no {schemes[0]} or {schemes[1]} address: write it like "
        f"{schemes[0]}://host:port/mcp.",
    )


def _unusable(server: str, text: str) -> Fault:
    metadata = {"server": server, "problem": "START_FAILED"}
    return Fault(Reason.SERVER_NOT_READY, text, metadata=metadata)
