"""Artifacts as clients read them: found by their reference, read on where a stream broke."""

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


class Keeper(FakeWorker):
    """A worker that keeps artifacts, and whose streams break where a test wants."""

    def __init__(self, worker_id: str) -> None:
        super().__init__(worker_id)
        self.kept: dict[str, bytes] = {}
        self.breaks: list[int | Fault | None] = []
        self.reads: list[execution_pb2.ReadArtifactRequest] = []
        self.open = 0
        self.mute = False

    def keep(self, content: bytes = PNG, mark: str = "") -> str:
        ref = artifact_reference(
            "shots",
            "page",
            "image/png",
            mark=mark or incarnation_mark(self.ref.incarnation),
            stored_at=0,
            noise=len(self.kept),
        )
        self.kept[ref] = content
        return ref

    async def ReadArtifact(
        self, request: execution_pb2.ReadArtifactRequest, context: Any
    ) -> AsyncIterator[execution_pb2.ReadArtifactResponse]:
        self.reads.append(request)
        content = self.kept.get(request.ref)
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
async def worker() -> AsyncIterator[Keeper]:
    async with Keeper("w1") as fake:
        yield fake


async def test_awaited_it_is_all_bytes_and_described(client: AsyncClient, worker: Keeper) -> None:
    artifact = client.read_artifact(worker.keep())
    with pytest.raises(RuntimeError, match="first part before its type"):
        _ = artifact.byte_length
    assert await artifact == PNG
    assert (artifact.mime_type, artifact.byte_length) == ("image/png", len(PNG))


async def test_a_session_reads_in_its_own_name_and_the_client_in_its_own(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep()
    await client.session("s1").read_artifact(ref)
    await client.read_artifact(ref)
    first, second = worker.reads
    assert first.session == "s1"
    assert second.session.startswith("client-")
    assert first.client.agent == "billing"


async def test_iterated_it_is_parts_and_a_large_one_is_never_held_whole(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep(bytes(64 * MIB))
    received = 0
    tracemalloc.start()
    try:
        async for part in client.read_artifact(ref):
            assert len(part) <= BATCH_SIZE
            received += len(part)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == 64 * MIB
    assert most < 16 * MIB


@pytest.mark.parametrize("size", [0, 1, BATCH_SIZE, BATCH_SIZE + 1])
async def test_any_size_arrives(client: AsyncClient, worker: Keeper, size: int) -> None:
    content = bytes(size)
    assert await client.read_artifact(worker.keep(content)) == content


async def test_a_broken_stream_goes_on_where_it_was(client: AsyncClient, worker: Keeper) -> None:
    content = bytes(range(256)) * 4096
    worker.breaks = [300_000, 700_000, None]
    assert await client.read_artifact(worker.keep(content)) == content
    assert [request.offset for request in worker.reads] == [0, 300_000, 700_000]


async def test_a_stream_that_always_breaks_is_given_up(client: AsyncClient, worker: Keeper) -> None:
    worker.breaks = [0] * 50
    artifact = client.read_artifact(worker.keep())
    with pytest.raises(WorkerLost):
        await artifact
    assert 2 < len(worker.reads) < 10
    with pytest.raises(RuntimeError, match="call read_artifact again"):
        await artifact.read()


async def test_a_worker_that_is_busy_is_asked_again(client: AsyncClient, worker: Keeper) -> None:
    worker.breaks = [Fault(Reason.OVERLOADED, "Too many.", retry_delay=0.001), None]
    assert await client.read_artifact(worker.keep()) == PNG


async def test_what_a_worker_lost_is_lost_at_once(client: AsyncClient, worker: Keeper) -> None:
    ref = worker.keep()
    worker.kept.clear()
    with pytest.raises(ArtifactLost):
        await client.read_artifact(ref)
    assert len(worker.reads) == 1


async def test_an_artifact_of_a_run_that_nobody_lists_is_lost(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep(mark="0" * 12)
    with pytest.raises(ArtifactLost, match="worker that kept it"):
        await client.read_artifact(ref)
    assert worker.reads == []


async def test_a_run_that_has_ended_meanwhile_loses_its_artifacts(
    client: AsyncClient, worker: Keeper, plane: FakeControlPlane, second: FakeWorker
) -> None:
    ref = worker.keep()
    await client.read_artifact(ref)
    await worker.stop()
    plane.workers = [second]
    with pytest.raises(ArtifactLost, match="worker that kept it"):
        await client.read_artifact(ref)


@pytest.mark.parametrize("ref", ["", "x", "artifacts/../../etc/passwd", "artifacts/" * 10_000])
async def test_what_is_no_reference_is_lost_without_asking_anybody(
    client: AsyncClient, worker: Keeper, ref: str
) -> None:
    with pytest.raises(ArtifactLost, match="not the reference"):
        await client.read_artifact(ref)
    assert worker.reads == []


async def test_parameters_of_the_wrong_type_are_told_apart(client: AsyncClient) -> None:
    with pytest.raises(TypeError, match="ref is a str"):
        client.read_artifact(b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout is a number"):
        client.read_artifact("x", timeout="1")  # type: ignore[arg-type]


async def test_breaking_off_ends_the_stream(client: AsyncClient, worker: Keeper) -> None:
    artifact = client.read_artifact(worker.keep(bytes(64 * MIB)))
    await anext(artifact)
    assert worker.open == 1
    await artifact.close()
    await until(lambda: worker.open == 0)


async def test_a_worker_that_stays_silent_is_given_up(client: AsyncClient, worker: Keeper) -> None:
    worker.mute = True
    with pytest.raises(DeadlineExceeded, match="sent nothing"):
        await client.read_artifact(worker.keep(), timeout=1.0)
    await until(lambda: worker.open == 0)


def image(ref: str, mime: str = "image/png") -> bytes:
    item = {"type": "image", "mimeType": mime, "byteLength": len(PNG), "artifact": ref}
    return json.dumps({"content": [{"type": "text", "text": "a"}, item]}).encode()


async def test_a_result_of_the_async_client_is_awaited_for_a_model(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep()
    worker.answer = lambda *_: image(ref)
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


async def test_a_result_of_a_session_is_read_in_it(client: AsyncClient, worker: Keeper) -> None:
    ref = worker.keep()
    worker.answer = lambda *_: image(ref)
    result = await client.session("s9").call_tool("time_now")
    await result.for_model()
    assert worker.reads[0].session == "s9"


async def test_an_image_that_is_lost_is_told_to_the_model(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep()
    worker.answer = lambda *_: image(ref)
    result = await client.call_tool("time_now")
    worker.kept.clear()
    _, item = await result.for_model()
    assert item["type"] == "text"
    assert item["text"].endswith(f"which is no longer kept: {ref}")


async def test_a_result_whose_client_is_closed_says_so(
    plane: FakeControlPlane, worker: Keeper
) -> None:
    ref = worker.keep()
    worker.answer = lambda *_: image(ref)
    async with AsyncClient(plane.address) as client:
        result = await client.call_tool("time_now")
    with pytest.raises(RuntimeError, match="closed"):
        await result.for_model()


async def test_a_result_that_was_pickled_names_its_image(
    client: AsyncClient, worker: Keeper
) -> None:
    ref = worker.keep()
    worker.answer = lambda *_: image(ref)
    result = pickle.loads(pickle.dumps(await client.call_tool("time_now")))
    assert isinstance(result, ToolResult)
    _, item = await result.for_model()
    assert item["type"] == "text"
    assert ref in item["text"]


async def test_the_synchronous_client_has_all_at_once(
    plane: FakeControlPlane, worker: Keeper
) -> None:
    ref = worker.keep(bytes(3 * BATCH_SIZE))
    worker.answer = lambda *_: image(ref)

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
            worker.kept.clear()
            with pytest.raises(ArtifactLost):
                client.read_artifact(ref).read()

    await asyncio.to_thread(use)
    assert worker.reads[0].session == worker.calls[0].session
