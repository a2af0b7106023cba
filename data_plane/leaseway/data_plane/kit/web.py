"""`http_get`: a page of an allowed host, by an address that was checked.

Each hop resolves its host once, checks every address, and connects to those and no others, so
that a name that changes its address in between (DNS rebinding) gains nothing. Redirects are
followed here, hop by hop, under the same rules. Neither proxies nor cookies are used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from leaseway.data_plane.kit.addresses import Hosts, as_address
from leaseway.server import Tool, ToolError, ToolResult
from leaseway.wire.version import PACKAGE_VERSION

MAX_BODY: Final = 1 << 20
"""Bytes of a page that are read."""

_TIMEOUT: Final = 30.0
_MAX_HOPS: Final = 5
_MAX_ADDRESSES: Final = 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "User-Agent": f"leaseway-kit/{PACKAGE_VERSION}",
    "Accept": "text/*, application/json, application/xml;q=0.9, */*;q=0.1",
    "Accept-Encoding": "identity",  # a small answer can't unpack to a large one
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def http_get(hosts: Hosts, resolve: Resolve | None = None) -> Tool:
    """Return the tool `http_get`.

    Args:
        hosts: What may be asked.
        resolve: Tells the addresses of a host and port; None asks the system.
    """

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await _get(arguments["url"], hosts, resolve or _addresses)
        except TimeoutError:
            raise ToolError(f"There was no whole answer within {_TIMEOUT:g} s.") from None

    return Tool(
        name="http_get",
        title="Get a web page",
        description=f"Gets a text or JSON by HTTP (at most 1 MiB). Allowed hosts: {hosts}.",
        input_schema={
            "type": "object",
            "properties": {
                "url": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 8_192,
                    "description": "Begins with http:// or https://",
                }
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "After redirects"},
                "status": {"type": "integer"},
                "content_type": {"type": "string"},
                "body": {"type": "string"},
                "truncated": {"type": "boolean"},
            },
            "required": ["url", "status", "content_type", "body", "truncated"],
        },
        annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": True},
        function=run,
    )


async def _get(text: str, hosts: Hosts, resolve: Resolve) -> ToolResult:
    url = _parsed(text)
    for _ in range(_MAX_HOPS + 1):
        addresses = await _checked(url, hosts, resolve)
        outcome = await _hop(url, addresses)
        if isinstance(outcome, ToolResult):
            return outcome
        url = _parsed(outcome)
    raise ToolError(f"There were more than {_MAX_HOPS} redirects.")


async def _hop(url: URL, addresses: Sequence[str]) -> ToolResult | str:
    """Ask one host; return its answer, or where it redirects to."""
    connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False)
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.get(url, allow_redirects=False, headers=_HEADERS) as response,
        ):
            location = response.headers.get("Location")
            if response.status in _REDIRECTS and location:
                return _joined(url, location)
            return await _answer(url, response)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = str(error) or type(error).__name__
        raise ToolError(f"{url.host} can't be asked: {why:.300}.") from None


async def _answer(url: URL, response: aiohttp.ClientResponse) -> ToolResult:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ToolError("The answer is compressed, though it was asked for as it is.")
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY:
            break
    truncated = len(body) > MAX_BODY
    content = bytes(body[:MAX_BODY])
    if b"\0" in content:
        raise ToolError(f"The answer is no text but {response.content_type}.")
    try:
        text = content.decode(response.charset or "utf-8", errors="replace")
    except LookupError:
        text = content.decode(errors="replace")
    told = {
        "url": str(url),
        "status": response.status,
        "content_type": response.content_type,
        "body": text,
        "truncated": truncated,
    }
    shown = text + ("\n[truncated at 1 MiB]" if truncated else "")
    if response.status >= 400:
        shown = f"{url.host} answered with {response.status}.\n{shown}"
    return ToolResult(shown, told, is_error=response.status >= 400)


def _parsed(text: str) -> URL:
    if any(character <= " " or character == "\x7f" for character in text) or "\\" in text:
        raise ToolError("The URL holds a space, a control character or a backslash.")
    try:
        url = URL(text)
        host, _ = url.raw_host, url.port
    except ValueError:
        raise ToolError(f"{text!r:.300} is no valid URL.") from None
    if url.scheme not in ("http", "https"):
        raise ToolError(f"{text!r:.300} is not allowed; a URL begins with http:// or https://.")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("A URL with a user or a password is not allowed.")
    if not host:
        raise ToolError(f"{text!r:.300} names no host.")
    return url.with_fragment(None)


def _joined(url: URL, location: str) -> str:
    try:
        joined = url.join(URL(location))
    except ValueError:
        raise ToolError(f"{url.host} redirects to what is no URL.") from None
    if url.scheme == "https" and joined.scheme == "http":
        raise ToolError(f"{url.host} redirects from https to http, which is not allowed.")
    return str(joined)


async def _checked(url: URL, hosts: Hosts, resolve: Resolve) -> list[str]:
    """Return the addresses to connect to, all of which are allowed.

    Raises:
        ToolError: The host is not allowed, has no address, or one that is not allowed.
    """
    host = url.raw_host or ""
    if not hosts.permits_name(host):
        raise ToolError(f"The host {host!r:.200} is not allowed; allowed is: {hosts}.")
    if as_address(host) is not None:
        return [host]
    try:
        found = list(await resolve(host, url.port or 0))
    except (OSError, UnicodeError):
        raise ToolError(f"The host {host!r:.200} has no address.") from None
    for text in found:
        address = as_address(text)
        if address is None or not hosts.permits_address(address):
            raise ToolError(
                f"The host {host!r:.200} leads to an address that is not allowed: only those of"
                f" the public internet are, and what is named here: {hosts}."
            )
    if not found:
        raise ToolError(f"The host {host!r:.200} has no address.")
    return found[:_MAX_ADDRESSES]


async def _addresses(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class _Pinned(AbstractResolver):
    """Tells a connector the addresses that were checked, whatever it asks for."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """Hold nothing open."""
