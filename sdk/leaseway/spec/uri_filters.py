"""Which URIs pass a filter, whichever way they are written: both planes judge alike. Pure.

A filter is no use if `file:///open/../secret` passes where `file:///secret` does not: servers read
both as the same. So a URI passes only if it does so as it is and as servers may read it.

RFC 3986 and the URL standard of browsers read some web addresses and files as different things.
Such a URI passes no filter that has patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import unquote

from leaseway.spec.name_filters import NameFilter, passes

_AFTER_PATH: Final = re.compile(r"[?#]")
_PORTS: Final = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443", "ftp": ":21"}
_READ_BY_STANDARD: Final = frozenset({*_PORTS, "file"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_AFTER_HOST: Final = re.compile(r"[/?#\\]")
_STEP_ENDS: Final = re.compile(r"[/\\]")
_DRIVE: Final = re.compile(r"[/\\]*[a-zA-Z]([:|])(?:[/\\]|$)")
_ADDRESS: Final = re.compile(
    r"""
    (?:[^@\[\]]*@)?                                           # a user
    (?:(?P<name>[a-zA-Z0-9._~!$&'()*+,;={}-]+) | \[(?P<six>[0-9a-fA-F:]+)\])
    (?P<port>:(?:0|[1-9][0-9]{0,4}|\*|\{[^{}]*\}))?
    """,
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PART: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_TEMPLATE: Final = re.compile(r"//\{[^{}]*\}")
_TOP_PORT: Final = 65535
_KEPT_LENGTH: Final = 512
"""Characters of the longest URI whose readings are kept for the next call."""


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
        """Return whether callers may use a URI."""
        if self._also is not None and not self._also.allows(uri):
            return False
        if not self._whitelist and not self._blacklist:
            return True
        readings = _readings(uri) if len(uri) <= _KEPT_LENGTH else _read(uri)
        return bool(readings) and all(
            passes(each, self._whitelist, self._blacklist) for each in readings
        )


def _read(uri: str) -> tuple[str, ...]:
    """Return a URI as it is and as servers may read it; nothing where they differ over it."""
    return () if standard_reading(uri) is None else _spellings([uri])


_readings: Final = functools.lru_cache(4_096)(_read)


def _spellings(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts as they are and as servers may read them, each once."""
    return tuple(
        dict.fromkeys(
            each
            for text in texts
            for each in (
                text,
                as_read(text),
                as_read(text, has_host=False),
                standard_reading(text) or text,
            )
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


def standard_reading(uri: str) -> str | None:
    """Return what a web address or a file is by the URL standard, or None where others differ.

    Any other URI is returned as it is. The result is unquoted, and has no `..`, no empty step and
    no fragment.
    """
    text = uri.strip()
    if _CONTROL.search(text):
        return None  # the URL standard leaves out some of them, others do not
    scheme = unquote(text).lstrip().partition(":")[0].lower()
    if scheme not in _READ_BY_STANDARD:
        return text
    written, _, rest = text.partition(":")
    if written.lower() != scheme:
        return None
    if scheme == "file" and rest.startswith("/") and rest[1:2] not in ("/", "\\"):
        rest = "//" + rest
    if not rest.startswith("//"):
        return None
    if scheme == "file" and _TEMPLATE.fullmatch(rest):
        return text  # `file://{path}` stands for a path
    end = _AFTER_HOST.search(rest, 2)
    at = end.start() if end else len(rest)
    address, tail = rest[2:at], rest[at:]
    if tail.startswith("\\") or not _is_plain(scheme, address):
        return None
    path = _AFTER_PATH.split(tail)[0]
    read = _read_path(path, is_file=scheme == "file")
    if read is None:
        return None
    query = tail[len(path) :].partition("#")[0] if scheme != "file" else ""
    return f"{scheme}://{_host(scheme, address)}{read}{unquote(query)}"


def _is_plain(scheme: str, address: str) -> bool:
    """Return whether every reader takes the same host and port from what follows `//`."""
    if scheme == "file":
        return address.lower() in ("", "localhost")  # most readers pass over any other host
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    port = (found["port"] or ":")[1:]
    if port.isdigit() and int(port) > _TOP_PORT:
        return False
    if found["six"] is not None:
        try:
            return IPv6Address(found["six"]).compressed == found["six"].lower()
        except AddressValueError:
            return False
    parts = found["name"].removesuffix(".").split(".")
    if not _NUMBER.fullmatch(parts[-1]):
        return True
    # The standard reads `0x7f.1` and `2130706433` as 127.0.0.1.
    return len(parts) == 4 and all(_PART.fullmatch(each) and int(each) < 256 for each in parts)


def _read_path(path: str, *, is_file: bool) -> str | None:
    """Return a path without its `..`, which are taken out before it is unquoted."""
    steps = _STEP_ENDS.split(path)[1:]
    plain = [re.sub("%2e", ".", step, flags=re.IGNORECASE) for step in steps]
    drive = _DRIVE.match(path) if is_file else None
    if drive and (drive[1] == "|" or ".." in plain):
        return None  # no `..` leaves a drive of Windows
    kept: list[str] = []
    for step in plain:
        if step == "..":
            kept[-1:] = []
        elif step != ".":
            kept.append(step)
    named = [unquote(step) for step in kept if step]
    ends_open = bool(named) and plain[-1] in ("", ".", "..")
    return "/" + "/".join(named) + "/" * ends_open


ALL_URIS: Final = UriFilter()
"""Lets everything pass."""
