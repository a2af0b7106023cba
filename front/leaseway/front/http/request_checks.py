"""Checks of HTTP requests before MCP: the shared key, origin and host, media types, body size.

Origin and host are checked because browsers send requests for any page: a page of another origin
names that origin, and DNS rebinding shows as a foreign host.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from aiohttp import HttpVersion11, web

from leaseway.front.draining import DRAINING, RETRY_AFTER
from leaseway.front.http.streams import HOLDING, json_response, stream_of
from leaseway.front.protocol.envelope import (
    Message,
    Refusal,
    RequestMessage,
    Response,
    names_version,
)
from leaseway.front.protocol.messages import JsonRpcError, error_message, refusal_message
from leaseway.telemetry.http_listener import CHALLENGE, HttpRefusal
from leaseway.wire.bounds import MAX_ARGUMENTS, MIB
from leaseway.wire.channels.auth import KEY_VARIABLE, bearer_credential
from leaseway.wire.channels.endpoint import Endpoint, host_in, is_local_host, origin_in
from leaseway.wire.clients.mcp_headers import METHOD_HEADER, SESSION_HEADER, VERSION_HEADER
from leaseway.wire.messages.mcp import (
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN_VERSIONS,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)

MAX_BODY: Final = MAX_ARGUMENTS + MIB
"""Bytes of one message."""
EVENT_STREAM: Final = "text/event-stream"
_JSON_TYPES: Final = frozenset({"application/json", "application/*", "*/*"})
_is_refused: Final = re.compile(r"q\s*=\s*0(\.0*)?").fullmatch
_BODY_TIMEOUT: Final = 30.0
_SENDER_HEADERS: Final = frozenset({"authorization", "host", "origin"})
"""Headers that say who sends a request, and to whom."""
_ONCE: Final = frozenset({"last-event-id", "content-type", "content-encoding"})
_ONCE_PREFIXES: Final = ("mcp-", "leaseway-")
"""Other headers that say one thing: these, and all that MCP and this product have."""
_UTF_8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
"""Names of a charset that is UTF-8 or a part of it: a message is checked when it is read."""
_CONTINUE: Final = "100-continue"
_CLOSING: Final = {"Connection": "close"}


_STATUSES: Final = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
    METHOD_NOT_FOUND: 404,
}
"""The status of an error to a modern client, by its code (MCP, Transports); of others 200."""


class HttpError(HttpRefusal):
    """An HTTP error response, to a request that is not handled further.

    Attributes:
        code: The code of its JSON-RPC error.
        names_request: Whether that has the id of the request.
    """

    code: int = INVALID_REQUEST
    names_request: bool = True

    def response(self, request_id: bytes = b"", *, modern: bool) -> web.Response:
        """Return the response.

        Args:
            request_id: The id of the JSON-RPC request, or empty if it is not known.
            modern: Whether the client speaks a version without sessions.
        """
        error = JsonRpcError(self.code, str(self))
        named = request_id if self.names_request else b""
        response = json_response(error_message(named, error, modern=modern), self.status)
        response.headers.update(self.headers)
        return response

    def refused_registration(self) -> web.Response:
        """Return the response to a client that takes the front for an authorization server.

        A client that was told of none registers at the front itself, and shows its person only
        what an error of OAuth says.
        """
        told = {"error": "access_denied", "error_description": str(self)}
        return web.json_response(told, status=self.status, headers=self.headers)


class SessionNotFound(HttpError):
    """The session of a request is unknown or has ended: its client begins another one.

    The code is that of the official TypeScript SDK's servers. Claude Code begins another session
    only if it sees the code beside the status. Clients on the official Go SDK do so only if the
    error names no request: they take one that does for an answer in a session that goes on.
    """

    code = -32001
    names_request = False

    def __init__(self) -> None:
        super().__init__(404, "Session not found: unknown or ended session. Send initialize again.")


def refused(refusal: Refusal, *, modern: bool = False) -> web.Response:
    """Return the response to a body that is no message."""
    return json_response(refusal_message(refusal, modern=modern), refusal.status)


def status_of(error: JsonRpcError) -> int:
    """Return the status of the response with an error."""
    return _STATUSES.get(error.code, 200)


class AccessCheck:
    """Checks a request's headers for the key, the origin and the host.

    Args:
        endpoint: Where the front listens.
        key: The shared key that requests must carry, or None.
        origins: Allowed origins of web pages, in addition to this machine's.
        hosts: Allowed host names of the front, in addition to this machine's.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        key: str | None,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        self._expected = key.encode() if key is not None else None
        self._origins = frozenset(map(origin_in, origins))
        # Beyond loopback the key protects: a foreign page does not have it.
        self._hosts = (
            frozenset(host_in(host) or host.lower() for host in hosts)
            if endpoint.is_loopback or hosts
            else None
        )

    def check_sender(self, headers: Mapping[str, str]) -> None:
        """Raise `HttpError` for a page or a host that is not allowed, or that is named twice."""
        if twice := _repeated(headers) & _SENDER_HEADERS:
            raise HttpError(400, f"{min(twice)} header appears more than once.")
        origin = headers.get("Origin")
        if origin is not None and not self._is_allowed_origin(origin):
            raise HttpError(403, f"Origin {origin[:200]} is not allowed; see --allow-origin.")
        host = headers.get("Host", "")
        if not self._is_allowed_host(host):
            name = host_in(host)
            raise HttpError(
                403,
                f"The Host {name} is not allowed; if it is this front's, name it by --allow-host."
                if name
                else "This Host is not allowed; see --allow-host.",
            )
        if host and host_in(host) is None:
            raise HttpError(400, "The Host header must be HOST or HOST:PORT.")

    def lets_read(self, headers: Mapping[str, str]) -> bool:
        """Return whether the page that sent a request may read its response.

        Only one that the operator names may. Any program of this machine can serve a page, and
        nothing else would keep it from the tools of a front without a key.
        """
        return headers.get("Origin", "").lower() in self._origins

    def check_key(self, headers: Mapping[str, str]) -> None:
        """Raise `HttpError` for a request without the shared key."""
        if self._expected is None:
            return
        sent = bearer_credential(headers.get("Authorization", ""))
        if not sent or not hmac.compare_digest(sent.encode(errors="replace"), self._expected):
            message = f"Send the key as Authorization: Bearer KEY; the front reads {KEY_VARIABLE}."
            raise HttpError(401, message, {"WWW-Authenticate": CHALLENGE})

    def _is_allowed_origin(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        authority = _authority_of_origin(origin)
        return self._hosts is not None and authority is not None and is_local_host(authority)

    def _is_allowed_host(self, header: str) -> bool:
        return self._hosts is None or host_in(header) in self._hosts or is_local_host(header)


async def read_body(http: web.BaseRequest) -> bytes:
    """Return a request's body; raises `HttpError` for a wrong type, size or a timeout."""
    is_json = http.content_type == "application/json"
    # A client for Quarkus sends no type. Of a page, a browser would not ask whether it may do so.
    is_untyped = "Content-Type" not in http.headers and "Origin" not in http.headers
    if not is_untyped and not (is_json and (http.charset or "utf-8").lower() in _UTF_8):
        raise HttpError(415, "Send messages as application/json, in UTF-8.")
    if http.headers.get("Content-Encoding", "").lower() not in ("", "identity"):
        raise HttpError(415, "Send messages without Content-Encoding.", _CLOSING)
    if (http.content_length or 0) > MAX_BODY:
        raise _too_large()
    await _invite(http)
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            return await _received(http)
    except TimeoutError:
        message = f"The message did not arrive within {_BODY_TIMEOUT:g} s."
        raise HttpError(408, message, _CLOSING) from None


async def _received(http: web.BaseRequest) -> bytes:
    body = bytearray()
    holding = http.get(HOLDING)
    while chunk := await http.content.readany():
        body += chunk
        if len(body) > MAX_BODY:
            raise _too_large()
        if holding is not None:
            holding.set("request", len(body))
    return bytes(body)


async def _invite(http: web.BaseRequest) -> None:
    """Tell a client that waits for it to send the body (RFC 9110, section 10.1.1).

    The libraries of PHP, .NET and C send nothing for up to 3 s otherwise.
    """
    expectation = http.headers.get("Expect", "").lower()
    if expectation not in ("", _CONTINUE):
        raise HttpError(417, f"The only expectation that can be met is {_CONTINUE}.", _CLOSING)
    if expectation and http.version >= HttpVersion11:
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        http.writer.output_size = 0  # what counts is the response


def _too_large() -> HttpError:
    # An error in a variable of the frame that raises it would keep that frame, and the message that
    # was read in it, until a collection of garbage.
    return HttpError(413, f"A message has at most {MAX_BODY} bytes.", _CLOSING)


def accepts_stream(http: web.BaseRequest) -> bool:
    """Return whether a client accepts event streams; raises `HttpError` if not even JSON."""
    if EVENT_STREAM in accepted_types(http):
        return True
    if not accepts_json(http):
        raise HttpError(406, "Accept application/json and text/event-stream.")
    return False


def accepts_json(http: web.BaseRequest) -> bool:
    """Return whether a client accepts a response that is one JSON message."""
    return not accepted_types(http).isdisjoint(_JSON_TYPES)


def accepted_types(http: web.BaseRequest) -> frozenset[str]:
    """Return the media types, in lower case, that the `Accept` headers of a request name."""
    return _types_in(",".join(http.headers.getall("Accept", ("*/*",))))


def in_accepted_form(http: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Return a response as an event stream if the client of a POST accepts no other form.

    Such clients read errors by their status.
    """
    if http.method != "POST" or response.status != 200 or accepts_json(http):
        return response
    if not isinstance(response, web.Response) or response.content_type != "application/json":
        return response
    return stream_of(response)


@functools.lru_cache(64)  # a client sends the same with each request, which asks several times
def _types_in(header: str) -> frozenset[str]:
    return frozenset(_media_types(header))


def _media_types(header: str) -> Iterator[str]:
    for part in header.lower().split(","):
        media_type, *parameters = (piece.strip() for piece in part.split(";"))
        if not any(_is_refused(parameter) for parameter in parameters):
            yield media_type


def speaks_modern(http: web.BaseRequest) -> bool:
    """Return whether a request's header names a version without sessions."""
    version = version_in(http.headers)
    return version is not None and version not in HANDSHAKE_VERSIONS


def version_in(headers: Mapping[str, str]) -> str | None:
    """Return the protocol version that the headers name, or None.

    A version that a library has joined with itself, because it was set twice, counts once. One
    without sessions says nothing beside the id of a session: clients that begin a session send the
    newest version that they know instead of the session's.
    """
    version = headers.get(VERSION_HEADER)
    if version is not None and "," in version:
        first, *others = (part.strip() for part in version.split(","))
        version = version if any(other != first for other in others) else first
    return None if version in MODERN_VERSIONS and SESSION_HEADER in headers else version


def begins_session(message: Message, headers: Mapping[str, str]) -> bool:
    """Return whether a message is the `initialize` of a version with sessions.

    Its body agrees on the version: some clients already send the newest one that they know as a
    header with it, which need not be that of the session. A header `Mcp-Method` must be right.
    """
    return (
        isinstance(message, RequestMessage)
        and message.method == "initialize"
        and headers.get(METHOD_HEADER, message.method) == message.method
        and not names_version(message)
    )


def check_occur_once(http: web.BaseRequest) -> None:
    """Raise `JsonRpcError` if a header that says one thing occurs more than once.

    Whoever reads the first one, and whoever reads the last one, would see two requests. A version
    that occurs twice, as of Java's official client 0.11, counts once (see `version_in`).
    """
    repeated = _repeated(http.headers)
    if len(set(http.headers.getall(VERSION_HEADER, ()))) == 1:
        repeated.discard(VERSION_HEADER.lower())
    for name in sorted(repeated):
        if name in _ONCE or name.startswith(_ONCE_PREFIXES):
            code = HEADER_MISMATCH if speaks_modern(http) else INVALID_REQUEST
            raise JsonRpcError(code, f"{name} header appears more than once")


def _repeated(headers: Mapping[str, str]) -> set[str]:
    """Return the names, in lower case, of headers that occur more than once."""
    # Iteration over the headers themselves passes over a second occurrence.
    counts = Counter(name.lower() for name, _ in headers.items())
    return {name for name, count in counts.items() if count > 1}


def is_modern(message: Message, headers: Mapping[str, str]) -> bool:
    """Return whether a message whose header does not say so is of a version without sessions.

    Raises:
        JsonRpcError: It is, but the header names another version.
    """
    if isinstance(message, Response | Refusal) or message.method == "initialize":
        return False
    if not names_version(message):
        return False
    if version_in(headers) is not None:
        text = f"{VERSION_HEADER} header does not match the version in `_meta`"
        raise JsonRpcError(HEADER_MISMATCH, text)
    return True


def continues_request(message: Message) -> bool:
    """Return whether a message belongs to a request that may be in flight."""
    return not isinstance(message, RequestMessage) or b'"requestState"' in message.params


def draining_error() -> HttpError:
    """Return the error of a request that a front which drains does not begin."""
    return HttpError(503, DRAINING, {"Retry-After": str(RETRY_AFTER)})


def _authority_of_origin(origin: str) -> str | None:
    """Return `HOST[:PORT]` of `SCHEME://HOST[:PORT]`, the only form of an origin."""
    scheme, separator, authority = origin.partition("://")
    return authority if separator and scheme.lower() in ("http", "https") else None
