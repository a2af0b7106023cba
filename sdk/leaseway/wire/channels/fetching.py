"""Fetches documents from web addresses: keys of token issuers, OpenAPI documents, OAuth's.

One fetch is bounded as a whole, in time and size, however slowly a server sends. Redirects lead
neither to unencrypted addresses nor further inside than the configured address itself is: into the
network of this machine, to the machine, to its link (`Zone`). Proxy variables are honoured.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import socket
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from leaseway.wire import bounds
from leaseway.wire.channels.encryption import leaves_encryption, untrusted
from leaseway.wire.channels.endpoint import is_loopback_host

if TYPE_CHECKING:
    from yarl import URL

P = ParamSpec("P")
T = TypeVar("T")

MAX_REDIRECTS: Final = 5
REDIRECTS: Final = (301, 302, 303, 307, 308)
_SERVER_ERRORS: Final = 500
_BUSY: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_CHALLENGES: Final = "www-authenticate"
_PART: Final = 64 * bounds.KIB
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254", "168.63.129.16"))
)
"""Where clouds serve a machine's credentials, besides link-local addresses."""


class Zone(enum.IntEnum):
    """How far inside an address is. What may lead to one zone may lead to all lower ones."""

    OUTER = 0
    NETWORK = 1
    MACHINE = 2
    LINK = 3


def zone_of(address: str) -> Zone:
    """Return the zone of an IP address in any form that contains another one."""
    found = _innermost(address)
    if found.is_link_local or found in _METADATA:
        return Zone.LINK
    if found.is_loopback or found.is_unspecified:
        return Zone.MACHINE
    return Zone.OUTER if found.is_global and not found.is_multicast else Zone.NETWORK


def _innermost(address: str) -> _IpAddress:
    """Return the IPv4 address that an IPv6 address leads to, or the address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found
    if found in _NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found.sixtofour or found


class FetchError(OSError):
    """A document cannot be fetched; the message is the reason, without the address.

    Attributes:
        is_outage: Whether it may be there a while later, with nothing changed.
    """

    def __init__(self, reason: str, *, is_outage: bool = False) -> None:
        super().__init__(reason)
        self.is_outage = is_outage


@dataclass(frozen=True)
class Response:
    """The response of any status to a request.

    Attributes:
        headers: The last value of each, by its name in lower case; of `www-authenticate` all,
            with commas between them.
        body: The content, within the limit; it may be a secret.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def request(
    url: str,
    *,
    limit: int,
    timeout: float,
    configured: Sequence[str],
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    zone: Callable[[str], Zone] = zone_of,
) -> Response:
    """Send a request to an address that a server named, not an operator. Blocks.

    The address itself is held to the rules for redirects: it may be unencrypted, inside this
    machine's network, or on the machine only if a configured address is, and link-local only if it
    is configured.

    Args:
        limit: The greatest size of the response in bytes.
        timeout: Seconds for everything.
        configured: The addresses that an operator wrote, the server's first.
        content: What to POST; None for a GET. Redirects of a POST are not followed.
        zone: Returns the zone of an IP address.

    Raises:
        FetchError: There is no response.
    """
    from yarl import URL

    target, origins = _parsed(url), [URL(origin) for origin in configured]
    if target.scheme not in ("http", "https") or not target.host:
        raise FetchError("it is no web address")
    is_known = any(target.origin() == origin.origin() for origin in origins)
    if not is_known and leaves_encryption(origins[0].scheme, target.scheme):
        raise FetchError("it is not encrypted: its address must begin with https")
    loop = asyncio.new_event_loop()
    try:
        fetched = _Fetch(target, origins, limit, "application/json", False, zone)
        return loop.run_until_complete(_within(timeout, fetched.respond(headers or {}, content)))
    finally:
        loop.close()


def fetch(
    url: str,
    *,
    limit: int,
    timeout: float,
    accept: str = "*/*",
    is_protected: bool = False,
    zone: Callable[[str], Zone] = zone_of,
) -> bytes:
    """Return the content of an `http` or `https` address. Blocks.

    Args:
        limit: The greatest size in bytes.
        timeout: Seconds for everything: names, connections, redirects and the content.
        accept: The header `Accept`.
        is_protected: Whether redirects to other hosts must lead to `https`.
        zone: Returns the zone of an IP address.

    Raises:
        FetchError: It cannot be fetched.
    """
    target = _parsed(url)
    loop = asyncio.new_event_loop()  # of this thread; closing it waits for no name lookup
    try:
        fetched = _Fetch(target, [target], limit, accept, is_protected, zone)
        return loop.run_until_complete(_within(timeout, fetched.run()))
    finally:
        loop.close()


def _parsed(url: str) -> URL:
    from yarl import URL

    try:
        return URL(url)
    except ValueError:
        raise FetchError("it is no web address") from None


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
        except BaseException as raised:  # noqa: BLE001 - the waiting task gets it
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="fetch", daemon=True).start()
    return await done


async def _within(timeout: float, fetch: Coroutine[Any, Any, T]) -> T:
    import aiohttp  # only processes that fetch something load it

    try:
        async with asyncio.timeout(timeout):
            return await fetch
    except TimeoutError:
        text = f"it has not sent everything within {timeout:g} s"
        raise FetchError(text, is_outage=True) from None
    except FetchError:
        raise
    except (aiohttp.ClientError, OSError, ValueError) as error:
        refusal = leads_inside(error)
        if refusal is not None:
            raise FetchError(
                f"it leads to {str(refusal)[:200]}, which is inside this network; configure that"
                " address itself"
            ) from None
        is_outage = not isinstance(error, ValueError)  # of an address
        text = untrusted(error, "this process") or str(error) or type(error).__name__
        raise FetchError(text, is_outage=is_outage) from None


class LeadsInside(OSError):
    """An address is further inside than it may be; the message is its host."""


def leads_inside(error: BaseException) -> LeadsInside | None:
    """Return the refusal of a `Guard` that a request ended with, or None."""
    refusals = (each for each in (error, error.__cause__) if isinstance(each, LeadsInside))
    return next(refusals, None)


class Guard:
    """Lets requests lead no further inside than the configured addresses are (`Zone`).

    The addresses of a name are checked at the connection: a name that is looked up twice may have
    another address the second time. A configured host may have any.

    Args:
        origins: The addresses that an operator wrote.
        zone: Returns the zone of an IP address.
        find: Looks up a name, for a port and a family; returns families and addresses. Blocks.
    """

    def __init__(
        self,
        origins: Sequence[URL],
        zone: Callable[[str], Zone] = zone_of,
        find: Callable[[str, int, int], list[tuple[int, str]]] | None = None,
    ) -> None:
        self._origins = origins
        self._zone = zone
        self._find = find or _look_up
        self._reach = Zone.LINK

    def connector(self) -> Any:
        """Return a connector for aiohttp. It keeps neither connections nor addresses."""
        import aiohttp

        return aiohttp.TCPConnector(
            resolver=_resolver(self.look_up), force_close=True, use_dns_cache=False
        )

    async def admit(self, target: URL, *, proxied: bool) -> None:
        """Decide how far inside the next connection may lead.

        Args:
            target: Where the next request leads.
            proxied: Whether a proxy looks up its name, so that the connection leads to the proxy.

        Raises:
            LeadsInside: The target is an address further inside.
        """
        self._reach = await self._checked_reach(target)
        if proxied:
            self._reach = Zone.LINK

    async def check_name(self, target: URL) -> None:
        """Check a target as it is known here, although a proxy will look it up.

        Raises:
            LeadsInside: It leads further inside.
        """
        reach = await self._checked_reach(target)
        try:
            found = await in_thread(self._find, str(target.host), 0, socket.AF_UNSPEC)
        except (OSError, UnicodeError):
            return  # only the proxy knows the name
        self._check(str(target.host), [address for _, address in found], reach)

    async def look_up(self, host: str, port: int, family: int) -> list[tuple[int, str]]:
        """Look up a name for a connection.

        Raises:
            LeadsInside: It leads further inside.
        """
        found = await in_thread(self._find, host, port, family)
        self._check(host, [address for _, address in found], self._reach)
        return found

    async def _checked_reach(self, target: URL) -> Zone:
        """Return how far inside the addresses of a target may be.

        Raises:
            LeadsInside: The target is an address further inside.
        """
        if any(target.host == origin.host for origin in self._origins):
            return Zone.LINK
        addresses = _literal(target)
        if addresses and self._zones(addresses) is Zone.OUTER:
            return Zone.OUTER
        reach = await self._reach_of_origins()
        self._check(str(target.host), addresses, reach)
        return reach

    def _check(self, host: str, addresses: list[str], reach: Zone) -> None:
        if self._zones(addresses) > reach:
            raise LeadsInside(host)

    def _zones(self, addresses: list[str]) -> Zone:
        """Return the innermost zone of some addresses."""
        return max(map(self._zone, addresses), default=Zone.OUTER)

    async def _reach_of_origins(self) -> Zone:
        """Return the innermost zone of the configured addresses, without link-local ones."""
        reach = Zone.OUTER
        for origin in self._origins:
            host = str(origin.host)
            try:
                found = _literal(origin) or [
                    address for _, address in await in_thread(self._find, host, 0, socket.AF_UNSPEC)
                ]
            except (OSError, UnicodeError):
                continue  # only a proxy knows the name
            reach = max(reach, self._zones(found))
        return min(reach, Zone.MACHINE)


class _Fetch:
    """One fetch with its redirects."""

    def __init__(
        self,
        target: URL,
        origins: Sequence[URL],
        limit: int,
        accept: str,
        is_protected: bool,
        zone: Callable[[str], Zone],
    ) -> None:
        self._target = target
        self._origins = origins
        self._limit = limit
        self._accept = accept
        self._is_protected = is_protected
        self._guard = Guard(origins, zone)

    async def run(self) -> bytes:
        """Return the content of a response of status 200."""
        response = await self.respond({}, None)
        if response.status != HTTPStatus.OK:
            raise FetchError(
                f"it responds with HTTP status {response.status}",
                is_outage=response.status >= _SERVER_ERRORS or response.status in _BUSY,
            )
        return response.body

    async def respond(self, headers: Mapping[str, str], content: bytes | None) -> Response:
        """Return the response after redirects."""
        import aiohttp

        async with aiohttp.ClientSession(
            connector=self._guard.connector(),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": self._accept, "User-Agent": "leaseway"},
            timeout=aiohttp.ClientTimeout(total=None),  # `_within` bounds all of it
        ) as http:
            target, method = self._target, "GET" if content is None else "POST"
            for _ in range(MAX_REDIRECTS + 1):
                proxy = proxy_for(target.scheme, str(target.host))
                await self._guard.admit(target, proxied=proxy is not None)
                async with http.request(
                    method, target, data=content, headers=headers, allow_redirects=False,
                    proxy=proxy,
                ) as response:  # fmt: skip
                    if response.status not in REDIRECTS:
                        return await self._read(response)
                    if content is not None:
                        raise FetchError("it redirects a request that it must answer itself")
                    target = redirect_target(target, response.headers.get("Location", ""))
                    if target.origin() != self._target.origin():
                        headers = {}  # they may hold a credential
                    is_elsewhere = target.host != self._origins[0].host
                    if self._is_protected and is_elsewhere and target.scheme != "https":
                        raise FetchError("it redirects to http")
        raise FetchError(f"it redirects more than {MAX_REDIRECTS} times")

    async def _read(self, response: Any) -> Response:
        content = bytearray()
        async for part in response.content.iter_chunked(_PART):
            content += part
            if len(content) > self._limit:
                raise FetchError(f"it has more than {self._limit} bytes")
        headers = {name.lower(): value for name, value in response.headers.items()}
        if _CHALLENGES in headers:  # a server may send one for each scheme
            headers[_CHALLENGES] = ", ".join(response.headers.getall(_CHALLENGES))
        return Response(response.status, headers, bytes(content))


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
    if leaves_encryption(current.scheme, target.scheme):
        raise FetchError("it redirects from https to http")
    return target


def _literal(url: URL) -> list[str]:
    """Return the IP address that a URL names, in any form that systems accept, or nothing."""
    host = (url.host or "").partition("%")[0].rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.1"]
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]  # such as 127.1, 0x7f.1 and 2130706433
    except (OSError, ValueError):
        return []


def _look_up(host: str, port: int, family: int) -> list[tuple[int, str]]:
    found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    return [(kind, str(address[0])) for kind, _, _, _, address in found]


def proxy_for(scheme: str, host: str) -> str | None:
    """Return the proxy for a host by `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`.

    None for this machine, which a proxy takes for its own.
    """
    if is_loopback_host(host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
