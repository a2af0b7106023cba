"""Fetches documents from web addresses: keys of token issuers, OpenAPI documents.

One fetch is bounded as a whole, in time and size, however slowly a server sends. Redirects lead
neither to unencrypted addresses nor into the network of this machine, unless the configured address
is itself there. Proxy variables are honoured.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import urllib.request
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from leaseway.wire import bounds

if TYPE_CHECKING:
    from yarl import URL

P = ParamSpec("P")
T = TypeVar("T")

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_PART: Final = 64 * bounds.KIB
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def is_inner(address: str) -> bool:
    """Return whether an IP address is inside a machine or a private network."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        embedded = found.ipv4_mapped or found.sixtofour
        if embedded is None and found in _NAT64:
            embedded = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if embedded is not None:
            return is_inner(str(embedded))
    return not found.is_global or found.is_multicast


class FetchError(OSError):
    """A document cannot be fetched; the message is the reason, without the address."""


def fetch(
    url: str,
    *,
    limit: int,
    timeout: float,
    accept: str = "*/*",
    is_protected: bool = False,
    is_inner: Callable[[str], bool] = is_inner,
) -> bytes:
    """Return the content of an `http` or `https` address. Blocks.

    Args:
        url: The address.
        limit: The greatest size in bytes.
        timeout: Seconds for everything: names, connections, redirects and the content.
        accept: The header `Accept`.
        is_protected: Whether redirects to other hosts must lead to `https`.
        is_inner: Returns whether an IP address is one that redirects may not lead to.

    Raises:
        FetchError: It cannot be fetched.
    """
    loop = asyncio.new_event_loop()  # of this thread; closing it waits for no name lookup
    try:
        return loop.run_until_complete(
            _within(timeout, _Fetch(url, limit, accept, is_protected, is_inner))
        )
    finally:
        loop.close()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a thread of its own, which delays neither others nor the exit.

    The shared threads of a process may all be busy with the work of callers.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result = error = None
        try:
            result = function(*args, **kwargs)
        except BaseException as raised:
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="fetch", daemon=True).start()
    return await done


async def _within(timeout: float, fetch: _Fetch) -> bytes:
    import aiohttp  # only processes that fetch something load it

    try:
        async with asyncio.timeout(timeout):
            return await fetch.run()
    except TimeoutError:
        raise FetchError(f"it has not sent everything within {timeout:g} s") from None
    except FetchError:
        raise
    except (aiohttp.ClientError, OSError, ValueError) as error:
        inner = error.__cause__
        reason = inner if isinstance(inner, FetchError) else error
        raise FetchError(str(reason) or type(reason).__name__) from None


class _Fetch:
    """One fetch with its redirects."""

    def __init__(
        self, url: str, limit: int, accept: str, is_protected: bool, is_inner: Callable[[str], bool]
    ) -> None:
        from yarl import URL

        self._origin = URL(url)
        self._limit = limit
        self._accept = accept
        self._is_protected = is_protected
        self._is_inner = is_inner
        self._outer_only = False

    async def run(self) -> bytes:
        import aiohttp

        connector = aiohttp.TCPConnector(resolver=_resolver(self._look_up), force_close=True)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": self._accept, "User-Agent": "leaseway"},
            timeout=aiohttp.ClientTimeout(total=None),  # `_within` bounds all of it
        ) as http:
            target = self._origin
            for _ in range(MAX_REDIRECTS + 1):
                proxy = _proxy(target)
                self._outer_only = proxy is None and not await self._may_be_inner(target)
                async with http.get(target, allow_redirects=False, proxy=proxy) as response:
                    if response.status not in _REDIRECTS:
                        return await self._content(response)
                    target = redirect_target(target, response.headers.get("Location", ""))
                    is_elsewhere = target.host != self._origin.host
                    if self._is_protected and is_elsewhere and target.scheme != "https":
                        raise FetchError("it redirects to http")
        raise FetchError(f"it redirects more than {MAX_REDIRECTS} times")

    async def _look_up(self, host: str, port: int, family: int) -> list[tuple[int, str]]:
        """Look up a name, and refuse inner addresses of redirects."""
        found = await in_thread(_look_up, host, port, family)
        if self._outer_only:
            self._check_outer(host, [address for _, address in found])
        return found

    async def _content(self, response: Any) -> bytes:
        if response.status != 200:
            raise FetchError(f"it responds with HTTP status {response.status}")
        content = bytearray()
        async for part in response.content.iter_chunked(_PART):
            content += part
            if len(content) > self._limit:
                raise FetchError(f"it has more than {self._limit} bytes")
        return bytes(content)

    async def _may_be_inner(self, target: URL) -> bool:
        """Return whether a target may be inside this machine's network.

        Raises:
            FetchError: It is, and may not be.
        """
        if target.host == self._origin.host:
            return True
        addresses = _literal(target)
        if any(ipaddress.ip_address(each).is_link_local for each in addresses):
            raise _inner(str(target.host))
        if await self._origin_is_inner():
            return True
        self._check_outer(str(target.host), addresses)
        return False

    def _check_outer(self, host: str, addresses: list[str]) -> None:
        if any(self._is_inner(address) for address in addresses):
            raise _inner(host)

    async def _origin_is_inner(self) -> bool:
        literal = _literal(self._origin)
        host = str(self._origin.host)
        found = literal or [
            address for _, address in await in_thread(_look_up, host, 0, socket.AF_UNSPEC)
        ]
        return any(self._is_inner(address) for address in found)


def _resolver(look_up: Callable[[str, int, int], Awaitable[list[tuple[int, str]]]]) -> Any:
    """Return a resolver for aiohttp."""
    from aiohttp.abc import AbstractResolver

    class Resolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> Any:
            return [
                {
                    "hostname": host,
                    "host": address,
                    "port": port,
                    "family": kind,
                    "proto": 0,
                    "flags": socket.AI_NUMERICHOST,
                }
                for kind, address in await look_up(host, port, family)
            ]

        async def close(self) -> None:
            """No-op: nothing is open."""

    return Resolver()


def redirect_target(current: URL, location: str) -> URL:
    """Return the target of a redirect.

    Raises:
        FetchError: It is not allowed.
    """
    relative = type(current)(location)
    target = current.join(relative)
    is_web = target.scheme in ("http", "https") and target.host
    if not is_web or not location or (relative.scheme and not relative.host):
        raise FetchError("it redirects to something that is no web address")
    if current.scheme == "https" and target.scheme != "https":
        raise FetchError("it redirects from https to http")
    return target


def _inner(host: str) -> FetchError:
    return FetchError(
        f"it redirects to {host[:200]}, which is inside this network; configure that address itself"
    )


def _literal(url: URL) -> list[str]:
    """Return the IP address that a URL names, or nothing."""
    try:
        return [str(ipaddress.ip_address((url.host or "").partition("%")[0]))]
    except ValueError:
        return []


def _look_up(host: str, port: int, family: int) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    return [(kind, str(address[0])) for kind, _, _, _, address in found]


def _proxy(url: URL) -> str | None:
    """Return the proxy for a URL by `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(str(url.host)):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
