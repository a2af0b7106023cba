"""Which URIs pass a filter, whichever way they are written: both planes judge alike. Pure.

A filter is no use if `file:///open/../secret` passes where `file:///secret` does not: servers read
both as the same. So a URI passes only if it does so as it is and as servers may read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from leaseway.wire.patterns import passes

__all__ = ["ALL_URIS", "UriFilter", "as_read"]


class UriFilter:
    """A filter of URIs.

    Args:
        whitelist: Patterns of what passes.
        blacklist: Patterns of what does not, unless the whitelist matches it, too.
    """

    def __init__(self, whitelist: Iterable[str] = (), blacklist: Iterable[str] = ()) -> None:
        self._whitelist = _spellings(whitelist)
        self._blacklist = _spellings(blacklist)

    def allows(self, uri: str) -> bool:
        """Say whether callers may use a URI."""
        if not self._whitelist and not self._blacklist:
            return True
        return all(passes(each, self._whitelist, self._blacklist) for each in _spellings([uri]))


def _spellings(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts as they are and as servers may read them, each once."""
    return tuple(
        dict.fromkeys(
            each for text in texts for each in (text, as_read(text), as_read(text, has_host=False))
        )
    )


def as_read(uri: str, *, has_host: bool = True) -> str:
    """Return a URI as a server may read it: unquoted, its scheme in small letters, no `..` left.

    Args:
        uri: A URI, a template or a pattern of them.
        has_host: Whether what follows `//` is a host, which no `..` leaves; a server with a
            scheme of its own may take it for the first step of a path.
    """
    scheme, colon, rest = unquote(uri).partition(":")
    if not colon:
        return scheme
    path, mark, query = rest.replace("\\", "/").partition("?")
    steps = path.split("/")
    fixed = 2 + has_host if path.startswith("//") else 0  # nothing and nothing and the host
    kept: list[str] = []
    for step in steps[fixed:]:
        if step == "..":
            kept[-1:] = []
        elif step not in ("", "."):
            kept.append(step)
    if len(steps) > fixed and steps[-1] in ("", ".", ".."):
        kept.append("")
    if not fixed and path.startswith("/"):
        kept.insert(0, "")
    return scheme.lower() + colon + "/".join((*steps[:fixed], *kept)) + mark + query


ALL_URIS: Final = UriFilter()
"""Lets everything pass."""
