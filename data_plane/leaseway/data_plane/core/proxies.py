"""Which proxy a request goes through: of the server's entry, or of the environment. Pure.

The variables are those of curl and Python: `http_proxy` for http and ws addresses, `https_proxy`
for https and wss, else `all_proxy`; lower case wins. `no_proxy` lists hosts without a proxy: names
with their subdomains, addresses, networks (10.0.0.0/8), each with a port if wanted, or `*`. A
loopback address is reached directly, as Go does: a proxy would take it for its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from leaseway.wire.channels.endpoint import is_loopback_host

DIRECT: Final = "none"
"""The value of `proxy:` for no proxy at all."""

_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_VARIABLES: Final = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_SCHEMES: Final = ("http", "https")


class BadProxy(ValueError):
    """A proxy that cannot be used. The text completes "proxy ..." and has no credentials."""


@dataclass(frozen=True)
class Proxy:
    """A forward proxy: its address without credentials, and these, which may be empty."""

    url: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


def parse_proxy(text: str, username: str = "", password: str = "") -> Proxy:
    """Return the proxy of an address such as `http://user:password@host:3128` or `host:3128`.

    Raises:
        BadProxy: It is no address of an HTTP proxy.
    """
    address = text.strip() if "://" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise BadProxy("is not the address of a proxy: write it like http://host:3128")
    if parts.scheme not in _SCHEMES:
        raise BadProxy(
            f"has the scheme {parts.scheme}, which is not supported: use an http or https proxy, or"
            " 'proxy: none' in the server's entry"
        )
    shown = f"[{host}]" if ":" in host else host
    url = f"{parts.scheme}://{shown}:{port or _PORTS[parts.scheme]}"
    return Proxy(
        url, username or unquote(parts.username or ""), password or unquote(parts.password or "")
    )


@dataclass(frozen=True)
class Proxies:
    """The proxies of one server.

    Attributes:
        fixed: The proxy of its entry, or None.
        variables: Otherwise the addresses of the environment, by `http` and `https`.
        exceptions: The hosts that `no_proxy` lists.
    """

    fixed: Proxy | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    exceptions: tuple[str, ...] = ()

    def of(self, scheme: str, host: str, port: int | None) -> Proxy | None:
        """Return the proxy for requests to an address, or None.

        Raises:
            BadProxy: The environment has one that cannot be used.
        """
        if self.fixed is not None:
            return self.fixed
        name = _VARIABLES.get(scheme, "")
        text = self.variables.get(name, "")
        if not text or is_loopback_host(host):
            return None
        if _is_excepted(host, port or _PORTS[scheme], self.exceptions):
            return None
        try:
            return parse_proxy(text)
        except BadProxy as error:
            raise BadProxy(f"of the worker's variable {name}_proxy {error}") from None


NO_PROXIES: Final = Proxies()


def of_environment(environment: Mapping[str, str]) -> Proxies:
    """Return the proxies that the variables of an environment name."""

    def variable(name: str) -> str:
        text = environment.get(name)
        # A CGI server would let its clients set HTTP_PROXY, by a header `Proxy`.
        if text is None and not (name == "http_proxy" and "REQUEST_METHOD" in environment):
            text = environment.get(name.upper())
        return (text or "").strip()

    found = {name: variable(f"{name}_proxy") or variable("all_proxy") for name in _SCHEMES}
    listed = re.split(r"[,\s]+", variable("no_proxy").lower())
    return Proxies(variables=found, exceptions=tuple(entry for entry in listed if entry))


def _is_excepted(host: str, port: int, exceptions: tuple[str, ...]) -> bool:
    host = host.lower().strip("[]").rstrip(".")
    return any(_matches(host, port, entry) for entry in exceptions)


def _matches(host: str, port: int, entry: str) -> bool:
    if entry == "*":
        return True
    name, wanted = _split_port(entry)
    if wanted is not None and wanted != port:
        return False
    address = _address(host)
    if address is not None:
        return _is_in(address, name)
    name = name.removeprefix("*").strip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _split_port(entry: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"\[([^]]*)\](?::(\d+))?|([^:]*):(\d+)", entry)
    if match is None:
        return entry, None
    name, port = match[1] or match[3] or "", match[2] or match[4]
    return name, int(port) if port else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address, name: str) -> bool:
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
