"""Sizes as people write them: `512MiB`, `2GB`, or a number of bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

SIZE_PATTERN: Final = r"[0-9]{1,15}\s?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?"
"""What `parse_size` takes, as a regular expression of the whole text."""

_SIZE: Final = re.compile(SIZE_PATTERN)
_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    **{unit + "B": 1000**power for power, unit in enumerate("KMGT", 1)},
    **{unit + "iB": 1024**power for power, unit in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int | None:
    """Return how many bytes a text means, or None where it is no size."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    unit = found[1] or ""
    return int(text.removesuffix(unit)) * _UNITS[unit or "B"]
