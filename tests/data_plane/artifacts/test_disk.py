"""A hanging disk delays neither calls nor readers nor the worker's shutdown."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.data_plane.artifact_calls import PNG, answer, call, kept, result
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.data_plane.app import artifact_storage
from leaseway.data_plane.artifacts import store as artifacts
from leaseway.data_plane.artifacts.storage import DirectoryStorage, MemoryStorage
from leaseway.data_plane.core.artifacts.index import ArtifactReader


@pytest.fixture
def disk() -> Iterator[threading.Event]:
    """The event that a hanging disk waits for; set at the end of the test."""
    answers = threading.Event()
    yield answers
    answers.set()


class Hanging(MemoryStorage):
    """Artifact storage that writes and reads nothing until an event is set."""

    def __init__(self, answers: threading.Event) -> None:
        super().__init__()
        self._answers = answers
        self.readers: list[Reader] = []

    def write(self, ref: str, parts: Iterable[bytes]) -> int:
        assert self._answers.wait(BOUND)
        return super().write(ref, parts)

    def open(self, ref: str) -> Reader:
        self.readers.append(Reader(self._answers, self.held[ref]))
        return self.readers[-1]


class Reader(io.BytesIO):
    """A file whose bytes cannot be read; closing it waits for the read, as with any file."""

    def __init__(self, answers: threading.Event, content: bytes) -> None:
        super().__init__(content)
        self._answers = answers
        self._lock = threading.Lock()
        self.begun = threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        with self._lock:
            self.begun.set()
            assert self._answers.wait(BOUND)
            return super().read(size)

    def close(self) -> None:
        with self._lock:
            super().close()


@pytest.fixture
async def shots(disk: threading.Event) -> AsyncIterator[Bench]:
    async with worker_bench(storage=Hanging(disk)) as bench:
        await bench.hold("shots")
        yield bench
        disk.set()


async def test_media_stay_in_results_when_too_many_wait_for_the_disk(
    shots: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = result(PNG)
    monkeypatch.setattr(artifacts, "_MAX_WRITING", len(payload))
    caller = shots.caller()
    first = await caller.begin("shots")
    await answer(shots, payload)
    with caplog.at_level(logging.WARNING):
        assert await call(shots, payload) == json.loads(payload)
    assert f"{len(payload)} bytes of results already wait for the disk" in caplog.text
    assert not caller.results[first].done()


async def test_media_are_stored_again_after_the_disk_hung(
    shots: Bench, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = result(PNG)
    monkeypatch.setattr(artifacts, "_MAX_WRITING", len(payload))
    disk.set()
    refs = {await kept(shots) for _ in range(3)}
    assert len(refs) == 3


async def test_a_cancelled_read_of_a_hanging_disk_delays_no_call(
    shots: Bench, disk: threading.Event
) -> None:
    disk.set()
    ref = await kept(shots)
    disk.clear()
    store = shots.worker.artifacts
    storage = store._storage
    assert isinstance(storage, Hanging)
    parts = store.read_parts(store.find(ref, ArtifactReader("default", "s1")), 0, len(PNG))
    first = asyncio.ensure_future(anext(parts))
    await shots.until(lambda: storage.readers and storage.readers[0].begun.is_set())
    first.cancel()
    await asyncio.wait([first], timeout=BOUND)
    assert await call(shots, b'{"content":[]}') == {"content": []}
    assert not storage.readers[0].closed
    disk.set()
    await shots.until(lambda: storage.readers[0].closed)


async def test_a_stopping_worker_waits_briefly_for_a_hanging_disk(
    tmp_path: Path,
    disk: threading.Event,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close: Callable[[DirectoryStorage], None] = DirectoryStorage.close
    closed = threading.Event()

    def hang(storage: DirectoryStorage) -> None:
        assert disk.wait(BOUND)
        close(storage)
        closed.set()

    monkeypatch.setattr(DirectoryStorage, "close", hang)
    async with asyncio.timeout(BOUND):
        async with artifact_storage(tmp_path, grace=0.05):
            (folder,) = tmp_path.iterdir()
    assert f"The artifacts in {folder} were not removed: the disk has not responded" in caplog.text
    disk.set()
    assert await asyncio.to_thread(closed.wait, BOUND)
    assert list(tmp_path.iterdir()) == []
