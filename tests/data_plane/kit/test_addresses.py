"""The allowed hosts and addresses of `http_get`."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.kit.addresses import AllowedHosts, is_public, parse_hosts

PRIVATE_V4 = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]


@given(st.sampled_from(PRIVATE_V4), st.integers(0, 2**32 - 1))
def test_no_private_address_is_public_in_any_embedding(
    network: ipaddress.IPv4Network, number: int
) -> None:
    address = network[number % network.num_addresses]
    bits = int(address)
    assert not is_public(address)
    for embedding in (
        0xFFFF << 32 | bits,  # ::ffff:a.b.c.d
        bits,  # ::a.b.c.d
        0x64FF9B << 96 | bits,  # NAT64
        0x64FF9B0001 << 80 | bits,  # local NAT64
        0x2002 << 112 | bits << 80,  # 6to4
        0x20010000 << 96 | (bits ^ 0xFFFFFFFF),  # Teredo
    ):
        assert not is_public(ipaddress.IPv6Address(embedding))


@pytest.mark.parametrize(
    "text",
    [
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "168.63.129.16",
        "255.255.255.255",
        "2001:db8::1",
        "192.0.0.192",
        "64:ff9b::8.8.8.8",
    ],
)
def test_special_addresses_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::1"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_names_match_whole_labels() -> None:
    hosts = parse_hosts(["api.example.com", "*.example.org", "10.0.0.0/8"])
    assert hosts.allows_name("API.example.com.")
    assert hosts.allows_name("a.b.example.org")
    assert hosts.allows_name("10.1.2.3")
    for host in ("example.com", "xapi.example.com", "example.org", "evilexample.org", "8.8.8.8"):
        assert not hosts.allows_name(host)
    assert str(hosts) == "api.example.com, *.example.org, 10.0.0.0/8"


def test_without_names_all_names_and_public_addresses_are_allowed() -> None:
    assert AllowedHosts().allows_name("example.com")
    assert AllowedHosts().allows_name("8.8.8.8")
    assert not AllowedHosts().allows_name("127.0.0.1")
    assert not AllowedHosts().allows_name("[::1]")


@pytest.mark.parametrize("entry", ["", "*", "*.", "http://x", "a b", "a/b", "a..b", "x:80", "**.a"])
def test_an_invalid_host_is_rejected(entry: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        parse_hosts([entry])
