"""What names an image, for both planes. Pure."""

from __future__ import annotations

import re
from typing import Final

MAX_IMAGE: Final = 1_024
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")


def image_fault(text: str) -> str | None:
    """Return what is wrong with an image's name, as the end of a sentence, or None."""
    if len(text) <= MAX_IMAGE and _IMAGE.fullmatch(text):
        return None
    return (
        "must be the name of an image, such as registry.example/team/server:1.2, but is"
        f" {text[:100]!r}."
    )
