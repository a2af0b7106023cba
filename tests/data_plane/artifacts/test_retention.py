"""Expiry, eviction and streaming of artifacts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
from tests.data_plane.artifact_calls import PNG, call, kept, refused, result
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.data_plane.artifacts.storage import DirectoryStorage, MemoryStorage
from leaseway.data_plane.core.artifacts.index import ArtifactLimits
from leaseway.data_plane.core.artifacts.media import EncodedMedia, StoredMedia
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.telemetry.metrics import Meter
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.messages.artifact_refs import artifact_reference


async def test_expired_artifacts_are_removed_while_the_worker_runs() -> None:
    storage = MemoryStorage()
    async with worker_bench(storage=storage, retention=ArtifactLimits(max_age=2.0)) as bench:
        await bench.hold("shots")
        ref = await kept(bench)
        assert ref in storage.held
        await bench.until(lambda: not storage.held)
        assert len(bench.worker.artifacts) == 0
        assert (await refused(bench, ref)).reason is Reason.ARTIFACT_LOST


async def test_the_oldest_are_evicted_and_an_image_above_the_limit_is_not_stored() -> None:
    storage = MemoryStorage()
    async with worker_bench(
        storage=storage, retention=ArtifactLimits(max_bytes=2 * len(PNG))
    ) as bench:
        await bench.hold("shots")
        refs = [await kept(bench) for _ in range(3)]
        await bench.until(lambda: set(storage.held) == set(refs[1:]))
        assert (await refused(bench, refs[0])).reason is Reason.ARTIFACT_LOST
        large = await call(bench, result(PNG * 3))
        assert "data" in large["content"][0]
        assert set(storage.held) == set(refs[1:])


async def test_an_artifact_of_64_mib_is_streamed_in_parts_with_little_held(tmp_path: Path) -> None:
    storage = _Counting(tmp_path)
    async with worker_bench(storage=storage) as bench:
        ref = await asyncio.to_thread(_put, bench, storage, bounds.MAX_ARTIFACT)
        request = execution_pb2.ReadArtifactRequest(ref=ref, session="s1")
        stream = bench.execution.ReadArtifact(request, timeout=60)
        assert (await stream.read()).byte_length == bounds.MAX_ARTIFACT
        received, largest, ahead = 0, 0, 0
        while (part := await stream.read()) is not grpc.aio.EOF:
            received += len(part.data)
            largest = max(largest, len(part.data))
            ahead = max(ahead, storage.taken - received)
    storage.close()
    assert received == bounds.MAX_ARTIFACT
    assert largest == bounds.BATCH_SIZE
    assert ahead <= 8 * bounds.MIB, "the worker reads far ahead of its caller"


def _put(bench: Bench, storage: DirectoryStorage, size: int) -> str:
    """Store an artifact larger than any result."""
    noise = artifact_reference("s", "t", "image/png", mark="0" * 12, stored_at=0, noise=1)
    storage.write(noise, (bytes(bounds.MIB) for _ in range(size // bounds.MIB)))
    call = IncomingCall(session="s1")
    bench.worker.artifacts._add(
        call, "", EncodedMedia("image", "image/png", b""), StoredMedia(noise, size)
    )
    return noise


class _Counting(DirectoryStorage):
    """Counts the bytes that were read."""

    taken = 0

    def open(self, ref: str) -> Any:
        file = super().open(ref)
        read = file.read

        class Reader:
            def read(_self, size: int) -> bytes:  # noqa: N805 - the outer self counts
                part = read(size)
                self.taken += len(part)
                return part

            seek = file.seek
            close = file.close

        return Reader()


async def test_artifacts_are_measured() -> None:
    meter = Meter()
    async with worker_bench(meter=meter) as bench:
        await bench.hold("shots")
        await kept(bench)
        await kept(bench)
        values = {
            family.name: [point.value for point in family.points] for family in meter.collect()
        }
    assert values["leaseway.artifacts"] == [2]
    assert values["leaseway.artifacts.size"] == [2 * len(PNG)]
