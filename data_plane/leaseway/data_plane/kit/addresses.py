"""Which hosts and addresses a URL may lead to (SSRF). Pure.

Only addresses of the public internet may be connected to, and those of networks that were named.
Whatever carries another address inside (IPv4-mapped, 6to4, NAT64, Teredo) counts as not public.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leaseway.spec.builtin import host_fault

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEVER: Final[tuple[Network, ...]] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # metadata and name server of one cloud, though public
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
    return not any(address in network for network in _NEVER if network.version == address.version)


@dataclass(frozen=True)
class Hosts:
    """The hosts that may be asked.

    Attributes:
        names: Patterns such as `api.example.com` and `*.example.com`; none means any name.
        networks: What may be connected to besides the public internet.
    """

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def __str__(self) -> str:
        names = self.names or ("any public host",)
        return ", ".join((*names, *map(str, self.networks)))

    def permits_name(self, host: str) -> bool:
        """Return whether a URL's host may be asked at all; its addresses are another question."""
        address = as_address(host)
        if address is not None:
            return self._is_named(address) or (not self.names and is_public(address))
        host = host.rstrip(".").lower()
        return not self.names or any(_matches(host, pattern) for pattern in self.names)

    def permits_address(self, address: Address) -> bool:
        return is_public(address) or self._is_named(address)

    def _is_named(self, address: Address) -> bool:
        return any(address in each for each in self.networks if each.version == address.version)


def read_hosts(entries: Iterable[str]) -> Hosts:
    """Return what a list of names, patterns, addresses and networks means.

    Raises:
        ValueError: An entry is none of them.
    """
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
    return Hosts(tuple(names), tuple(networks))


def as_address(host: str) -> Address | None:
    """Return a URL's host as an address, or None where it is a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _matches(host: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) > len(pattern) - 1
    return host == pattern
