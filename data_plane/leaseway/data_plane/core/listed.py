"""What a server lists besides tools, as it sent it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NO_OFFERS", "Offers"]


@dataclass(frozen=True)
class Offers:
    """What a server offers besides tools: definitions as it sent them, in its order.

    Attributes:
        prompts: Its prompts, one of each name.
        resources: Its resources, one of each URI.
        templates: Its templates of resources, one of each template.
        gaps: Which lists could not be read and why, a sentence each; such a list is the one
            read before, or empty.
        left_out: What of any list, that of its tools included, is left out, a sentence each.
    """

    prompts: tuple[bytes, ...] = ()
    resources: tuple[bytes, ...] = ()
    templates: tuple[bytes, ...] = ()
    gaps: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


NO_OFFERS: Final = Offers()
