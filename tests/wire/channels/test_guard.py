"""How far inside networks a redirect may lead: no further than the configured address is."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from tests.conftest import BOUND
from yarl import URL

from leaseway.wire.channels.fetching import Guard, LeadsInside, leads_inside

ADDRESSES = {
    "api.example": ["8.8.8.8"],
    "other.example": ["2001:4860:4860::8888"],
    "both.example": ["8.8.8.8", "10.0.0.1"],
    "wiki.corp": ["10.0.0.2"],
    "localhost": ["127.0.0.1"],
    "metadata": ["169.254.169.254"],
}


def find(host: str, port: int, family: int) -> list[tuple[int, str]]:
    if host not in ADDRESSES:
        raise OSError("unknown")
    return [(socket.AF_INET, address) for address in ADDRESSES[host]]


CASES = pytest.mark.parametrize(
    ("start", "target", "is_refused"),
    [
        ("http://api.example", "http://other.example", False),
        ("http://api.example", "http://both.example", True),
        ("http://api.example", "http://wiki.corp", True),
        ("http://api.example", "http://localhost", True),
        ("http://api.example", "http://metadata", True),
        ("http://wiki.corp", "http://both.example", False),
        ("http://wiki.corp", "http://localhost", True),
        ("http://localhost", "http://wiki.corp", False),
        ("http://localhost", "http://metadata", True),
        ("http://metadata", "http://metadata/x", False),
        ("http://unknown", "http://wiki.corp", True),
    ],
)


@CASES
async def test_a_connection_leads_no_further_inside_than_the_configured_address(
    start: str, target: str, is_refused: bool
) -> None:
    guard = Guard([URL(start)], find=find)
    try:
        await guard.admit(URL(target), proxied=False)
        await guard.look_up(str(URL(target).host), 80, socket.AF_UNSPEC)
    except LeadsInside:
        assert is_refused
    else:
        assert not is_refused


@CASES
async def test_a_name_that_a_proxy_looks_up_is_checked_as_it_is_known_here(
    start: str, target: str, is_refused: bool
) -> None:
    guard = Guard([URL(start)], find=find)
    try:
        await guard.check_name(URL(target))
    except LeadsInside:
        assert is_refused
    else:
        assert not is_refused


async def test_a_name_that_only_a_proxy_knows_is_left_to_it() -> None:
    guard = Guard([URL("http://api.example")], find=find)
    await guard.check_name(URL("http://unknown"))


async def test_a_name_that_changes_its_address_is_checked_at_each_connection() -> None:
    """It would pass a check that is made before, and be connected to the second address."""
    answers = ["8.8.8.8", "169.254.169.254"]

    def rebinding(host: str, port: int, family: int) -> list[tuple[int, str]]:
        if host == "api.example":
            return find(host, port, family)
        return [(socket.AF_INET, answers.pop(0) if len(answers) > 1 else answers[0])]

    guard = Guard([URL("http://api.example")], find=rebinding)
    target = URL("http://rebound.example")
    await guard.check_name(target)
    await guard.admit(target, proxied=False)
    async with asyncio.timeout(BOUND), aiohttp.ClientSession(connector=guard.connector()) as http:
        with pytest.raises(aiohttp.ClientConnectorDNSError) as refused:
            await http.get(target)
    assert str(leads_inside(refused.value)) == "rebound.example"
