"""How an instance's HTTP requests leave the worker: which proxy, which cookies, which token."""

from __future__ import annotations

import base64
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple, Protocol

import aiohttp
from yarl import URL

from leaseway.data_plane.core.proxies import NO_PROXIES, Proxies

_MAX_COOKIES: Final = 64
_MAX_COOKIE: Final = 4096
"""Characters of a cookie's name and value together, as in browsers."""

_REFUSED: Final = frozenset((401, 403))
MAX_SENDS: Final = 4
"""How often one request is sent: without a token or with an old one, with another worker's, with
a new one, and with the nonce that its proof needs."""


def is_refused(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a server has not started a request, for want of a token.

    Some say that a token is not valid with 400. Names of headers match without regard to case.
    """
    says = headers.get("www-authenticate", "") if status == 400 else ""
    return status in _REFUSED or "invalid_token" in says


class Route(NamedTuple):
    """The proxy of a request, and the headers for it, as aiohttp takes them; None means none."""

    proxy: str | None = None
    proxy_headers: Mapping[str, str] | None = None


class Credential(Protocol):
    """A token that requests present."""

    @property
    def header(self) -> str:
        """The value of `Authorization`."""

    def headers(self, method: str, url: URL) -> Mapping[str, str]:
        """Return the headers of one request that is sent once, also of a redirected one.

        A token that is bound to a key needs a new proof for each.
        """

    def learn(self, headers: Mapping[str, str]) -> None:
        """Note what the headers of a response say about the next request."""


class Authorization(Protocol):
    """The tokens of one instance's requests (design.md#tokens-for-remote-servers)."""

    async def credential(self) -> Credential | None:
        """Return what a request presents, or None for nothing.

        Raises:
            Fault: AUTHORIZATION_FAILED or LOGIN_REQUIRED: no request can be sent.
        """

    async def refused(
        self, sent: Credential | None, status: int, headers: Mapping[str, str]
    ) -> bool:
        """Return whether a request that was refused should be sent once more.

        Args:
            sent: What it presented, or None.
            status: The response's status.
            headers: The response's headers; names match without regard to case.

        Raises:
            Fault: As for `credential`.
        """

    def without_token(self, text: str) -> str:
        """Return a text with the token in use replaced."""


class Cookies:
    """The cookies of one instance at the origin of its address: at most 64 of 4,096 characters.

    A load balancer with affinity finds its server by them. They are sent only to the origin that
    set them, and never to another instance.
    """

    def __init__(self) -> None:
        self._jar: aiohttp.CookieJar | None = None  # most servers set none
        self._origin: URL | None = None

    def clear(self) -> None:
        """Forget all, as a new client has none."""
        self._jar = self._origin = None

    def store(self, response: aiohttp.ClientResponse) -> None:
        """Keep the cookies that a response sets, within the bounds."""
        if not response.cookies:
            return
        origin = handshake_url(response.url).origin()
        if self._origin != origin or self._jar is None:
            # "Unsafe" means to keep those of hosts that are IP addresses, too.
            self._jar, self._origin = aiohttp.CookieJar(unsafe=True), origin
        room = _MAX_COOKIES - len(self._jar)
        known = {cookie.key for cookie in self._jar}
        for name, cookie in response.cookies.items():
            if len(name) + len(cookie.value) > _MAX_COOKIE or (name not in known and room <= 0):
                continue
            room -= name not in known
            self._jar.update_cookies({name: cookie}, handshake_url(response.url))

    def add_to(self, headers: MutableMapping[str, str], url: URL) -> None:
        """Add the cookies of a URL to headers; a configured cookie of the same name stays."""
        if self._jar is None:
            return
        url = handshake_url(url)
        if url.origin() != self._origin:
            return
        found = self._jar.filter_cookies(url)
        configured = headers.get("cookie", "")
        names = {pair.partition("=")[0].strip() for pair in configured.split(";")}
        pairs = [f"{name}={cookie.value}" for name, cookie in found.items() if name not in names]
        if pairs:
            headers["cookie"] = "; ".join([*([configured] if configured else []), *pairs])


class Outgoing:
    """The proxies, cookies and tokens of one instance.

    Args:
        proxies: Of its server.
        keeps_cookies: Whether it keeps cookies at all.
        authorization: Its tokens; None for a server without `auth`.
    """

    def __init__(
        self,
        proxies: Proxies = NO_PROXIES,
        *,
        keeps_cookies: bool = True,
        authorization: Authorization | None = None,
    ) -> None:
        self.cookies = Cookies() if keeps_cookies else None
        self.authorization = authorization
        self._proxies = proxies
        self._routes: dict[URL, Route] = {}

    def route(self, url: URL) -> Route:
        """Return how requests to a URL leave.

        Raises:
            BadProxy: The proxy of the environment cannot be used.
        """
        origin = url.origin()
        route = self._routes.get(origin)
        if route is None:
            if len(self._routes) >= _MAX_COOKIES:
                self._routes.clear()
            route = self._routes[origin] = self._find(origin)
        return route

    def _find(self, origin: URL) -> Route:
        proxy = self._proxies.of(origin.scheme, origin.host or "", origin.port)
        if proxy is None:
            return Route()
        if not proxy.username and not proxy.password:
            return Route(proxy.url)
        pair = f"{proxy.username}:{proxy.password}".encode(errors="replace")
        # aiohttp sends this header to the proxy as Proxy-Authorization, also without a tunnel,
        # where it sends no other header of these.
        return Route(proxy.url, {"Authorization": f"Basic {base64.b64encode(pair).decode()}"})


def handshake_url(url: URL) -> URL:
    """Return a websocket's URL as that of its handshake."""
    schemes: Mapping[str, str] = {"ws": "http", "wss": "https"}
    return url.with_scheme(schemes[url.scheme]) if url.scheme in schemes else url
