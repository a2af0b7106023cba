"""Which redirects of an API stay encrypted."""

from __future__ import annotations

import pytest
from yarl import URL

from leaseway.data_plane.kinds.http_api.redirects import leaves_encryption


@pytest.mark.parametrize(
    ("current", "target", "leaves"),
    [("https", "http", True), ("https", "https", False), ("http", "http", False)],
)
def test_a_redirect_does_not_lead_out_of_encryption(
    current: str, target: str, leaves: bool
) -> None:
    addresses = URL(f"{current}://api.example"), URL(f"{target}://other.example")
    assert leaves_encryption(*addresses) == leaves
