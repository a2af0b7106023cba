"""From the watched files to the coordinator: parse, say what is wrong, hand over (DESIGN §3.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import Span

from leaseway.control_plane.config.kubernetes.resources import resource_path
from leaseway.control_plane.config.layers.sources import Source, parse_sources
from leaseway.control_plane.config.loading import FileContent, parse_contents
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueReason,
    ParsedConfig,
    problems_of,
)
from leaseway.control_plane.config.watch.all_files import watch_sources
from leaseway.control_plane.plane import Plane
from leaseway.telemetry.tracing import traceparent_of, tracer
from leaseway.wire.span_attributes import Attr

OnLoaded = Callable[[Mapping[Source, FileContent], ParsedConfig], None]
"""Takes what was found of a configuration, and what it says."""

_logger = logging.getLogger(__name__)
_LOOK: Final = 1.0
"""Seconds between two looks at files that the configuration refers to."""

REMOVAL: Final = 2.0
"""Seconds of quiet after which what a file no longer names is removed, as a deleted file is: it
may still be written."""

LONGEST_REMOVAL: Final = 5 * REMOVAL
"""Seconds after which it is in any case."""


async def follow_config(
    plane: Plane, config: Path | Sequence[Source], on_loaded: OnLoaded | None = None
) -> None:
    """Give a plane each new content of its configuration, until cancelled.

    One change is parsed and handed over before the next is looked at, so that none overtakes
    another; those that come meanwhile are one.

    Args:
        plane: Who gets it.
        config: One file, or the files of all layers.
        on_loaded: Told of each content that was parsed, broken ones included.
    """
    sources = parse_sources([str(config)]) if isinstance(config, Path) else config
    watch = watch_sources(sources)
    followed = _FollowedFiles()
    removals = _Removals()
    async with aclosing(watch):
        found = await anext(watch)
        change = asyncio.ensure_future(anext(watch))
        try:
            while True:
                parsed = await load_config(plane, found, on_loaded, partial(removals.wait, change))
                if parsed is not None:
                    removals.taken(found, parsed)
                    await asyncio.to_thread(followed.note, parsed.followed)
                    await _until_changed(change, followed)
                if change.done():
                    found = change.result()
                    change = asyncio.ensure_future(anext(watch))
        finally:
            change.cancel()
            await asyncio.wait({change})


class _Removals:
    """Waits before it lets what a file no longer names be removed: the file may be half written."""

    def __init__(self) -> None:
        self._found: Mapping[Source, FileContent] = {}
        self._declared: frozenset[str] = frozenset()
        self._since: float | None = None

    async def wait(
        self, change: asyncio.Future[Any], found: Mapping[Source, FileContent], parsed: ParsedConfig
    ) -> bool:
        """Wait where something is missing; return whether another content came meanwhile."""
        if not self._may_be_half(found, parsed):
            return False
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        left = self._since + LONGEST_REMOVAL - now
        if left <= 0:
            return False
        await asyncio.wait({change}, timeout=min(REMOVAL, left))
        return change.done()

    def taken(self, found: Mapping[Source, FileContent], parsed: ParsedConfig) -> None:
        """Remember what is in force, or that nothing was taken."""
        self._since = None
        if not parsed.broken:
            self._found, self._declared = found, parsed.declared

    def _may_be_half(self, found: Mapping[Source, FileContent], parsed: ParsedConfig) -> bool:
        if parsed.broken or self._declared <= parsed.declared:
            return False
        # A resource is written at once, and the deletion of a file has been waited for.
        return any(
            isinstance(content, str) and source.resource is None and content != before
            for source, content in found.items()
            if (before := self._found.get(source)) is not None
        )


async def _until_changed(change: asyncio.Future[Any], followed: _FollowedFiles) -> None:
    """Wait for a change of the configuration, or of a file that it refers to."""
    while not change.done():
        await asyncio.wait({change}, timeout=_LOOK if followed.any else None)
        if followed.any and await asyncio.to_thread(followed.changed):
            return


class _FollowedFiles:
    """Files that a configuration refers to, each as it was when the configuration was read."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int, int] | None] = {}

    @property
    def any(self) -> bool:
        return bool(self._seen)

    def note(self, paths: Iterable[Path]) -> None:
        self._seen = {path: _signature(path) for path in paths}

    def changed(self) -> bool:
        """Return whether one of them is another file, or has other content, by its times."""
        return any(_signature(path) != seen for path, seen in self._seen.items())


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


async def load_config(
    plane: Plane,
    found: Mapping[Source, FileContent],
    on_loaded: OnLoaded | None = None,
    outdated: Callable[[Mapping[Source, FileContent], ParsedConfig], Awaitable[bool]] | None = None,
) -> ParsedConfig | None:
    """Give a plane one observation of its configuration, in a trace of its own.

    Args:
        plane: Who gets it.
        found: The observation.
        on_loaded: Told of what was parsed, unless it is outdated.
        outdated: Says whether another observation came before this one could be taken.

    Returns:
        What it says, or None where it is outdated.
    """
    files = ", ".join(dict.fromkeys(_named(source) for source in found))
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
        if parsed.broken:
            problems = problems_of(parsed.issues)
            _logger.error(
                "the configuration was refused; what was served goes on", extra=_at(files)
            )
            plane.configure(
                lambda state, now: state.record_config_failure(problems, now), failed=True
            )
            plane.events.record_rejected_reload(files, problems, plane.clock().unix)
            return parsed
        if any(issue.reason == IssueReason.MISSING_CONFIG for issue in parsed.issues):
            _logger.warning("a configuration file is missing", extra=_at(files))
        servers = len({key.server_id for key in parsed.servers})
        _logger.info("configuration loaded", extra={**_at(files), "servers": servers})
        problems = problems_of(parsed.issues)
        plane.events.record_reload(
            parsed.servers,
            files,
            problems,
            plane.clock().unix,
            lambda key: key.server_id in parsed.rejected or key in parsed.refused,
        )
        _hand_over(plane, parsed, span)
        return parsed


def _named(source: Source) -> str:
    resource = source.resource
    return str(source.path if resource is None else resource_path(resource.namespace))


def _hand_over(plane: Plane, parsed: ParsedConfig, span: Span) -> None:
    trace = traceparent_of(span)
    problems = problems_of(parsed.issues)
    with tracer(__name__).start_as_current_span("diff"):
        plane.configure(
            lambda state, now: state.apply_config(
                parsed.servers, parsed.rejected, problems, now, trace, refused=parsed.refused
            )
        )


def _log(issue: ConfigIssue) -> None:
    level = logging.ERROR if issue.severity == "error" else logging.WARNING
    _logger.log(level, "%s", issue)


def _at(files: str) -> dict[str, str]:
    return {"config": files}
