"""The watch over a real file: what it yields, and what it does not."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import watchfiles

from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.loading import FileContent
from leaseway.control_plane.config.tree.files import Gone, Unreadable, read_config
from leaseway.control_plane.config.watch import reading
from leaseway.control_plane.config.watch.all_files import watch_sources

BOUND = 60.0
NEVER = 3_600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.yaml"


@asynccontextmanager
async def watching(path: Path, **options: Any) -> AsyncIterator["Watched"]:
    sources = [Source("native", path)]
    async with asyncio.timeout(BOUND), aclosing(watch_sources(sources, **options)) as events:
        yield Watched(events)


class Watched:
    """A running watch."""

    def __init__(self, events: AsyncGenerator[dict[Source, FileContent], None]) -> None:
        self._events = events

    async def next(self) -> FileContent:
        (found,) = (await anext(self._events)).values()
        return found

    async def text(self) -> str:
        found = await self.next()
        assert isinstance(found, str)
        return found

    async def reason(self) -> str:
        found = await self.next()
        assert isinstance(found, Unreadable)
        return str(found)

    async def until(self, text: str) -> None:
        while await self.text() != text:
            pass


class Reads:
    """Tells when the file has been read."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Queue[None] = asyncio.Queue()

    def read(self, path: Path) -> str:
        try:
            return read_config(path)
        finally:
            self._loop.call_soon_threadsafe(self._done.put_nowait, None)

    async def another(self) -> None:
        """Wait for one read that has not begun yet."""
        while not self._done.empty():
            self._done.get_nowait()
        await self._done.get()


@pytest.fixture
async def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    reads = Reads()
    monkeypatch.setattr(reading, "read_config", reads.read)
    return reads


def replace_file(path: Path, text: str) -> None:
    """Write as editors do: a temporary file beside it, renamed over it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


async def test_a_file_is_yielded_at_once(path: Path) -> None:
    path.write_text("one")
    async with watching(path) as watched:
        assert await watched.text() == "one"


async def test_an_absent_file_is_gone_at_once(path: Path) -> None:
    async with watching(path, deleted_after=NEVER) as watched:
        assert await watched.next() is None


WRITES: list[Callable[[Path, str], Any]] = [Path.write_text, replace_file]


# With one poll an hour only events can tell, and with no directory to watch only polling.
@pytest.mark.parametrize("write", WRITES)
async def test_a_change_is_yielded_by_polling_and_events(
    path: Path, write: Callable[[Path, str], Any]
) -> None:
    path.write_text("one")
    async with watching(path, poll=0.2) as watched:
        assert await watched.text() == "one"
        for text in ("two", "three", "four"):
            write(path, text)
            await watched.until(text)


async def test_events_alone_tell_of_a_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = asyncio.Event()
    events = real_events_after(monkeypatch, started)
    path.write_text("one")
    async with watching(path, poll=NEVER) as watched:
        assert await watched.text() == "one"
        following = asyncio.create_task(watched.next())
        await started.wait()
        replace_file(path, "two")
        events.set()
        assert await following == "two"


def real_events_after(monkeypatch: pytest.MonkeyPatch, started: asyncio.Event) -> asyncio.Event:
    """Stand in for file events: one of the file's, once the event that is returned is set."""
    wanted = asyncio.Event()

    async def awatch(directory: Path, **_: Any) -> AsyncIterator[set[tuple[int, str]]]:
        started.set()
        await wanted.wait()
        yield {(1, str(directory / "mcp.yaml"))}
        await asyncio.Event().wait()

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    return wanted


async def test_polling_alone_tells_of_a_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def awatch(*_: Any, **__: Any) -> AsyncIterator[set[tuple[int, str]]]:
        raise OSError("no more watches are allowed")

    monkeypatch.setattr(watchfiles, "awatch", awatch)
    path.write_text("one")
    with caplog.at_level(logging.WARNING):
        async with watching(path, poll=0.02) as watched:
            assert await watched.text() == "one"
            for text in ("two", "three"):
                replace_file(path, text)
                assert await watched.text() == text
    assert [record.getMessage() for record in caplog.records] == [
        f"No file events for {path.parent} (no more watches are allowed); polling continues."
    ]


async def test_real_file_events_wake_the_watch_long_before_the_next_poll(path: Path) -> None:
    path.write_text("0")
    async with watching(path, poll=NEVER) as watched:
        assert await watched.text() == "0"
        following = asyncio.create_task(watched.next())
        # The watching thread starts in its own time: change the file until it has noticed.
        count = 0
        while not following.done():
            count += 1
            replace_file(path, str(count))
            await asyncio.wait({following}, timeout=0.3)
        found = await following
        assert isinstance(found, str)
        assert 0 < int(found) <= count


async def test_the_swap_of_a_config_maps_symlink_counts(path: Path) -> None:
    def swap(name: str, text: str) -> None:
        folder = path.parent / f"..{name}"
        folder.mkdir()
        (folder / path.name).write_text(text)
        link = path.parent / "..data_tmp"
        link.symlink_to(folder.name)
        link.replace(path.parent / "..data")

    swap("2026_01", "one")
    path.symlink_to(Path("..data") / path.name)
    async with watching(path, poll=0.2) as watched:
        assert await watched.text() == "one"
        swap("2026_02", "two")
        assert await watched.text() == "two"


async def test_content_that_is_the_same_is_not_yielded_again(path: Path, reads: Reads) -> None:
    path.write_text("one")
    async with watching(path, poll=0.05) as watched:
        assert await watched.text() == "one"
        following = asyncio.create_task(watched.next())
        for _ in range(3):
            replace_file(path, "one")
            await reads.another()
        replace_file(path, "two")
        assert await following == "two"


async def test_a_burst_of_writes_ends_in_its_last_content(path: Path) -> None:
    path.write_text("start")
    async with watching(path, poll=0.1) as watched:
        assert await watched.text() == "start"
        for count in range(200):
            path.write_text(str(count))
        # One burst, unless the machine was so slow that it lasted over the maximum.
        await watched.until("199")


async def test_a_deleted_file_is_gone_only_after_it_has_been_absent_for_long(path: Path) -> None:
    path.write_text("one")
    async with watching(path, poll=0.05, deleted_after=0.4) as watched:
        assert await watched.text() == "one"
        deleted = time.monotonic()
        path.unlink()
        assert isinstance(await watched.next(), Gone)
        assert time.monotonic() - deleted >= 0.4
        path.write_text("one")
        assert await watched.text() == "one"


async def test_a_file_that_comes_back_in_time_was_never_gone(path: Path, reads: Reads) -> None:
    path.write_text("one")
    async with watching(path, poll=0.02, quiet=0.01, deleted_after=NEVER) as watched:
        assert await watched.text() == "one"
        path.unlink()
        following = asyncio.create_task(watched.next())
        await reads.another()
        path.write_text("two")
        assert await following == "two"


async def test_a_file_whose_directory_appears_later_is_found(tmp_path: Path) -> None:
    path = tmp_path / ".minds" / "mcp.yaml"
    async with watching(path, poll=0.02) as watched:
        assert await watched.next() is None
        path.parent.mkdir()
        path.write_text("one")
        assert await watched.text() == "one"


async def test_a_directory_that_is_replaced_is_watched_anew(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "mcp.yaml"
    path.parent.mkdir()
    path.write_text("one")
    async with watching(path, poll=0.05) as watched:
        assert await watched.text() == "one"
        path.parent.rename(tmp_path / "old")
        path.parent.mkdir()
        path.write_text("two")
        assert await watched.text() == "two"
        replace_file(path, "three")
        assert await watched.text() == "three"


async def test_an_unreadable_file_is_said_once_and_its_mending_is_seen(path: Path) -> None:
    path.write_bytes(b"\xff")
    async with watching(path, poll=0.02) as watched:
        mistake = "It is not UTF-8: byte 0, on line 1, can't be decoded. Save it as UTF-8."
        assert await watched.reason() == mistake
        replace_file(path, "one")
        assert await watched.text() == "one"
        path.unlink()
        path.mkdir()
        assert await watched.reason() == "It is not a regular file."
        path.rmdir()
        path.write_text("one")
        assert await watched.text() == "one"


async def test_a_pipe_in_place_of_the_file_does_not_block(path: Path) -> None:
    os.mkfifo(path)
    async with watching(path) as watched:
        assert await watched.reason() == "It is not a regular file."


async def test_changes_while_the_caller_is_busy_become_one(path: Path) -> None:
    path.write_text("one")
    async with watching(path, poll=0.05) as watched:
        assert await watched.text() == "one"
        for text in ("two", "three"):
            replace_file(path, text)
        assert await watched.text() == "three"


async def test_closing_the_watch_leaves_no_task(path: Path) -> None:
    before = asyncio.all_tasks()
    path.write_text("one")
    async with watching(path) as watched:
        assert await watched.text() == "one"
        assert asyncio.all_tasks() - before
    assert not asyncio.all_tasks() - before


async def test_a_cancelled_watch_leaves_no_task(path: Path) -> None:
    before = asyncio.all_tasks()
    seen = asyncio.Event()
    path.write_text("one")

    async def follow() -> None:
        async for _ in watch_sources([Source("native", path)]):
            seen.set()

    task = asyncio.create_task(follow())
    async with asyncio.timeout(BOUND):
        await seen.wait()
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()
    assert not asyncio.all_tasks() - before
