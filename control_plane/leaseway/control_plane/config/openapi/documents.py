"""Reads OpenAPI documents from files and addresses, and caches them.

Reading may block on the disk or network: configurations are parsed in a thread.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
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
from leaseway.wire.sharing.newest import Newest
from leaseway.wire.timing.backoff import FETCH_DOCUMENT

_logger = logging.getLogger(__name__)

MAX_DOCUMENT: Final = 64 * MIB
"""Bytes of a document."""

_TIMEOUT: Final = 15.0
_MAX_AGE: Final = 300.0
"""Seconds until a document is fetched from an address again."""
_MAX_RETRIES: Final = 8
"""Fetches at the same time with which others are tried again."""
_MAX_CONTENTS: Final = 16
"""Parsed documents that are kept; what was imported of others is kept without them."""
_MAX_KEPT: Final = 10_000
"""Documents of which anything is kept."""
_PATIENCE: Final = 3.0
"""Seconds that one configuration waits for web servers; later its other servers go ahead."""
_LEAST_PATIENCE: Final = 0.2
_ACCEPT: Final = "application/json, application/yaml, */*;q=0.5"
_find_half: Final = re.compile(r"\\u[dD][89a-fA-F]").search
"""Finds what may be half of a surrogate pair in JSON."""


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


@dataclass(frozen=True)
class _Known:
    """A fetched document.

    Attributes:
        version: Changes with its content.
        fetched_at: When it was last fetched.
    """

    version: Hashable
    fetched_at: float


@dataclass(frozen=True)
class _Failure:
    """Why a document could not be fetched.

    Attributes:
        reason: A sentence.
        tries: How often it could not, one time after the other.
        again_at: When it is tried again.
    """

    reason: str
    tries: int
    again_at: float


class _Fetch:
    """A fetch in progress.

    Attributes:
        ended: Whether it has ended.
        is_followed: Whether a load went ahead with what was known before.
        missed: The selections of loads that went ahead without anything.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.is_followed = False
        self.missed: set[OperationSelection] = set()


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
        self._files: Newest[str, Mapping[Path, FileStamp]] = Newest(_MAX_KEPT)
        self._fetched: Newest[str, _Known] = Newest(_MAX_KEPT)
        self._failures: Newest[str, _Failure] = Newest(_MAX_KEPT)
        self._fetches: dict[str, _Fetch] = {}
        self._loaded: set[str] = set()
        self._contents: Newest[str, tuple[Hashable, Any]] = Newest(_MAX_CONTENTS)
        self._imported: Newest[tuple[str, OperationSelection], tuple[Hashable, Imported]] = Newest(
            _MAX_KEPT
        )

    def fetch_in_background(self, patience: float = _PATIENCE) -> None:
        """Let no `load` wait longer for web servers from now on; `changes` says when to load again.

        Args:
            patience: Seconds that the loads of one configuration wait, all together.
        """
        self._patience = patience

    def begin_configuration(self) -> None:
        """Forget which documents are in use: the next loads say it."""
        self._loaded = set()

    @property
    def is_fetching(self) -> bool:
        """Whether a document is being fetched."""
        return bool(self._fetches)

    @property
    def may_change(self) -> bool:
        """Whether a document is being fetched, or will be tried again."""
        return self.is_fetching or any(source in self._failures for source in tuple(self._loaded))

    def retry(self) -> None:
        """Fetch the documents in use that could not be fetched again, if it is time for that."""
        with self._lock:
            now = self._clock()
            for source in sorted(self._loaded & self._failures.keys()):
                if len(self._fetches) >= _MAX_RETRIES:
                    return
                if source not in self._fetches and self._failures[source].again_at <= now:
                    self._start(source).is_followed = True

    def load(self, source: str, selection: OperationSelection) -> OpenApiDocument:
        """Return a document's tools, by its absolute path or its address.

        Raises:
            DocumentUnavailable: It cannot be read and is not cached, or it is no document.
        """
        if is_address(source):
            return self._from_address(source, selection)
        return self._from_file(source, selection)

    def _from_address(self, source: str, selection: OperationSelection) -> OpenApiDocument:
        with self._lock:
            self._loaded.add(source)
            found, failure = self._known(source, selection), self._failures.get(source)
            now = self._clock()
            if failure is not None:
                is_due = failure.again_at <= now
            else:
                is_due = found is None or now - self._fetched[source].fetched_at >= _MAX_AGE
            fetching = self._fetches.get(source)
            if fetching is None and is_due:
                fetching = self._start(source)
            # What failed before may fail as slowly again: nobody waits for it a second time.
            is_told = found is not None or failure is not None
            if fetching is None or (is_told and self._patience is not None):
                if fetching is not None:
                    fetching.is_followed = True
                return _told(found, failure, source)
        fetching.ended.wait(self._waiting_time())
        with self._lock:
            found, failure = self._known(source, selection), self._failures.get(source)
            if not fetching.ended.is_set():
                fetching.is_followed = True
                if found is None and failure is None:
                    fetching.missed.add(selection)
                    raise DocumentUnavailable(
                        f"The OpenAPI document {source} is still being fetched; its tools follow."
                    )
            return _told(found, failure, source)

    def _known(self, source: str, selection: OperationSelection) -> OpenApiDocument | None:
        """Return what is known of a fetched document, or None if it has to be fetched."""
        known = self._fetched.get(source)
        imported = None if known is None else self._import(source, selection, known.version)
        if imported is None:
            return None
        failure = self._failures.get(source)
        return OpenApiDocument(imported, "" if failure is None else failure.reason)

    def _import(
        self, source: str, selection: OperationSelection, version: Hashable
    ) -> Imported | None:
        """Return the tools of a version of a document; None if its content is not kept."""
        known = self._imported.get((source, selection))
        if known is not None and known[0] == version:
            return known[1]
        content = self._contents.get(source)
        if content is None or content[0] != version:
            return None
        try:
            address = source if is_address(source) else ""
            imported = import_document(content[1], selection, address)
        except BadDocument as error:
            raise DocumentUnavailable(str(error)) from None
        except RecursionError:
            raise DocumentUnavailable(
                f"The OpenAPI document {source} is nested too deeply."
            ) from None
        except Exception:  # it must cost no other server of the configuration
            _logger.exception("Converting an OpenAPI document failed.")
            raise DocumentUnavailable(
                f"The OpenAPI document {source} can't be converted: see the log."
            ) from None
        self._imported[source, selection] = (version, imported)
        return imported

    def _waiting_time(self) -> float | None:
        """Return how long a load may wait; the loads of one configuration share the time."""
        if self._patience is None:
            return None  # a fetch is bounded
        now = self._clock()
        if now > self._wait_until + _TIMEOUT:
            self._wait_until = now + self._patience
        return max(self._wait_until - now, _LEAST_PATIENCE)

    def _start(self, source: str) -> _Fetch:
        fetching = _Fetch()
        try:
            threading.Thread(
                target=self._fetch, args=(source, fetching), name="fetch", daemon=True
            ).start()
        except RuntimeError as error:
            self._record(source, f"The OpenAPI document {source} can't be fetched now: {error}.")
            fetching.ended.set()
        else:
            self._fetches[source] = fetching
        return fetching

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
            before = self._state_of(source)
            if source in self._fetched:
                failure = failure or unread  # it stays as it was, with all of its tools
            if not failure:
                version = hash((text, *others.fetched))
                self._fetched[source] = _Known(version, self._clock())
                self._contents[source] = (version, content)
                self._failures.pop(source, None)
                for selection in fetching.missed:  # its content may be gone before the next load
                    with contextlib.suppress(DocumentUnavailable):
                        self._import(source, selection, version)
            else:
                self._record(source, failure)
            is_new = fetching.is_followed and self._state_of(source) != before
            if fetching.missed or is_new:
                self.changes += 1
            del self._fetches[source]
            fetching.ended.set()

    def _record(self, source: str, reason: str) -> None:
        """Record that a document could not be fetched, and when it is tried again."""
        last = self._failures.get(source)
        tries = 1 if last is None else last.tries + 1
        again_at = self._clock() + FETCH_DOCUMENT.ceiling(tries - 1)
        self._failures[source] = _Failure(reason, tries, again_at)

    def _state_of(self, source: str) -> tuple[Hashable, str]:
        """Return what a load of a fetched document depends on."""
        known, failure = self._fetched.get(source), self._failures.get(source)
        version = None if known is None else known.version
        return version, "" if failure is None else failure.reason

    def _from_file(self, source: str, selection: OperationSelection) -> OpenApiDocument:
        seen = self._files.get(source)
        if seen is not None and all(file_stamp(path) == found for path, found in seen.items()):
            with self._lock:
                imported = self._import(source, selection, tuple(seen.items()))
            if imported is not None:
                return OpenApiDocument(imported, files=seen)
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
        seen = {path: version, **folder.seen}
        with self._lock:
            self._files[source] = seen
            self._contents[source] = (tuple(seen.items()), content)
            imported = self._import(source, selection, tuple(seen.items()))
        assert imported is not None  # its content was kept just now
        return OpenApiDocument(imported, files=seen)


def _told(found: OpenApiDocument | None, failure: _Failure | None, source: str) -> OpenApiDocument:
    """Return a document.

    Raises:
        DocumentUnavailable: There is none.
    """
    if found is not None:
        return found
    reason = f"{source} is no OpenAPI document." if failure is None else failure.reason
    raise DocumentUnavailable(reason)


def is_address(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def parse(text: str, source: str) -> Any:
    """Return a document's content, JSON or YAML.

    Raises:
        DocumentUnavailable: It is neither.
    """
    if text.lstrip()[:1] == "{":
        try:
            content = json.loads(text)
            return _without_halves(content) if _find_half(text) is not None else content
        except (ValueError, RecursionError) as error:
            raise DocumentUnavailable(
                f"The OpenAPI document {source} is not valid JSON: {error}."
            ) from None
    if text.lstrip()[:1] == "<":
        raise DocumentUnavailable(
            f"{source} is a web page or XML, no OpenAPI document. Write the address of the document"
            " itself, which is JSON or YAML; a page that shows one often links to it."
        )
    try:
        return load_plain(text)
    except BadText as error:
        raise DocumentUnavailable(
            f"The OpenAPI document {source} can't be read: line {error.at.line}: {error.message}"
        ) from None


def _without_halves(content: Any) -> Any:
    """Return a content without halves of surrogate pairs, which no text in UTF-8 may have."""
    return json.loads(json.dumps(content, ensure_ascii=False).encode(errors="replace"))


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
