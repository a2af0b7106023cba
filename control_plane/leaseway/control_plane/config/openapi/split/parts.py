"""Reads the other documents of one that is split: files in its folder, or addresses of its origin.

A reference is no way out: neither to other folders and hosts, nor from a file to the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from leaseway.control_plane.config.openapi.servers import origin
from leaseway.control_plane.config.openapi.split.bundling import NotRead
from leaseway.control_plane.config.tree.files import (
    NotRegular,
    read_regular,
)
from leaseway.wire.channels.fetching import FetchError
from leaseway.wire.file_stamp import FileStamp, file_stamp

MAX_FETCHED: Final = 100
"""Other documents that are fetched for one."""

_BUNDLE: Final = "bundle the documents into one"


class Folder:
    """The files of a document's folder.

    Args:
        limit: Bytes that all others may have together.
        parse: Returns the content of a file's bytes. It raises ValueError.

    Attributes:
        seen: The files that were looked for, as they were then.
    """

    def __init__(self, document: Path, limit: int, parse: Callable[[bytes], Any]) -> None:
        self.seen: dict[Path, FileStamp] = {}
        self._folder = document.parent.resolve()
        self._left = limit
        self._parse = parse

    def read(self, address: str) -> Any:
        """Return the content of a file.

        Raises:
            NotRead: It is elsewhere, or it cannot be read.
        """
        parts = urlsplit(address)
        if parts.scheme != "file" or parts.netloc:
            raise NotRead(f"and a file's references lead to files beside it only; {_BUNDLE}")
        path = Path(unquote(parts.path))
        try:
            if not path.resolve().is_relative_to(self._folder):
                raise NotRead(f"which is outside of the folder {self._folder}; {_BUNDLE}")
            self.seen[path] = file_stamp(path)
            data = read_regular(path, self._left + 1)
        except NotRegular:
            raise NotRead("which is not a regular file") from None
        except (OSError, ValueError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or "its name is not one of a file"
            raise NotRead(f"which can't be read: {reason.lower()}") from None
        self._left -= len(data)
        return _parsed(data, self._left, self._parse)


class _Outage(NotRead):
    """A document that another try may bring."""


class Origin:
    """The documents of one scheme, host and port.

    Args:
        document: The address of the document.
        limit: Bytes that all others may have together.
        timeout: Seconds for all of them.
        fetch: Returns the bytes of an address within a limit and seconds. It raises FetchError.
        parse: Returns the content of a document's bytes. It raises ValueError.

    Attributes:
        fetched: The bytes of each document, in order.
        outage: Why the last one that is needed and that another try may bring was not read; empty
            if none.
    """

    def __init__(
        self, document: str, limit: int, timeout: float,
        fetch: Callable[[str, int, float], bytes], parse: Callable[[bytes], Any],
    ) -> None:  # fmt: skip
        self.fetched: list[bytes] = []
        self.outage = ""
        self._origin = origin(document)
        self._left = limit
        self._until = time.monotonic() + timeout
        self._until_optional = self._until - timeout / 2
        self._fetch = fetch
        self._parse = parse

    def read(self, address: str) -> Any:
        """Return the content of an address.

        Raises:
            NotRead: It is elsewhere, or it cannot be fetched.
        """
        try:
            return self._content(address, self._until)
        except _Outage as error:
            self.outage = f"it refers to {address[:256]}, {error}"
            raise

    def read_optional(self, address: str) -> Any:
        """Return the content of an address that is not needed; half of the time is not for those.

        Raises:
            NotRead: It is elsewhere, or it cannot be fetched.
        """
        return self._content(address, self._until_optional)

    def _content(self, address: str, until: float) -> Any:
        if self._origin is None or origin(address) != self._origin:
            raise NotRead(f"which is on another host than the document; {_BUNDLE}")
        if len(self.fetched) >= MAX_FETCHED:
            raise NotRead(f"and more than {MAX_FETCHED} documents are not fetched; {_BUNDLE}")
        seconds = until - time.monotonic()
        if seconds <= 0:
            raise _Outage("and there was no time left to fetch it")
        try:
            data = self._fetch(address, self._left + 1, seconds)
        except FetchError as error:
            reason = f"which can't be fetched: {error}"
            raise (_Outage if error.is_outage else NotRead)(reason) from None
        self.fetched.append(data)
        self._left -= len(data)
        return _parsed(data, self._left, self._parse)


def _parsed(data: bytes, left: int, parse: Callable[[bytes], Any]) -> Any:
    if left < 0:
        raise NotRead("and together the documents are too large")
    try:
        return parse(data)
    except ValueError:
        raise NotRead("which is neither JSON nor YAML in UTF-8") from None
