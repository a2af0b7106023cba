"""Filters of URIs, independent of their spelling. Pure; both planes use them.

A filter that rejects `file:///secret` must reject `file:///open/../secret` too, because servers
treat both as the same. So a URI passes only if it passes as written and as servers may read it.

RFC 3986 and the URL standard of browsers interpret some web addresses and file URIs differently.
Such a URI passes no filter that has patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import unquote

from leaseway.spec.filters.names import NameFilter, passes

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
_MAX_PORT: Final = 65535
_MAX_CACHED_LENGTH: Final = 512
"""Characters of the longest URI whose readings are cached."""


class UriFilter:
    """A filter of URIs.

    Args:
        whitelist: Patterns of URIs that pass.
        blacklist: Patterns of URIs that do not pass, unless the whitelist matches them too.
        also: Another filter that URIs must pass too.
    """

    def __init__(
        self,
        whitelist: Iterable[str] = (),
        blacklist: Iterable[str] = (),
        also: UriFilter | None = None,
    ) -> None:
        self._also = also
        self._whitelist = spellings(whitelist)
        self._blacklist = spellings(blacklist)

    @classmethod
    def from_names(cls, rules: NameFilter) -> UriFilter:
        """Return the filter of URIs with the patterns of a name filter."""
        also = None if rules.also is None else cls.from_names(rules.also)
        return cls(rules.whitelist, rules.blacklist, also)

    def allows(self, uri: str) -> bool:
        """Return whether callers may use a URI."""
        if self._also is not None and not self._also.allows(uri):
            return False
        if not self._whitelist and not self._blacklist:
            return True
        found = readings(uri)
        return bool(found) and all(
            passes(reading, self._whitelist, self._blacklist) for reading in found
        )


def readings(uri: str) -> tuple[str, ...]:
    """Return a URI as written and as servers may read it; empty if readers disagree."""
    return _readings(uri) if len(uri) <= _MAX_CACHED_LENGTH else _read(uri)


def _read(uri: str) -> tuple[str, ...]:
    return () if standard_reading(uri) is None else spellings([uri])


_readings: Final = functools.lru_cache(4_096)(_read)


def spellings(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts as written and as servers may read them, without duplicates."""
    return tuple(
        dict.fromkeys(
            reading
            for text in texts
            for reading in (
                text,
                as_read(text),
                as_read(text, has_host=False),
                standard_reading(text) or text,
            )
        )
    )


def as_read(uri: str, *, has_host: bool = True) -> str:
    """Return a URI as a server may read it: unquoted, with a lower-case scheme and no `..`.

    The host is normalized for common schemes: `file:/a` becomes `file:///a`, and
    `https://me@HOST:443/` becomes `https://host/`.

    Args:
        uri: A URI, a URI template or a pattern.
        has_host: Whether the part after `//` is a host, which `..` cannot remove. A server with its
            own scheme may treat it as the first part of a path.
    """
    uri = uri.strip()
    is_file = uri[:5].lower() == "file:"
    # The query and fragment of a file URI do not change the file.
    text = unquote(_AFTER_PATH.split(uri)[0] if is_file else uri).lstrip()
    scheme, colon, rest = text.partition(":")
    if not colon:
        return scheme
    path, mark, query = rest.replace("\\", "/").partition("?")
    if is_file and path.startswith("/") and not path.startswith("//"):
        path = "//" + path
    parts = path.split("/")
    if path.startswith("//"):
        parts[2] = _host(scheme.lower(), parts[2])
    fixed = 2 + has_host if path.startswith("//") else 0  # two empty parts and the host
    kept: list[str] = []
    for part in parts[fixed:]:
        if part == "..":
            kept[-1:] = []
        elif part not in ("", "."):
            kept.append(part)
    if len(parts) > fixed and parts[-1] in ("", ".", ".."):
        kept.append("")
    if not fixed and path.startswith("/"):
        kept.insert(0, "")
    return scheme.lower() + colon + "/".join((*parts[:fixed], *kept)) + mark + query


def _host(scheme: str, host: str) -> str:
    """Return a normalized host; for a server's own scheme, the host unchanged."""
    if scheme == "file":
        return "" if host.lower() == "localhost" else host.lower()
    port = _PORTS.get(scheme)
    if port is None:
        return host
    return host.rpartition("@")[2].lower().removesuffix(port).removesuffix(".")


def standard_reading(uri: str) -> str | None:
    """Return a web address or file URI as the URL standard reads it, or None if others disagree.

    Other URIs are returned unchanged. The result is unquoted and has no `..`, no empty part and no
    fragment.
    """
    text = uri.strip()
    if _CONTROL.search(text):
        return None  # the URL standard removes some of them, other parsers do not
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
    """Return whether all parsers read the same host and port from the part after `//`."""
    if scheme == "file":
        return address.lower() in ("", "localhost")  # most parsers ignore any other host
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    port = (found["port"] or ":")[1:]
    if port.isdigit() and int(port) > _MAX_PORT:
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
    return len(parts) == 4 and all(_PART.fullmatch(part) and int(part) < 256 for part in parts)


def _read_path(path: str, *, is_file: bool) -> str | None:
    """Return a path without its `..`, which are resolved before unquoting."""
    parts = _STEP_ENDS.split(path)[1:]
    plain = [re.sub("%2e", ".", part, flags=re.IGNORECASE) for part in parts]
    drive = _DRIVE.match(path) if is_file else None
    if drive and (drive[1] == "|" or ".." in plain):
        return None  # `..` cannot leave a Windows drive
    kept: list[str] = []
    for part in plain:
        if part == "..":
            kept[-1:] = []
        elif part != ".":
            kept.append(part)
    named = [unquote(part) for part in kept if part]
    ends_open = bool(named) and plain[-1] in ("", ".", "..")
    return "/" + "/".join(named) + "/" * ends_open


ALL_URIS: Final = UriFilter()
"""Passes every URI."""
