"""The hosts and addresses that `http_get` may connect to (SSRF protection). Pure.

Only public addresses and those of the allowed networks may be connected to. Addresses that embed
another one (IPv4-mapped, 6to4, NAT64, Teredo) count as not public.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leaseway.spec.kinds.kit import host_fault

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # metadata and name server of a cloud, though public
        "192.0.0.0/24",
        "192.88.99.0/24",
        "::/96",
        "::ffff:0:0/96",
        "::ffff:0:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)


def is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return not _is_in(address, _NOT_PUBLIC)


@dataclass(frozen=True)
class AllowedHosts:
    """The allowed hosts.

    Attributes:
        names: Patterns such as `api.example.com` and `*.example.com`; empty means any name.
        networks: The allowed networks, in addition to the public internet.
    """

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def __str__(self) -> str:
        names = self.names or ("any public host",)
        return ", ".join((*names, *map(str, self.networks)))

    def allows_name(self, host: str) -> bool:
        """Return whether a URL may have this host; its addresses are checked separately."""
        address = parse_address(host)
        if address is not None:
            return self._is_in_network(address) or (not self.names and is_public(address))
        host = host.rstrip(".").lower()
        return not self.names or any(_matches(host, pattern) for pattern in self.names)

    def allows_address(self, address: Address) -> bool:
        return is_public(address) or self._is_in_network(address)

    def _is_in_network(self, address: Address) -> bool:
        return _is_in(address, self.networks)


def parse_hosts(entries: Iterable[str]) -> AllowedHosts:
    """Parse names, patterns, addresses and networks; raises `ValueError` for any other entry."""
    names: list[str] = []
    networks: list[Network] = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
            continue
        except ValueError:
            pass
        fault = host_fault(entry)
        if fault:
            raise ValueError(fault)
        names.append(entry.lower().rstrip("."))
    return AllowedHosts(tuple(names), tuple(networks))


def parse_address(host: str) -> Address | None:
    """Return a URL's host as an address, or None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def _matches(host: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return host == pattern
