"""Artifacts of a worker: kept while calls end, read by those who called and by nobody else."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.data_plane.edge.conftest import Bench, worker_bench

from leaseway.data_plane.core.artifact_index import Retention
from leaseway.data_plane.core.media import Kept, Media
from leaseway.data_plane.edge.artifact_reads import send_artifact
from leaseway.data_plane.edge.artifact_storage import DirectoryStorage, MemoryStorage
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.artifact_refs import artifact_reference, incarnation_mark, reference_mark
from leaseway.wire.fault import Fault, Reason, fault_from_rpc_error, fault_from_status
from leaseway.wire.metrics import Meter

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


def result(*contents: bytes, kind: str = "image", mime: str = "image/png") -> bytes:
    items = [
        {"type": kind, "mimeType": mime, "data": base64.b64encode(content).decode()}
        for content in contents
    ]
    return json.dumps({"content": items}).encode()


@pytest.fixture
async def shots(bench: Bench) -> Bench:
    """A worker with a server whose calls wait to be answered."""
    await bench.serve("shots")
    bench.servers.holds = True
    return bench


async def call(bench: Bench, payload: bytes, **fields: Any) -> Any:
    """Make a call, answer it, and return its result as JSON."""
    caller = bench.caller()
    call_id = await caller.begin("shots", **fields)
    await answer(bench, payload)
    await caller.result(call_id)
    return json.loads(caller.payloads[call_id])


async def answer(bench: Bench, payload: bytes) -> None:
    await bench.until(lambda: bench.servers.opened and bench.servers.opened[0].calls)
    bench.servers.opened[0].calls[0].answer(payload)


async def kept(bench: Bench, content: bytes = PNG, **fields: Any) -> str:
    """Have a call return an image; return its reference."""
    fields.setdefault("session", "s1")
    said = await call(bench, result(content), **fields)
    return str(said["content"][0]["artifact"])


async def read(bench: Bench, ref: str, **fields: Any) -> list[execution_pb2.ReadArtifactResponse]:
    fields.setdefault("session", "s1")
    request = execution_pb2.ReadArtifactRequest(ref=ref, **fields)
    return [part async for part in bench.execution.ReadArtifact(request, timeout=20)]


async def refused(bench: Bench, ref: str, **fields: Any) -> Fault:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await read(bench, ref, **fields)
    fault = fault_from_rpc_error(error.value)
    assert fault is not None
    return fault


async def test_an_image_is_kept_and_read_by_its_session(shots: Bench) -> None:
    said = await call(shots, result(PNG), session="s1")
    item = said["content"][0]
    assert item == {
        "type": "image",
        "mimeType": "image/png",
        "byteLength": len(PNG),
        "artifact": item["artifact"],
    }
    assert item["artifact"].startswith("artifacts/mcp/shots/echo/")
    incarnation = shots.first_hello.worker.incarnation
    assert reference_mark(item["artifact"]) == incarnation_mark(incarnation)
    first, *rest = await read(shots, item["artifact"])
    assert (first.mime_type, first.byte_length) == ("image/png", len(PNG))
    assert b"".join(part.data for part in rest) == PNG


async def test_a_caller_that_wants_media_in_place_gets_the_bytes_as_sent(shots: Bench) -> None:
    payload = result(PNG)
    caller = shots.caller()
    call_id = await caller.begin("shots", inline_media=True)
    await answer(shots, payload)
    await caller.result(call_id)
    assert caller.payloads[call_id] == payload
    assert shots.worker.artifacts.held == 0


async def test_bytes_that_are_no_base64_stay_and_the_log_says_so(
    shots: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    payload = json.dumps({"content": [{"type": "image", "mimeType": "image/png", "data": "%"}]})
    with caplog.at_level(logging.WARNING):
        assert await call(shots, payload.encode()) == json.loads(payload)
    assert "shots:echo stays in it and is not kept as an artifact" in caplog.text


async def test_an_artifact_is_read_on_from_an_offset(shots: Bench) -> None:
    ref = await kept(shots)
    _, *rest = await read(shots, ref, offset=100)
    assert b"".join(part.data for part in rest) == PNG[100:]
    assert len(await read(shots, ref, offset=len(PNG))) == 1
    fault = await refused(shots, ref, offset=len(PNG) + 1)
    assert fault.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("tenant", "session"),
    [("acme", "s2"), ("acme", ""), ("other", "s1"), ("", "s1"), ("default", "s1"), ("ACME", "s1")],
)
async def test_another_tenant_or_session_learns_no_more_than_of_a_missing_one(
    shots: Bench, tenant: str, session: str
) -> None:
    ref = await kept(shots, tenant="acme")
    assert await read(shots, ref, tenant="acme")
    fault = await refused(shots, ref, tenant=tenant, session=session)
    missing = ref.replace(ref[-8:-4], "0000" if ref[-8:-4] != "0000" else "1111")
    never = await refused(shots, missing, tenant=tenant, session=session)
    assert fault.reason is never.reason is Reason.ARTIFACT_LOST
    assert fault.message.replace(ref, "") == never.message.replace(missing, "")
    assert fault.metadata == never.metadata


PATHS = [
    "",
    "/",
    "..",
    "artifacts",
    "artifacts/mcp/shots/echo",
    "../../../../etc/passwd",
    "artifacts/../../../../etc/passwd",
    "artifacts/mcp/shots/echo/../../../../secret.txt",
    "/etc/passwd",
    "file:///etc/passwd",
    "%2e%2e/%2e%2e/etc/passwd",
    "artifacts/mcp/shots/echo/%2e%2e/x.png",
    "artifacts\\mcp\\shots",
    "artifacts/mcp/shots/echo/\0.png",
    "{ref}/",
    "{ref}/../x",
    "./{ref}",
    "//{ref}",
    "{ref}\0",
    "{ref}\n",
    "{path}",
    "a" * 100_000,
]


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[tuple[Bench, Path]]:
    """A worker that keeps artifacts in a folder, with a secret beside them."""
    storage = DirectoryStorage(tmp_path)
    (storage.folder / "secret.txt").write_text("secret")
    async with worker_bench(storage=storage) as bench:
        await bench.serve("shots")
        bench.servers.holds = True
        yield bench, storage.folder
    storage.close()


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_anywhere(on_disk: tuple[Bench, Path], path: str) -> None:
    bench, folder = on_disk
    ref = await kept(bench)
    assert (folder / ref).read_bytes() == PNG
    wrong = path.format(ref=ref, path=folder / ref)
    fault = await refused(bench, wrong)
    assert fault.reason is Reason.ARTIFACT_LOST
    assert len(fault.message) < 500


async def test_calls_go_on_while_an_image_is_written(
    shots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = shots.worker.artifacts._storage
    may_write = threading.Event()
    write = storage.write

    def slowly(ref: str, parts: Iterable[bytes]) -> int:
        assert may_write.wait(10)
        return write(ref, parts)

    monkeypatch.setattr(storage, "write", slowly)
    caller = shots.caller()
    with_image = await caller.begin("shots")
    await answer(shots, result(PNG))
    assert (await call(shots, b'{"content":[]}')) == {"content": []}
    assert not caller.results[with_image].done()
    assert shots.worker.executor.in_flight == 1
    may_write.set()
    await caller.result(with_image)
    assert b"artifact" in caller.payloads[with_image]
    assert shots.worker.executor.in_flight == 0


async def test_a_call_whose_deadline_passes_while_its_image_is_written_has_started(
    shots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = shots.worker.artifacts._storage
    may_write = threading.Event()
    write = storage.write

    def slowly(ref: str, parts: Iterable[bytes]) -> int:
        assert may_write.wait(10)
        return write(ref, parts)

    monkeypatch.setattr(storage, "write", slowly)
    caller = shots.caller()
    call_id = await caller.begin("shots", timeout_ms=200)
    await answer(shots, result(PNG))
    ended = await caller.result(call_id)
    fault = fault_from_status(ended.status)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "yes")
    may_write.set()
    await shots.until(lambda: shots.worker.artifacts.held == 1)


async def test_an_image_that_cannot_be_written_stays_in_place(
    shots: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(ref: str, parts: Iterable[bytes]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shots.worker.artifacts._storage, "write", full)
    payload = result(PNG)
    with caplog.at_level(logging.WARNING):
        assert await call(shots, payload) == json.loads(payload)
    assert "No space left" in caplog.text


async def test_a_tool_with_an_odd_name_has_a_plain_path(bench: Bench) -> None:
    odd = b'{"name":"a/../b c","inputSchema":{"type":"object"}}'
    bench.servers.tools = {"a/../b c": odd}
    await bench.serve("shots")
    bench.servers.holds = True
    said = await call(bench, result(PNG), tool="a/../b c")
    assert said["content"][0]["artifact"].startswith("artifacts/mcp/shots/a____b_c/")


async def test_unary_callers_get_typed_references_or_typed_bytes(shots: Bench) -> None:
    request = execution_pb2.CallToolRequest(server_id="shots", tool="echo", session="s1")
    request.arguments.update({"text": "hi"})
    calling = asyncio.ensure_future(_unary(shots, request))
    await answer(shots, result(PNG))
    image = (await calling).content[0].image
    assert (image.mime_type, image.byte_length, image.data) == ("image/png", len(PNG), b"")
    assert b"".join(part.data for part in await read(shots, image.artifact)) == PNG
    request.inline_media = True
    calling = asyncio.ensure_future(_unary(shots, request))
    await answer(shots, result(b"RIFF", kind="audio", mime="audio/wav"))
    audio = (await calling).content[0].audio
    assert (audio.mime_type, audio.data, audio.artifact) == ("audio/wav", b"RIFF", "")


async def _unary(bench: Bench, request: execution_pb2.CallToolRequest) -> Any:
    return await bench.execution.CallTool(request)


async def test_what_is_too_old_goes_while_the_worker_runs() -> None:
    storage = MemoryStorage()
    async with worker_bench(storage=storage, retention=Retention(age=0.3)) as bench:
        await bench.serve("shots")
        bench.servers.holds = True
        ref = await kept(bench)
        assert ref in storage.held
        await bench.until(lambda: not storage.held)
        assert bench.worker.artifacts.held == 0
        assert (await refused(bench, ref)).reason is Reason.ARTIFACT_LOST


async def test_the_oldest_make_room_and_an_image_larger_than_all_room_stays() -> None:
    storage = MemoryStorage()
    async with worker_bench(storage=storage, retention=Retention(space=2 * len(PNG))) as bench:
        await bench.serve("shots")
        bench.servers.holds = True
        refs = [await kept(bench) for _ in range(3)]
        await bench.until(lambda: set(storage.held) == set(refs[1:]))
        assert (await refused(bench, refs[0])).reason is Reason.ARTIFACT_LOST
        large = await call(bench, result(PNG * 3))
        assert "data" in large["content"][0]
        assert set(storage.held) == set(refs[1:])


async def test_ten_thousand_artifacts_under_retention_leave_the_newest_readable() -> None:
    storage = MemoryStorage()
    batch = result(*[b"x" * 100] * 250)
    async with worker_bench(storage=storage, retention=Retention(count=2_000)) as bench:
        await bench.serve("shots")
        bench.servers.holds = True
        for _ in range(40):
            said = await call(bench, batch, session="s1")
        assert bench.worker.artifacts.held == 2_000
        await bench.until(lambda: len(storage.held) == 2_000)
        newest = said["content"][-1]["artifact"]
        assert (await read(bench, newest))[1].data == b"x" * 100


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
    """Keep an artifact that is larger than a result can be."""
    noise = artifact_reference("s", "t", "image/png", mark="0" * 12, stored_at=0, noise=1)
    storage.write(noise, (bytes(bounds.MIB) for _ in range(size // bounds.MIB)))
    call = execution_pb2.Call(session="s1")
    bench.worker.artifacts._note(call, Media("image", "image/png", b""), Kept(noise, size))
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


async def test_no_more_than_a_number_of_artifacts_are_sent_at_once(
    shots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ARTIFACT_READERS", 1)
    ref = await kept(shots)
    store = shots.worker.artifacts
    artifact = store.find(ref, "", "s1")
    parts = store.parts(artifact, 0, 10)
    await anext(parts)
    fault = await refused(shots, ref)
    assert (fault.reason, fault.retry_delay) == (Reason.OVERLOADED, 0.2)
    await parts.aclose()
    assert await read(shots, ref)


async def test_what_is_kept_is_measured() -> None:
    meter = Meter()
    async with worker_bench(meter=meter) as bench:
        await bench.serve("shots")
        bench.servers.holds = True
        await kept(bench)
        await kept(bench)
        values = {
            family.name: [point.value for point in family.points] for family in meter.collect()
        }
    assert values["leaseway.artifacts"] == [2]
    assert values["leaseway.artifacts.size"] == [2 * len(PNG)]


async def test_a_caller_that_does_not_read_makes_room_for_others(shots: Bench) -> None:
    ref = await kept(shots)
    store = shots.worker.artifacts
    request = execution_pb2.ReadArtifactRequest(ref=ref, session="s1")
    blocked = asyncio.Event()

    async def write(_: execution_pb2.ReadArtifactResponse) -> None:
        await blocked.wait()

    with pytest.raises(Fault, match="read on from the offset") as error:
        await send_artifact(store, request, write, patience=0.01)
    assert error.value.reason is Reason.OVERLOADED
    assert store._readers == 0
