"""Reads OpenAPI documents from files and addresses, and caches them.

Reading may block on the disk or network: configurations are parsed in a thread.
"""

from __future__ import annotations

import json
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.openapi.operations import (
    BadDocument,
    Imported,
    OperationSelection,
    import_document,
)
from leaseway.control_plane.config.tree.yaml_tree import BadText, load_plain
from leaseway.wire.bounds import MIB

MAX_DOCUMENT: Final = 64 * MIB
"""Bytes of a document."""

_TIMEOUT: Final = 15.0
_MAX_AGE: Final = 300.0
"""Seconds until a document is fetched from an address again."""
_MAX_CACHED: Final = 16


class DocumentUnavailable(Exception):
    """A document that cannot be read or used; the message is the reason, as a sentence."""


@dataclass(frozen=True)
class OpenApiDocument:
    """An imported document; `stale` is the reason if this is only its previous content."""

    imported: Imported
    stale: str = ""


class Documents:
    """A cache of documents by path or address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._read: dict[str, tuple[Hashable, float, Any]] = {}
        self._imported: dict[tuple[str, OperationSelection], tuple[Hashable, Imported]] = {}

    def load(self, source: str, selection: OperationSelection) -> OpenApiDocument:
        """Return a document's tools, by its absolute path or its address.

        Raises:
            DocumentUnavailable: It cannot be read and is not cached, or it is no document.
        """
        with self._lock:
            version, content, stale = self._document(source)
            known = self._imported.get((source, selection))
            if known is None or known[0] != version:
                try:
                    address = source if is_address(source) else ""
                    known = version, import_document(content, selection, address)
                except BadDocument as error:
                    raise DocumentUnavailable(str(error)) from None
                self._keep(self._imported, (source, selection), known)
            return OpenApiDocument(known[1], stale)

    def _document(self, source: str) -> tuple[Hashable, Any, str]:
        if not is_address(source):
            return self._from_file(source)
        known = self._read.get(source)
        if known is not None and self._clock() - known[1] < _MAX_AGE:
            return known[0], known[2], ""
        try:
            text = _fetch(source)
            content = parse(text, source)
        except DocumentUnavailable as error:
            if known is None:
                raise
            return known[0], known[2], str(error)
        version = hash(text)
        self._keep(self._read, source, (version, self._clock(), content))
        return version, content, ""

    def _from_file(self, source: str) -> tuple[Hashable, Any, str]:
        path = Path(source)
        try:
            found = path.stat()
            version = (found.st_ino, found.st_size, found.st_mtime_ns)
            known = self._read.get(source)
            if known is not None and known[0] == version:
                return version, known[2], ""
            if not stat.S_ISREG(found.st_mode):
                raise DocumentUnavailable(f"The OpenAPI document {source} is not a regular file.")
            with path.open("rb") as file:
                text = _decoded(file.read(MAX_DOCUMENT + 1), source)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise DocumentUnavailable(
                f"The OpenAPI document {source} can't be read: {reason}."
            ) from None
        content = parse(text, source)
        self._keep(self._read, source, (version, self._clock(), content))
        return version, content, ""

    def _keep(self, kept: dict[Any, Any], key: Hashable, value: object) -> None:
        kept.pop(key, None)
        kept[key] = value
        if len(kept) > _MAX_CACHED:
            del kept[next(iter(kept))]


def is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def parse(text: str, source: str) -> Any:
    """Return a document's content, JSON or YAML.

    Raises:
        DocumentUnavailable: It is neither.
    """
    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DocumentUnavailable(
                f"The OpenAPI document {source} is not valid JSON: {error}."
            ) from None
    try:
        return load_plain(text)
    except BadText as error:
        raise DocumentUnavailable(
            f"The OpenAPI document {source} can't be read: line {error.at.line}: {error.message}"
        ) from None


def _fetch(source: str) -> str:
    headers = {"Accept": "application/json, application/yaml, */*;q=0.5"}
    request = urllib.request.Request(source, headers=headers)  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
            return _decoded(response.read(MAX_DOCUMENT + 1), source)
    except urllib.error.HTTPError as error:
        reason = f"HTTP status {error.code}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error))
    raise DocumentUnavailable(f"The OpenAPI document {source} can't be fetched: {reason}.")


def _decoded(data: bytes, source: str) -> str:
    if len(data) > MAX_DOCUMENT:
        text = f"The OpenAPI document {source} is larger than {MAX_DOCUMENT // MIB} MiB."
        raise DocumentUnavailable(text)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DocumentUnavailable(f"The OpenAPI document {source} is not UTF-8.") from None


DOCUMENTS: Final = Documents()
"""The process's cache."""
