"""Clients read artifacts: they find them by reference and resume broken streams."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, until

from leaseway.sdk import ArtifactLost, AsyncClient, Client, DeadlineExceeded, WorkerLost
from leaseway.sdk.calls.results import ToolResult
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import BATCH_SIZE, MIB
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import artifact_reference, incarnation_mark
from leaseway.wire.status import abort

PNG = b"\x89PNG" + bytes(range(256)) * 4


class ArtifactWorker(FakeWorker):
    """A worker that keeps artifacts and breaks their streams at the offsets in `breaks`."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(worker_id)
        self.artifacts: dict[str, bytes] = {}
        self.breaks: list[int | Fault | None] = []
        self.reads: list[execution_pb2.ReadArtifactRequest] = []
        self.open = 0
        self.mute = False

    def add_artifact(self, content: bytes = PNG, mark: str = "") -> str:
        ref = artifact_reference(
            "shots",
            "page",
            "image/png",
            mark=mark or incarnation_mark(self.ref.incarnation),
            stored_at=0,
            noise=len(self.artifacts),
        )
        self.artifacts[ref] = content
        return ref

    def return_artifact(self, content: bytes = PNG) -> str:
        """Add an image that all calls return, after a text."""
        ref = self.add_artifact(content)
        item = {"type": "image", "mimeType": "image/png", "byteLength": len(PNG), "artifact": ref}
        payload = json.dumps({"content": [{"type": "text", "text": "a"}, item]}).encode()
        self.answer = lambda *_: payload
        return ref

    async def ReadArtifact(
        self, request: execution_pb2.ReadArtifactRequest, context: Any
    ) -> AsyncIterator[execution_pb2.ReadArtifactResponse]:
        self.reads.append(request)
        content = self.artifacts.get(request.ref)
        if content is None:
            await abort(context, Fault(Reason.ARTIFACT_LOST, "It is gone."))
        assert content is not None
        cut = self.breaks.pop(0) if self.breaks else None
        if isinstance(cut, Fault):
            await abort(context, cut)
        self.open += 1
        try:
            if self.mute:
                await asyncio.sleep(BOUND)
            yield execution_pb2.ReadArtifactResponse(
                mime_type="image/png", byte_length=len(content)
            )
            end = len(content) if cut is None else int(str(cut))
            for start in range(request.offset, end, BATCH_SIZE):
                part = content[start : min(start + BATCH_SIZE, end)]
                yield execution_pb2.ReadArtifactResponse(data=part)
            if cut is not None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was reset")
        finally:
            self.open -= 1


@pytest.fixture
async def worker() -> AsyncIterator[ArtifactWorker]:
    async with ArtifactWorker("w1") as fake:
        yield fake


@pytest.mark.parametrize("size", [0, 1, BATCH_SIZE, BATCH_SIZE + 1])
async def test_an_awaited_artifact_is_all_bytes_and_then_has_a_type_and_a_size(
    client: AsyncClient, worker: ArtifactWorker, size: int
) -> None:
    artifact = client.read_artifact(worker.add_artifact(bytes(size)))
    with pytest.raises(RuntimeError, match="first part before its type"):
        _ = artifact.byte_length
    assert await artifact == bytes(size)
    assert (artifact.mime_type, artifact.byte_length) == ("image/png", size)


async def test_a_session_and_the_client_read_artifacts_with_their_own_session_keys(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.add_artifact()
    await client.session("s1").read_artifact(ref)
    await client.read_artifact(ref)
    first, second = worker.reads
    assert first.session == "s1"
    assert second.session.startswith("client-")
    assert first.client.agent == "billing"


async def test_a_large_artifact_is_iterated_in_parts_within_little_memory(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.add_artifact(bytes(64 * MIB))
    received = 0
    tracemalloc.start()
    try:
        async for part in client.read_artifact(ref):
            assert len(part) <= BATCH_SIZE
            received += len(part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == 64 * MIB
    assert peak < 16 * MIB


async def test_a_broken_stream_is_resumed_at_the_same_offset(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    content = bytes(range(256)) * 4096
    worker.breaks = [300_000, 700_000, None]
    assert await client.read_artifact(worker.add_artifact(content)) == content
    assert [request.offset for request in worker.reads] == [0, 300_000, 700_000]


async def test_a_stream_that_always_breaks_fails_after_a_few_tries(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    worker.breaks = [0] * 50
    artifact = client.read_artifact(worker.add_artifact())
    with pytest.raises(WorkerLost):
        await artifact
    assert 2 < len(worker.reads) < 10
    with pytest.raises(RuntimeError, match="call read_artifact again"):
        await artifact.read()


async def test_an_overloaded_worker_is_asked_again(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    worker.breaks = [Fault(Reason.OVERLOADED, "Too many.", retry_delay=0.001), None]
    assert await client.read_artifact(worker.add_artifact()) == PNG


async def test_an_artifact_that_the_worker_does_not_have_is_lost_at_once(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.add_artifact()
    worker.artifacts.clear()
    with pytest.raises(ArtifactLost):
        await client.read_artifact(ref)
    assert len(worker.reads) == 1


async def test_an_artifact_of_an_unlisted_worker_is_lost(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.add_artifact(mark="0" * 12)
    with pytest.raises(ArtifactLost, match="worker that kept it"):
        await client.read_artifact(ref)
    assert worker.reads == []


async def test_artifacts_are_lost_when_their_worker_exits(
    client: AsyncClient, worker: ArtifactWorker, plane: FakeControlPlane, second: FakeWorker
) -> None:
    ref = worker.add_artifact()
    await client.read_artifact(ref)
    await worker.stop()
    plane.workers = [second]
    with pytest.raises(ArtifactLost, match="worker that kept it"):
        await client.read_artifact(ref)


@pytest.mark.parametrize("ref", ["", "x", "artifacts/../../etc/passwd", "artifacts/" * 10_000])
async def test_an_invalid_reference_is_rejected_without_a_request(
    client: AsyncClient, worker: ArtifactWorker, ref: str
) -> None:
    with pytest.raises(ArtifactLost, match="not the reference"):
        await client.read_artifact(ref)
    assert worker.reads == []


async def test_read_artifact_rejects_parameters_of_the_wrong_type(client: AsyncClient) -> None:
    with pytest.raises(TypeError, match="ref is a str"):
        client.read_artifact(b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout is a number"):
        client.read_artifact("x", timeout="1")  # type: ignore[arg-type]


async def test_closing_an_artifact_early_ends_its_stream(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    artifact = client.read_artifact(worker.add_artifact(bytes(64 * MIB)))
    await anext(artifact)
    assert worker.open == 1
    await artifact.close()
    await until(lambda: worker.open == 0)


async def test_parts_after_a_cancelled_read_are_not_taken_for_the_end(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    worker.mute = True
    artifact = client.read_artifact(worker.add_artifact())
    reading = asyncio.ensure_future(anext(artifact))
    await until(lambda: worker.open)
    reading.cancel()
    await asyncio.wait([reading])
    with pytest.raises(RuntimeError, match="was cancelled before"):
        _ = [part async for part in artifact]


async def test_a_silent_worker_fails_the_read_after_the_timeout(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    worker.mute = True
    with pytest.raises(DeadlineExceeded, match="sent nothing"):
        await client.read_artifact(worker.add_artifact(), timeout=1.0)
    await until(lambda: worker.open == 0)


async def test_for_model_of_an_async_result_is_awaited(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    worker.return_artifact()
    result = await client.call_tool("time_now")
    content = result.for_model()
    assert len(content) == 2
    with pytest.raises(RuntimeError, match="await"):
        list(content)
    items = await content
    assert items == [
        {"type": "text", "text": "a"},
        {"type": "image", "mime_type": "image/png", "data": base64.b64encode(PNG).decode()},
    ]
    assert content == items
    assert worker.reads[0].session == worker.calls[0].session
    await (await client.session("s9").call_tool("time_now")).for_model()
    assert worker.reads[1].session == "s9"


async def test_for_model_replaces_a_lost_image_with_text(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.return_artifact()
    result = await client.call_tool("time_now")
    worker.artifacts.clear()
    _, item = await result.for_model()
    assert item["type"] == "text"
    assert item["text"].endswith(f"which is no longer kept: {ref}")


async def test_for_model_fails_after_the_client_is_closed(
    plane: FakeControlPlane, worker: ArtifactWorker
) -> None:
    worker.return_artifact()
    async with AsyncClient(plane.address) as client:
        result = await client.call_tool("time_now")
    with pytest.raises(RuntimeError, match="closed"):
        await result.for_model()


async def test_for_model_of_a_pickled_result_names_the_image(
    client: AsyncClient, worker: ArtifactWorker
) -> None:
    ref = worker.return_artifact()
    result = pickle.loads(pickle.dumps(await client.call_tool("time_now")))
    assert isinstance(result, ToolResult)
    _, item = await result.for_model()
    assert item["type"] == "text"
    assert ref in item["text"]


async def test_the_synchronous_client_reads_artifacts(
    plane: FakeControlPlane, worker: ArtifactWorker
) -> None:
    ref = worker.return_artifact(bytes(3 * BATCH_SIZE))

    def use() -> None:
        with Client(plane.address) as client:
            _, item = client.call_tool("time_now").for_model()
            assert item["type"] == "image"
            artifact = client.session("s1").read_artifact(ref)
            assert [len(part) for part in artifact] == [BATCH_SIZE] * 3
            assert (artifact.mime_type, artifact.byte_length) == ("image/png", 3 * BATCH_SIZE)
            broken_off = client.read_artifact(ref)
            assert len(next(broken_off)) == BATCH_SIZE
            broken_off.close()
            assert client.read_artifact(ref).read() == bytes(3 * BATCH_SIZE)
            worker.artifacts.clear()
            with pytest.raises(ArtifactLost):
                client.read_artifact(ref).read()

    await asyncio.to_thread(use)
    assert worker.reads[0].session == worker.calls[0].session
