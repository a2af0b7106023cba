"""Which requests do not stay encrypted where they are sent on."""

from __future__ import annotations

import pytest

from leaseway.wire.channels.encryption import leaves_encryption


@pytest.mark.parametrize(
    ("source", "target", "leaves"),
    [
        ("https", "http", True),
        ("https", "ws", True),
        ("https", "ftp", True),
        ("wss", "http", True),
        ("https", "https", False),
        ("wss", "https", False),
        ("http", "http", False),
        ("http", "https", False),
    ],
)
def test_only_what_was_encrypted_leaves_encryption(source: str, target: str, leaves: bool) -> None:
    assert leaves_encryption(source, target) == leaves
