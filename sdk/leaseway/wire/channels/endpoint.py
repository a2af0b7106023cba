"""Addresses in the form HOST:PORT, and which of them are local to this machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

ADDRESS_VARIABLE: Final = "LEASEWAY_ADDRESS"
"""The environment variable with the address of the control plane."""
DEFAULT_ADDRESS = "127.0.0.1:7600"
"""The default address of the control plane, for its listener and for clients.

See design.md#command-line.
"""

NO_WEB_PROXY: Final = (("grpc.enable_http_proxy", 0),)
"""Options of a gRPC channel that `http_proxy` and `https_proxy` do not concern: otherwise gRPC
tunnels each connection through these proxies, also one to this machine's loopback."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on


@dataclass(frozen=True)
class Endpoint:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it means all addresses of this machine, so that clients cannot connect to it."""
        return self.host in _WILDCARDS

    @property
    def reachable(self) -> Endpoint:
        """The address by which this machine connects to the listener."""
        return Endpoint(_WILDCARDS.get(self.host, self.host), self.port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback_host(self.host)


def is_loopback_host(host: str) -> bool:
    """Return whether a name or address, which may be in brackets, leads to this machine alone."""
    host = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_protected(address: str) -> bool:
    """Return whether a web address is `https`, or `http` on this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    is_local = parts.scheme == "http" and is_loopback_host(host)
    return bool(host) and (parts.scheme == "https" or is_local)


_HOST: Final = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?"
)
"""A host name or address with an optional port; an IPv6 address is in brackets."""


def host_in(header: str) -> str | None:
    """Return the host of `HOST[:PORT]` in lower case, without brackets; None for anything else.

    Parsers of URLs accept far more, such as a fragment, in which a browser or proxy may see another
    host.
    """
    match = _HOST.fullmatch(header)
    return match["name"].strip("[]").lower() if match is not None else None


_ORIGIN: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[^/?#@*\\\s]*)/?")
_PORTS: Final = {"http": ":80", "https": ":443"}


def origin_in(text: str) -> str | None:
    """Return the origin of a page as its browser sends it; None for what is no origin.

    Pages of applications have schemes of their own, such as `app://obsidian.md`, and local files
    `file://` or `null`.
    """
    text = text.lower()
    if text == "null":
        return text
    match = _ORIGIN.fullmatch(text)
    if match is None:
        return None
    scheme, host = match["scheme"], match["host"]
    if scheme in _PORTS and host_in(host) is None:
        return None
    return f"{scheme}://{host.removesuffix(_PORTS.get(scheme, ''))}"


def is_local_host(header: str) -> bool:
    """Return whether a `Host` header has a local name, which foreign DNS records cannot forge."""
    host = host_in(header)
    if host is None:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


_NO_HOST: Final = re.compile(r"[\s\x00-\x1f\x7f/?#@*,;\[\]'\"\\]")
"""Characters that neither a name nor an address has."""
_TARGET: Final = re.compile(r"(?P<kind>dns|ipv4|ipv6|xds):(?P<rest>.*:[0-9]+)")
"""What other clients of gRPC take besides URLs."""
_SOCKET: Final = re.compile(r"unix(-abstract)?:(?![0-9]+$)")
_USER: Final = re.compile(r"(^|://).*@", re.DOTALL)
"""All that may be a name and a password: these may have slashes and spaces, too."""


def parse_endpoint(text: str) -> Endpoint:
    """Parse `HOST:PORT`, `[IPV6]:PORT`; spaces around it are ignored.

    Raises:
        ValueError: The text has another form; the message names the error and no password.
    """
    text = text.strip()
    shown = _USER.sub(r"\1", text)
    if "@" in text:
        raise ValueError(
            f"'{shown}' had a name or a password before its '@'; write HOST:PORT alone, and set "
            "LEASEWAY_KEY"
        )
    if text.startswith("/") or _SOCKET.match(text):
        raise ValueError(
            f"'{shown}' is not HOST:PORT; control planes listen on no Unix sockets: write, for "
            "example, 127.0.0.1:7600"
        )
    scheme, separator, rest = shown.partition("://")
    if separator:
        authority = rest.lstrip("/").partition("/")[0]
        example = authority if ":" in authority.rpartition("]")[2] else f"{authority}:7600"
        raise ValueError(
            f"'{shown}' is not HOST:PORT; write it without '{scheme}://' and a path, as {example}"
        )
    target = _TARGET.fullmatch(shown)
    if target is not None:
        raise ValueError(
            f"'{shown}' is not HOST:PORT; write it without '{target['kind']}:', as {target['rest']}"
        )
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"'{shown}' is not HOST:PORT; write, for example, 127.0.0.1:7600")
    if not host:
        raise ValueError(
            f"'{text}' names no host; write 127.0.0.1:{port}, or 0.0.0.0:{port} for all"
        )
    if _is_ipv6(host):
        raise ValueError(f"'{text}' is an IPv6 address without brackets; write [{host}]:{port}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if _NO_HOST.search(host) or (":" in host and not _is_ipv6(host)):
        raise ValueError(
            f"'{shown}' is not HOST:PORT, with the name or the address of one machine; write, for "
            "example, 127.0.0.1:7600"
        )
    return Endpoint(host, int(port))


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


@dataclass(frozen=True)
class Endpoints:
    """One address or several, of which one leads; `str()` is what `parse_endpoints` reads."""

    first: Endpoint
    others: tuple[Endpoint, ...] = ()

    @property
    def reachable(self) -> Endpoints:
        """The addresses by which this machine connects to them."""
        first, *others = (endpoint.reachable for endpoint in self)
        return Endpoints(first, tuple(others))

    def __iter__(self) -> Iterator[Endpoint]:
        yield from (self.first, *self.others)

    def __str__(self) -> str:
        return ",".join(map(str, self))


def parse_endpoints(text: str) -> Endpoints:
    """Parse the addresses of control planes: one, or several separated by commas.

    Raises:
        ValueError: One of them is invalid, or names port 0, on which nobody listens.
    """
    split = [] if "@" in text else text.split(",")  # a password may have a comma
    parts = [part for part in split if part.strip()] or [text]
    first, *others = map(parse_endpoint, parts)
    if any(endpoint.port == 0 for endpoint in (first, *others)):
        raise ValueError(f"'{text}' names port 0, on which no server listens; write the real one")
    return Endpoints(first, tuple(others))


_RESOLVERS: Final = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")


def grpc_target(address: str) -> str:
    """Return a HOST:PORT as gRPC reads it: it takes `dns:7600` for the name `7600`."""
    return f"dns:///{address}" if address.partition(":")[0].lower() in _RESOLVERS else address
