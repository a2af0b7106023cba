"""The watch over a configuration file: its content, each time that it really changed (DESIGN §3).

File events make it fast, polling makes it sure; content decides. It reads and compares, and
never parses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from leaseway.control_plane.config.tree.read_file import Unreadable, read_config
from leaseway.control_plane.config.watch.debounce import Debounce
from leaseway.control_plane.config.watch.file_events import FileEvents

Clock = Callable[[], float]


@dataclass(frozen=True)
class ConfigText:
    """A file's content.

    Attributes:
        text: All of it.
        path: The file.
        seen_at: Unix time in seconds at which the change to it was first seen.
    """

    text: str
    path: Path
    seen_at: float = field(compare=False)


@dataclass(frozen=True)
class ConfigGone:
    """There is no file, and has been none for long enough to mean it."""

    path: Path


@dataclass(frozen=True)
class ConfigUnreadable:
    """A file is there that can't be read; `reason` is a sentence."""

    path: Path
    reason: str


ConfigEvent = ConfigText | ConfigGone | ConfigUnreadable


def watch_config(
    path: Path,
    *,
    quiet: float = 0.1,
    longest: float = 0.5,
    gone_after: float = 2.0,
    poll: float = 1.0,
    clock: Clock = time.monotonic,
) -> AsyncGenerator[ConfigEvent, None]:
    """Yield what a file holds, at once and after each change to it.

    Close the iterator (`contextlib.aclosing`) to stop watching. While the caller is busy with
    one event, later ones become one.

    Args:
        path: The file; neither it nor its directory need exist.
        quiet: Seconds without an event after which a burst of events is over.
        longest: Seconds after the first event at which it is over in any case.
        gone_after: Seconds that the file must be absent to count as deleted. A file that is
            absent from the start counts at once.
        poll: Seconds between looks that need no event.
        clock: The monotonic clock.
    """
    return _Watch(path, Debounce(quiet, longest), gone_after, poll, clock).events()


class _Watch:
    def __init__(
        self, path: Path, idle: Debounce, gone_after: float, poll: float, clock: Clock
    ) -> None:
        self._path = path
        self._idle = idle
        self._gone_after = gone_after
        self._poll = poll
        self._clock = clock
        self._events = FileEvents(path)
        self._signature: _Signature = None
        self._absent_since: float | None = None

    async def events(self) -> AsyncGenerator[ConfigEvent, None]:
        try:
            await self._events.ensure()
            last = await self._look(time.time()) or ConfigGone(self._path)
            yield last
            while True:
                seen_at = await self._until_changed(isinstance(last, ConfigGone))
                event = await self._look(seen_at)
                if event is not None and event != last:
                    last = event
                    yield event
        finally:
            await self._events.close()

    async def _look(self, seen_at: float) -> ConfigEvent | None:
        # The signature is taken first: what changes while it is read is seen by the next poll.
        self._signature = await asyncio.to_thread(_signature, self._path)
        try:
            text = await asyncio.to_thread(read_config, self._path)
        except FileNotFoundError:
            return self._absent()
        except Unreadable as error:
            self._absent_since = None
            # What keeps it from being read may pass without a trace on the file: look again.
            self._signature = None
            return ConfigUnreadable(self._path, str(error))
        self._absent_since = None
        return ConfigText(text, self._path, seen_at)

    def _absent(self) -> ConfigGone | None:
        now = self._clock()
        if self._absent_since is None:
            self._absent_since = now
        return ConfigGone(self._path) if now - self._absent_since >= self._gone_after else None

    async def _until_changed(self, gone: bool) -> float:
        """Return, when the file should be read, the Unix time at which a change was seen."""
        burst = self._idle
        polled = self._clock()
        while True:
            now = self._clock()
            gone_at = None if gone or self._absent_since is None else self._gone_at()
            due = min(at for at in (burst.due, gone_at, polled + self._poll) if at is not None)
            if due > now:
                if await self._events.wait(due - now):
                    burst = burst.event(self._clock())
            elif due in (burst.due, gone_at):
                return time.time() - (now - (burst.first or now))
            else:
                polled = now
                await self._events.ensure()
                if await asyncio.to_thread(_signature, self._path) != self._signature:
                    burst = burst.event(now)

    def _gone_at(self) -> float:
        assert self._absent_since is not None
        return self._absent_since + self._gone_after


_Signature = tuple[int, int, int, int, int] | None


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
