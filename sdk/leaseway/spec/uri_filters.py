"""Which URIs pass a filter, whichever way they are written: both planes judge alike. Pure.

A filter is no use if `file:///open/../secret` passes where `file:///secret` does not: servers read
both as the same. So a URI passes only if it does so as it is and as servers may read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from leaseway.spec.name_filters import NameFilter, passes

_AFTER_PATH: Final = re.compile(r"[?#]")
_PORTS: Final = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443", "ftp": ":21"}


class UriFilter:
    """A filter of URIs.

    Args:
        whitelist: Patterns of what passes.
        blacklist: Patterns of what does not, unless the whitelist matches it, too.
        also: What has to let it pass as well.
    """

    def __init__(
        self,
        whitelist: Iterable[str] = (),
        blacklist: Iterable[str] = (),
        also: UriFilter | None = None,
    ) -> None:
        self._also = also
        self._whitelist = _spellings(whitelist)
        self._blacklist = _spellings(blacklist)

    @classmethod
    def of(cls, rules: NameFilter) -> UriFilter:
        """Return the filter of URIs that patterns make."""
        also = None if rules.also is None else cls.of(rules.also)
        return cls(rules.whitelist, rules.blacklist, also)

    def allows(self, uri: str) -> bool:
        """Say whether callers may use a URI."""
        if self._also is not None and not self._also.allows(uri):
            return False
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

    Spaces around it are cut off, as URL parsers do.

    Of schemes that everybody reads alike the host is read, too: `file:/a` is `file:///a`, and
    `https://me@HOST:443/` is `https://host/`.

    Args:
        uri: A URI, a template or a pattern of them.
        has_host: Whether what follows `//` is a host, which no `..` leaves; a server with a
            scheme of its own may take it for the first step of a path.
    """
    uri = uri.strip()
    is_file = uri[:5].lower() == "file:"
    # What follows a file's path names no other file, so it is left out.
    text = unquote(_AFTER_PATH.split(uri)[0] if is_file else uri).lstrip()
    scheme, colon, rest = text.partition(":")
    if not colon:
        return scheme
    path, mark, query = rest.replace("\\", "/").partition("?")
    if is_file and path.startswith("/") and not path.startswith("//"):
        path = "//" + path
    steps = path.split("/")
    if path.startswith("//"):
        steps[2] = _host(scheme.lower(), steps[2])
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


def _host(scheme: str, host: str) -> str:
    """Return a host as it is looked up; of a server's own scheme it may be any name, as it is."""
    if scheme == "file":
        return "" if host.lower() == "localhost" else host.lower()
    port = _PORTS.get(scheme)
    if port is None:
        return host
    return host.rpartition("@")[2].lower().removesuffix(port).removesuffix(".")


ALL_URIS: Final = UriFilter()
"""Lets everything pass."""
