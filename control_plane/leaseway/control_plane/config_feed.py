"""Parses the watched configuration and passes it to the coordinator (design.md#reload.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from leaseway.control_plane.config.kubernetes.resources import resource_path
from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.loading import FileContent, parse_contents
from leaseway.control_plane.config.openapi.documents import DOCUMENTS
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueReason,
    ParsedConfig,
    problems_of,
)
from leaseway.control_plane.config.watch.all_files import watch_sources
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.plane import Plane
from leaseway.telemetry.tracing import tracer
from leaseway.wire.channels.trace_context import traceparent_of
from leaseway.wire.file_stamp import FileStamp, file_stamp
from leaseway.wire.span_attributes import Attr

OnLoaded = Callable[[Mapping[Source, FileContent], ParsedConfig], None]
"""Called with the found sources of a configuration and the parsed result."""

_logger = logging.getLogger(__name__)
_POLL_INTERVAL: Final = 1.0
"""Seconds between two checks of files that the configuration refers to."""
_MAX_NAMED: Final = 5
"""Files that events, log lines and spans of a reload name."""

REMOVAL_DELAY: Final = 2.0
"""Seconds without a change after which servers that a file no longer contains are removed, as the
file may be half written."""

MAX_REMOVAL_DELAY: Final = 5 * REMOVAL_DELAY
"""Seconds after which they are removed in any case."""


async def follow_config(
    plane: Plane, sources: Sequence[Source], on_loaded: OnLoaded | None = None
) -> None:
    """Apply each change of the configuration to a plane, until cancelled.

    One change is applied before the next is read; changes that arrive meanwhile are merged.

    Args:
        sources: The files of all layers.
        on_loaded: Called for each parsed configuration, including broken ones.
    """
    watch = watch_sources(sources)
    followed = _FollowedFiles()
    DOCUMENTS.fetch_in_background()
    removals = _Removals()
    async with aclosing(watch):
        found = await anext(watch)
        change = asyncio.ensure_future(anext(watch))
        try:
            while True:
                documents = DOCUMENTS.changes
                DOCUMENTS.begin_configuration()
                parsed = await load_config(plane, found, on_loaded, partial(removals.wait, change))
                if parsed is not None:
                    removals.record(found, parsed)
                    followed.reset(parsed.followed, documents)
                    await _wait_for_change(change, followed)
                if change.done():
                    found = change.result()
                    change = asyncio.ensure_future(anext(watch))
        finally:
            change.cancel()
            await asyncio.wait({change})


class _Removals:
    """Delays the removal of servers that a file no longer contains: it may be half written."""

    def __init__(self) -> None:
        self._found: Mapping[Source, FileContent] = {}
        self._declared: frozenset[str] = frozenset()
        self._since: float | None = None

    async def wait(
        self, change: asyncio.Future[Any], found: Mapping[Source, FileContent], parsed: ParsedConfig
    ) -> bool:
        """Wait if servers are missing; return whether the configuration changed meanwhile."""
        if not self._may_be_half(found, parsed):
            return False
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        remaining = self._since + MAX_REMOVAL_DELAY - now
        if remaining <= 0:
            return False
        await asyncio.wait({change}, timeout=min(REMOVAL_DELAY, remaining))
        return change.done()

    def record(self, found: Mapping[Source, FileContent], parsed: ParsedConfig) -> None:
        """Remember an applied configuration; a broken one only ends the delay."""
        self._since = None
        if not parsed.broken:
            self._found, self._declared = found, parsed.declared

    def _may_be_half(self, found: Mapping[Source, FileContent], parsed: ParsedConfig) -> bool:
        if parsed.broken or self._declared <= parsed.declared:
            return False
        # Resources are written atomically, and deleted files are delayed by the watcher.
        return any(
            isinstance(content, str) and source.resource is None and content != before
            for source, content in found.items()
            if (before := self._found.get(source)) is not None
        )


async def _wait_for_change(change: asyncio.Future[Any], followed: _FollowedFiles) -> None:
    """Wait for a change of the configuration, or of a file that it refers to."""
    while not change.done():
        polls = bool(followed.stamps) or followed.may_change
        await asyncio.wait({change}, timeout=_POLL_INTERVAL if polls else None)
        if followed.has_new_documents or (polls and await asyncio.to_thread(followed.changed)):
            return


class _FollowedFiles:
    """Files that a configuration refers to, with their stamps when it was read.

    Documents that are fetched meanwhile count as well.
    """

    def __init__(self) -> None:
        self.stamps: Mapping[Path, FileStamp] = {}
        self._documents = DOCUMENTS.changes

    def reset(self, files: Mapping[Path, FileStamp], documents: int) -> None:
        """Follow the files of a configuration that was read at this state of the documents."""
        self.stamps = files
        self._documents = documents

    @property
    def may_change(self) -> bool:
        return DOCUMENTS.may_change or self.has_new_documents

    @property
    def has_new_documents(self) -> bool:
        return DOCUMENTS.changes != self._documents

    def changed(self) -> bool:
        """Return whether a file was replaced or modified. Blocks.

        Documents that could not be fetched are tried again.
        """
        DOCUMENTS.retry()
        return any(file_stamp(path) != seen for path, seen in self.stamps.items())


async def load_config(
    plane: Plane,
    found: Mapping[Source, FileContent],
    on_loaded: OnLoaded | None = None,
    outdated: Callable[[Mapping[Source, FileContent], ParsedConfig], Awaitable[bool]] | None = None,
) -> ParsedConfig | None:
    """Parse a configuration and apply it to a plane, in its own trace.

    Args:
        found: The sources as they were found.
        on_loaded: Called with the parsed configuration, unless it is outdated.
        outdated: Returns whether the sources have changed meanwhile.

    Returns:
        The parsed configuration, or None if it is outdated.
    """
    files = _listed(found)
    with tracer(__name__).start_as_current_span(
        "config reload", attributes={Attr.CONFIG_PATH: files}
    ) as span:
        with tracer(__name__).start_as_current_span("parse"):
            parsed = await asyncio.to_thread(parse_contents, found)
        if outdated is not None and await outdated(found, parsed):
            return None
        for issue in parsed.issues:
            _log(issue)
        if on_loaded is not None:
            on_loaded(found, parsed)
        if plane.meters is not None:
            plane.meters.record_reload(taken=not parsed.broken)
        problems = problems_of(parsed.issues)
        at = {"config": files}
        if parsed.broken:
            _logger.error(
                "the configuration is broken; nothing changes until it is fixed", extra=at
            )
            plane.configure(
                partial(Coordinator.record_config_problems, problems=problems), failed=True
            )
            plane.events.record_rejected_reload(files, problems, plane.clock().unix)
            return parsed
        if any(issue.reason == IssueReason.MISSING_CONFIG for issue in parsed.issues):
            _logger.warning("a configuration file is missing", extra=at)
        servers = len({key.server_id for key in parsed.servers})
        counts = {"servers": servers}
        if parsed.rejected:
            counts["rejected"] = len(parsed.rejected)  # these keep their last good entry
        _logger.info("configuration loaded", extra={**at, **counts})
        plane.events.record_reload(
            parsed.servers,
            files,
            problems,
            plane.clock().unix,
            rejected=parsed.rejected,
            refused=parsed.refused,
        )
        trace = traceparent_of(span)
        with tracer(__name__).start_as_current_span("diff"):
            plane.configure(
                partial(
                    Coordinator.apply_config,
                    servers=parsed.servers,
                    rejected=parsed.rejected,
                    problems=problems,
                    trace=trace,
                    refused=parsed.refused,
                )
            )
        return parsed


def _listed(found: Iterable[Source]) -> str:
    """Return what names a configuration; of many files of tenants the first ones."""
    names = [*dict.fromkeys(map(_named, found))]
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _named(source: Source) -> str:
    resource = source.resource
    return str(source.path if resource is None else resource_path(resource.namespace))


def _log(issue: ConfigIssue) -> None:
    level = logging.ERROR if issue.severity == "error" else logging.WARNING
    _logger.log(level, "%s", issue)
