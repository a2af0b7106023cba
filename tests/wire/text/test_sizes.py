"""Sizes with units."""

from __future__ import annotations

import pytest

from leaseway.wire.text.sizes import parse_size, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("7", 7),
        ("7B", 7),
        ("2 GB", 2_000_000_000),
        ("512MiB", 512 << 20),
        ("1KiB", 1024),
        ("3TB", 3 * 1000**4),
        ("123456789012345", 123_456_789_012_345),
    ],
)
def test_a_size_is_in_its_unit_or_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5GB", "-1", "2gb", "1  KB", "1PB", "9" * 16, "٣"])
def test_other_texts_are_not_sizes(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1, "1 B"), (1536, "1536 B"), (1 << 20, "1 MiB"), (1 << 50, "1024 TiB")],
)
def test_a_size_is_shown_whole_in_the_largest_unit_that_has_it(size: int, text: str) -> None:
    assert size_text(size) == text
    assert parse_size(text) == size
