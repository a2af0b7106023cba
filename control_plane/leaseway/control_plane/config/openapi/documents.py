"""Reads OpenAPI documents from files and addresses, and caches them.

Reading may block on the disk or network: configurations are parsed in a thread.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.openapi.operations import (
    BadDocument,
    Imported,
    OperationSelection,
    import_document,
)
from leaseway.control_plane.config.openapi.split.bundling import bundle
from leaseway.control_plane.config.openapi.split.parts import Folder, Origin
from leaseway.control_plane.config.tree.files import (
    NotRegular,
    read_regular,
)
from leaseway.control_plane.config.tree.yaml_tree import BadText, load_plain
from leaseway.wire.bounds import MIB
from leaseway.wire.channels.fetching import FetchError, fetch
from leaseway.wire.file_stamp import FileStamp, file_stamp

_logger = logging.getLogger(__name__)

MAX_DOCUMENT: Final = 64 * MIB
"""Bytes of a document."""

_TIMEOUT: Final = 15.0
_MAX_AGE: Final = 300.0
"""Seconds until a document is fetched from an address again."""
_MAX_CACHED: Final = 16
_PATIENCE: Final = 3.0
"""Seconds that one configuration waits for web servers; later its other servers go ahead."""
_LEAST_PATIENCE: Final = 0.2
_ACCEPT: Final = "application/json, application/yaml, */*;q=0.5"


class DocumentUnavailable(Exception):
    """A document that cannot be read or used; the message is the reason, as a sentence."""


@dataclass(frozen=True)
class OpenApiDocument:
    """An imported document.

    Attributes:
        imported: Its tools.
        stale: Why this is only its previous content; else empty.
        files: Its file, and the others that it refers to, as they were read.
    """

    imported: Imported
    stale: str = ""
    files: Mapping[Path, FileStamp] = field(default_factory=dict)


@dataclass
class _Known:
    """A fetched document.

    Attributes:
        version: Changes with its content.
        content: Its content.
        fetched_at: When it was last fetched.
        stale: Why it could not be fetched again.
    """

    version: Hashable
    content: Any
    fetched_at: float
    stale: str = ""


@dataclass(frozen=True)
class _File:
    """A document that was read from a file.

    Attributes:
        version: The file, and the others that it refers to, as they were.
        content: Its content.
    """

    version: Mapping[Path, FileStamp]
    content: Any

    @property
    def is_current(self) -> bool:
        return all(file_stamp(path) == seen for path, seen in self.version.items())


class _Fetch:
    """A fetch in progress.

    Attributes:
        ended: Whether it has ended.
        is_followed: Whether a load went ahead without it.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.is_followed = False


class Documents:
    """A cache of documents by path or address.

    Args:
        clock: Returns monotonic seconds.
        timeout: Seconds for a fetch.

    Attributes:
        changes: How often a fetch in the background has changed what `load` would return.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, timeout: float = _TIMEOUT
    ) -> None:
        self.changes = 0
        self._clock = clock
        self._timeout = timeout
        self._patience: float | None = None
        self._wait_until = float("-inf")
        self._lock = threading.Lock()
        self._files: dict[str, _File] = {}
        self._fetched: dict[str, _Known] = {}
        self._failed: dict[str, str] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._imported: dict[tuple[str, OperationSelection], tuple[Hashable, Imported]] = {}

    def fetch_in_background(self, patience: float = _PATIENCE) -> None:
        """Let no `load` wait longer for web servers from now on; `changes` says when to load again.

        Args:
            patience: Seconds that the loads of one configuration wait, all together.
        """
        self._patience = patience

    @property
    def is_fetching(self) -> bool:
        """Whether a document is being fetched."""
        return bool(self._fetches)

    def load(self, source: str, selection: OperationSelection) -> OpenApiDocument:
        """Return a document's tools, by its absolute path or its address.

        Raises:
            DocumentUnavailable: It cannot be read and is not cached, or it is no document.
        """
        stale = ""
        files: Mapping[Path, FileStamp] = {}
        version: Hashable
        if is_address(source):
            fetched = self._from_address(source)
            version, content, stale = fetched.version, fetched.content, fetched.stale
        else:
            file = self._from_file(source)
            version, content, files = tuple(file.version.items()), file.content, file.version
        with self._lock:
            known = self._imported.get((source, selection))
            if known is None or known[0] != version:
                try:
                    address = source if is_address(source) else ""
                    known = version, import_document(content, selection, address)
                except BadDocument as error:
                    raise DocumentUnavailable(str(error)) from None
                except RecursionError:
                    raise DocumentUnavailable(
                        f"The OpenAPI document {source} is nested too deeply."
                    ) from None
                self._keep(self._imported, (source, selection), known)
            return OpenApiDocument(known[1], stale, files)

    def _from_address(self, source: str) -> _Known:
        with self._lock:
            known = self._fetched.get(source)
            failure = self._failed.pop(source, None)  # of the fetch that this load was told about
            if known is not None and self._clock() - known.fetched_at < _MAX_AGE:
                return known
            if failure is not None:
                if known is None:
                    raise DocumentUnavailable(failure)
                return known
            fetching = self._fetches.get(source)
            if fetching is None:
                fetching = self._fetches[source] = _Fetch()
                threading.Thread(
                    target=self._fetch, args=(source, fetching), name="fetch", daemon=True
                ).start()
            if self._patience is not None and known is not None:
                fetching.is_followed = True
                return known
        fetching.ended.wait(self._waiting_time())
        with self._lock:
            known = self._fetched.get(source)
            failure = self._failed.pop(source, None)
            if not fetching.ended.is_set():
                fetching.is_followed = True
                failure = f"The OpenAPI document {source} is still being fetched; its tools follow."
            if known is None:
                raise DocumentUnavailable(failure or f"{source} is no OpenAPI document.")
            return known

    def _waiting_time(self) -> float | None:
        """Return how long a load may wait; the loads of one configuration share the time."""
        if self._patience is None:
            return None  # a fetch is bounded
        now = self._clock()
        if now > self._wait_until + _TIMEOUT:
            self._wait_until = now + self._patience
        return max(self._wait_until - now, _LEAST_PATIENCE)

    def _fetch(self, source: str, fetching: _Fetch) -> None:
        content: Any = None
        text = failure = unread = ""
        others = Origin(source, MAX_DOCUMENT, self._timeout, _fetch_part, _parse_part)
        try:
            text = _fetched_text(source, self._timeout)
            content = parse(text, source)
            bundle(content, source, others.read, others.read_optional)
            if others.outage:
                unread = f"The OpenAPI document {source} can't be fetched whole: {others.outage}."
        except DocumentUnavailable as error:
            failure = str(error)
        except Exception:
            _logger.exception("Fetching an OpenAPI document failed.")
            failure = f"The OpenAPI document {source} can't be fetched: see the log."
        with self._lock:
            known = self._fetched.get(source)
            before = None if known is None else (known.version, known.stale)
            if known is not None:
                failure = failure or unread  # it stays as it was, with all of its tools
            if not failure:
                known = _Known(hash((text, *others.fetched)), content, self._clock())
                self._keep(self._fetched, source, known)
            else:
                if known is not None:
                    known.stale = failure
                self._keep(self._failed, source, failure)
            after = None if known is None else (known.version, known.stale)
            if fetching.is_followed and (known is None or before != after):
                self.changes += 1
            del self._fetches[source]
            fetching.ended.set()

    def _from_file(self, source: str) -> _File:
        known = self._files.get(source)
        if known is not None and known.is_current:
            return known
        path = Path(source).absolute()
        try:
            version = file_stamp(path)
            text = _decoded(read_regular(path, MAX_DOCUMENT + 1), source)
        except NotRegular:
            raise DocumentUnavailable(
                f"The OpenAPI document {source} is not a regular file."
            ) from None
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise DocumentUnavailable(
                f"The OpenAPI document {source} can't be read: {reason}."
            ) from None
        content = parse(text, source)
        folder = Folder(path, MAX_DOCUMENT, _parse_part)
        bundle(content, path.as_uri(), folder.read)
        known = _File({path: version, **folder.seen}, content)
        with self._lock:
            self._keep(self._files, source, known)
        return known

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


def _parse_part(data: bytes) -> Any:
    """Return the content of another document.

    Raises:
        ValueError: It is neither JSON nor YAML.
    """
    try:
        return parse(data.decode("utf-8-sig"), "")
    except DocumentUnavailable as error:
        raise ValueError(str(error)) from None


def _fetch_part(address: str, limit: int, timeout: float) -> bytes:
    return fetch(address, limit=limit, timeout=timeout, accept=_ACCEPT)


def _fetched_text(source: str, timeout: float) -> str:
    try:
        data = fetch(source, limit=MAX_DOCUMENT + 1, timeout=timeout, accept=_ACCEPT)
    except FetchError as error:
        raise DocumentUnavailable(
            f"The OpenAPI document {source} can't be fetched: {error}."
        ) from None
    return _decoded(data, source)


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
