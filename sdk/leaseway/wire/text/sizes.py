"""Sizes as people write them: `512MiB`, `2GB`, or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

SIZE_PATTERN: Final = r"[0-9]{1,15}\s?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?"
"""The syntax of `parse_size`, as a regular expression of the whole text."""

_SIZE: Final = re.compile(SIZE_PATTERN)
_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    **{unit + "B": 1000**power for power, unit in enumerate("KMGT", 1)},
    **{unit + "iB": 1024**power for power, unit in enumerate("KMGT", 1)},
}


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit, of powers of 1,024, that has it whole."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]} {unit}"
    return f"{size} B"


def parse_size(text: str) -> int | None:
    """Return a size in bytes, or None if the text is not a size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    unit = match[1] or ""
    return int(text.removesuffix(unit)) * _UNITS[unit or "B"]
