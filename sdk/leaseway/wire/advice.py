"""What follows an error's message, which depends on who reads it.

An error's message says what happened, to everybody. What can be done about it is metadata: a person
at a terminal has commands, and may operate the system; behind an MCP client a model reads, whose
user has none of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, assert_never

ADVICE: Final = "advice"
"""Metadata of an error: what an operator does about it, in sentences."""
LISTED_BY: Final = "listed_by"
"""Metadata of an error about an unknown name without similar ones: the command's words that list
the known ones, such as `resources SERVER`."""
LOGIN_PAGE: Final = "url"
"""Metadata of an error of a missing login: where a person logs in. Whoever has the address can log
in, so that only who gets the error reads it."""


class Reader(Enum):
    """Who reads an error: at a terminal, where there are commands, or behind an MCP client."""

    TERMINAL = auto()
    MODEL = auto()


def for_operators(advice: str) -> dict[str, str]:
    """Return the metadata of an error with what operators do about it; none without advice."""
    return {ADVICE: advice} if advice else {}


def advice_for(reader: Reader, metadata: Mapping[str, str]) -> str:
    """Return what follows an error's message: what its reader can do, after a space, or ""."""
    words = metadata.get(LISTED_BY)
    advice = metadata.get(ADVICE)
    page = metadata.get(LOGIN_PAGE)
    match reader:
        case Reader.TERMINAL:
            where = f" See `leaseway {words}`." if words else ""
            page = f" Or open {page}" if page else ""
            return f"{where} {advice}{page}" if advice else where
        case Reader.MODEL:
            if page:
                return f" Tell the person you work for to log in there, then call again: {page}"
            if not words:
                return ""
            noun = "URI" if words.startswith("resources") else "name"
            return f" Use a {noun} that is listed."
        case _:
            assert_never(reader)
