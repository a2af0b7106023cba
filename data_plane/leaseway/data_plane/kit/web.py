"""`http_get`: gets a page from an allowed host.

Each hop resolves its host once, checks all addresses and connects only to those, which protects
against DNS rebinding. Redirects are followed here under the same rules. Neither proxies nor cookies
are used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from leaseway.data_plane.kit.addresses import AllowedHosts, parse_address
from leaseway.data_plane.kit.schemas import READ_ONLY, arguments_schema, result_schema
from leaseway.server import Tool, ToolError, ToolResult
from leaseway.wire.channels.encryption import leaves_encryption
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.messages.charsets import text_of_body
from leaseway.wire.version import PACKAGE_VERSION

MAX_BODY: Final = 1 << 20
"""Bytes that are read of a page."""

_TIMEOUT: Final = 30.0
_MAX_HOPS: Final = 5
_MAX_ADDRESSES: Final = 16
_MAX_LOOKUPS: Final = 64
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "User-Agent": f"leaseway-kit/{PACKAGE_VERSION}",
    "Accept": "text/*, application/json, application/xml;q=0.9, */*;q=0.1",
    "Accept-Encoding": "identity",  # no decompression bombs
}

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


def http_get(hosts: AllowedHosts, resolve: Resolve | None = None) -> Tool:
    """Return the tool `http_get`.

    Args:
        hosts: The allowed hosts.
        resolve: Returns the addresses of a host and port; None uses the system's resolver.
    """
    resolve = resolve or _System().addresses

    async def run(arguments: Mapping[str, Any]) -> ToolResult:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await _get(arguments["url"], hosts, resolve)
        except TimeoutError:
            raise ToolError(f"The response was not complete within {_TIMEOUT:g} s.") from None

    return Tool(
        name="http_get",
        title="Get a web page",
        description=f"Gets a text or JSON page over HTTP (at most 1 MiB). Allowed hosts: {hosts}.",
        input_schema=arguments_schema(
            {
                "url": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 8_192,
                    "description": "Starts with http:// or https://",
                }
            },
            "url",
        ),
        output_schema=result_schema(
            {
                "url": {"type": "string", "description": "After redirects"},
                "status": {"type": "integer"},
                "content_type": {"type": "string"},
                "body": {"type": "string"},
                "truncated": {"type": "boolean"},
            }
        ),
        annotations={**READ_ONLY, "openWorldHint": True},
        function=run,
    )


async def _get(text: str, hosts: AllowedHosts, resolve: Resolve) -> ToolResult:
    url = _parse_url(text)
    for _ in range(_MAX_HOPS + 1):
        addresses = await _allowed_addresses(url, hosts, resolve)
        outcome = await _request(url, addresses)
        if isinstance(outcome, ToolResult):
            return outcome
        url = _parse_url(outcome)
    raise ToolError(f"There were more than {_MAX_HOPS} redirects.")


async def _request(url: URL, addresses: Sequence[str]) -> ToolResult | str:
    """Send a request to one host; return its result, or the URL that it redirects to."""
    connector = aiohttp.TCPConnector(resolver=_FixedResolver(addresses), use_dns_cache=False)
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
                return _redirect_url(url, location)
            return await _result(url, response)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ToolError(f"The request to {url.host} failed: {reason:.300}.") from None


async def _result(url: URL, response: aiohttp.ClientResponse) -> ToolResult:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ToolError("The response is compressed, although the request does not accept that.")
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_BODY:
            break
    truncated = len(body) > MAX_BODY
    content = bytes(body[:MAX_BODY])
    if b"\0" in content:
        raise ToolError(f"The response is no text but {response.content_type}.")
    text = text_of_body(content, response.charset or "")
    structured = {
        "url": str(url),
        "status": response.status,
        "content_type": response.content_type,
        "body": text,
        "truncated": truncated,
    }
    shown = text + ("\n[truncated at 1 MiB]" if truncated else "")
    if response.status >= 400:
        shown = f"{url.host} responded with {response.status}.\n{shown}"
    return ToolResult(shown, structured, is_error=response.status >= 400)


def _parse_url(text: str) -> URL:
    if any(character <= " " or character == "\x7f" for character in text) or "\\" in text:
        raise ToolError("The URL has a space, a control character or a backslash.")
    try:
        url = URL(text)
        host, _ = url.raw_host, url.port
    except ValueError:
        raise ToolError(f"{text!r:.300} is no valid URL.") from None
    if url.scheme not in ("http", "https"):
        raise ToolError(f"{text!r:.300} is not allowed; a URL starts with http:// or https://.")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("A URL with a user or a password is not allowed.")
    if not host:
        raise ToolError(f"{text!r:.300} has no host.")
    return url.with_fragment(None)


def _redirect_url(url: URL, location: str) -> str:
    try:
        joined = url.join(URL(location))
    except ValueError:
        raise ToolError(f"{url.host} redirects to an invalid URL.") from None
    if leaves_encryption(url.scheme, joined.scheme):
        raise ToolError(
            f"{url.host} redirects from https to {joined.scheme:.20}, which is not allowed."
        )
    return str(joined)


async def _allowed_addresses(url: URL, hosts: AllowedHosts, resolve: Resolve) -> list[str]:
    """Return the addresses of a URL's host.

    Raises:
        ToolError: The host or one of its addresses is not allowed, or it has no address.
    """
    host = url.raw_host or ""
    if not hosts.allows_name(host):
        raise ToolError(f"The host {host!r:.200} is not allowed; allowed are: {hosts}.")
    if parse_address(host) is not None:
        return [host]
    try:
        addresses = list(await resolve(host, url.port or 0))
    except (OSError, UnicodeError):
        raise ToolError(f"The host {host!r:.200} has no address.") from None
    for text in addresses:
        address = parse_address(text)
        if address is None or not hosts.allows_address(address):
            raise ToolError(
                f"The host {host!r:.200} has an address that is not allowed: only public addresses"
                f" and these are: {hosts}."
            )
    if not addresses:
        raise ToolError(f"The host {host!r:.200} has no address.")
    return addresses[:_MAX_ADDRESSES]


class _System:
    """Looks names up, at most 64 at once.

    In threads of their own: names whose name servers do not answer would hold the few of the loop,
    and with them all other lookups, and the end of the process. A lookup that nobody waits for any
    more goes on, and counts until it has ended.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(_MAX_LOOKUPS)
        self._running: set[asyncio.Task[list[Any]]] = set()

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        await self._turns.acquire()
        lookup = asyncio.ensure_future(
            in_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        )
        self._running.add(lookup)
        lookup.add_done_callback(self._ended)
        found = await asyncio.shield(lookup)
        return list(dict.fromkeys(str(info[4][0]) for info in found))

    def _ended(self, lookup: asyncio.Task[list[Any]]) -> None:
        self._running.discard(lookup)
        self._turns.release()
        if not lookup.cancelled():
            lookup.exception()  # who waited for it has got it, if anybody still did


class _FixedResolver(AbstractResolver):
    """Resolves every host to the addresses that were checked."""

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
        """Do nothing: the resolver has no resources."""
