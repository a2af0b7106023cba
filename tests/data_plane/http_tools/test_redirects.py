"""Which redirects of an API are followed, by where its host and the target are."""

from __future__ import annotations

import pytest
from yarl import URL

from leaseway.data_plane.kinds.http_api.redirects import refusal

ADDRESSES = {
    "api.example": ["8.8.8.8"],
    "other.example": ["2001:4860:4860::8888"],
    "both.example": ["8.8.8.8", "10.0.0.1"],
    "wiki.corp": ["10.0.0.2"],
    "localhost": ["127.0.0.1"],
    "metadata": ["169.254.169.254"],
}


async def look_up(host: str) -> list[str]:
    if host not in ADDRESSES:
        raise OSError("unknown")
    return ADDRESSES[host]


@pytest.mark.parametrize(
    ("start", "target", "why"),
    [
        ("http://api.example", "http://other.example", ""),
        ("http://api.example", "http://both.example", "inside this network"),
        ("http://api.example", "http://wiki.corp", "inside this network"),
        ("http://api.example", "http://localhost", "inside this network"),
        ("http://api.example", "http://metadata", "inside this network"),
        ("http://wiki.corp", "http://both.example", ""),
        ("http://wiki.corp", "http://localhost", "inside this network"),
        ("http://localhost", "http://wiki.corp", ""),
        ("http://localhost", "http://metadata", "inside this network"),
        ("http://metadata", "http://metadata/x", ""),
        ("http://unknown", "http://wiki.corp", "inside this network"),
        ("http://api.example", "http://unknown", ""),
        ("https://api.example", "http://api.example", "without encryption"),
        ("https://api.example", "https://other.example", ""),
    ],
)
async def test_a_redirect_leads_no_further_inside_than_the_api_is_and_stays_encrypted(
    start: str, target: str, why: str
) -> None:
    assert await refusal(URL(start), URL(start), URL(target), look_up) == why
