"""Artifacts of a worker: stored from results, read only by their owners."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.data_plane.artifact_calls import PNG, answer, call, kept, read, refused, result
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.data_plane.artifacts.storage import DirectoryStorage
from leaseway.data_plane.core.artifacts.index import ArtifactReader
from leaseway.data_plane.services.execution import send_artifact
from leaseway.spec.auth import Auth
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import incarnation_mark, reference_mark
from leaseway.wire.status import fault_from_status


@pytest.fixture
async def shots(bench: Bench) -> Bench:
    """A worker with a server that leaves its calls unanswered."""
    await bench.hold("shots")
    return bench


async def test_an_image_is_stored_and_read_by_its_session(shots: Bench) -> None:
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


async def test_inline_media_are_passed_on_unchanged(shots: Bench) -> None:
    payload = result(PNG)
    caller = shots.caller()
    call_id = await caller.begin("shots", inline_media=True)
    await answer(shots, payload)
    await caller.result(call_id)
    assert caller.payloads[call_id] == payload
    assert len(shots.worker.artifacts) == 0


async def test_an_image_in_an_oversize_result_is_stored(shots: Bench) -> None:
    image = bytes(bounds.MAX_RESULT)
    ref = await kept(shots, image)
    first, *rest = await read(shots, ref)
    assert (first.byte_length, b"".join(part.data for part in rest)) == (len(image), image)


async def test_a_result_that_stays_oversize_is_refused(shots: Bench) -> None:
    caller = shots.caller()
    in_place = await caller.begin("shots", inline_media=True)
    await answer(shots, result(bytes(bounds.MAX_RESULT)))
    text = await caller.begin("shots")
    padded = {"type": "image", "data": "AAAA", "note": "x" * bounds.MAX_RESULT}
    await answer(shots, json.dumps({"content": [padded]}).encode())
    for call_id in (in_place, text):
        fault = fault_from_status((await caller.result(call_id)).status)
        assert fault is not None
        assert (fault.reason, fault.started) == (Reason.RESULT_TOO_LARGE, "yes")


async def test_invalid_base64_remains_in_the_result_with_a_warning(
    shots: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    payload = json.dumps({"content": [{"type": "image", "mimeType": "image/png", "data": "%"}]})
    with caplog.at_level(logging.WARNING):
        assert await call(shots, payload.encode()) == json.loads(payload)
    assert "shots:echo remains in it and is not kept as an artifact" in caplog.text


async def test_too_many_media_in_a_result_are_logged(
    shots: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        said = await call(shots, result(*[b"x"] * (bounds.MAX_ARTIFACTS_PER_RESULT + 1)))
    assert ["data" in item for item in said["content"]].count(True) == 1
    assert "shots:echo has more than 256 images and sounds" in caplog.text


async def test_an_artifact_is_read_from_an_offset(shots: Bench) -> None:
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
async def test_an_artifact_of_another_owner_looks_like_a_missing_one(
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
        await bench.hold("shots")
        yield bench, storage.folder
    storage.close()


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_escapes_the_artifacts(on_disk: tuple[Bench, Path], path: str) -> None:
    bench, folder = on_disk
    ref = await kept(bench)
    assert (folder / ref).read_bytes() == PNG
    wrong = path.format(ref=ref, path=folder / ref)
    fault = await refused(bench, wrong)
    assert fault.reason is Reason.ARTIFACT_LOST
    assert len(fault.message) < 500


async def test_other_calls_continue_while_an_image_is_written(
    shots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = shots.worker.artifacts._storage
    may_write = threading.Event()
    write = storage.write

    def slowly(ref: str, parts: Iterable[bytes]) -> int:
        assert may_write.wait(60)
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
        assert may_write.wait(60)
        return write(ref, parts)

    monkeypatch.setattr(storage, "write", slowly)
    caller = shots.caller()
    call_id = await caller.begin("shots", timeout_ms=2_000)
    await answer(shots, result(PNG))
    ended = await caller.result(call_id)
    fault = fault_from_status(ended.status)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "yes")
    may_write.set()
    await shots.until(lambda: len(shots.worker.artifacts) == 1)


async def test_an_image_that_cannot_be_written_remains_in_the_result(
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
    await bench.hold("shots")
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


async def test_concurrent_reads_of_artifacts_are_limited(
    shots: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ARTIFACT_READERS", 1)
    ref = await kept(shots)
    store = shots.worker.artifacts
    artifact = store.find(ref, ArtifactReader("default", "s1"))
    parts = store.read_parts(artifact, 0, 10)
    await anext(parts)
    fault = await refused(shots, ref)
    assert (fault.reason, fault.retry_delay) == (Reason.OVERLOADED, 0.2)
    await parts.aclose()
    assert await read(shots, ref)


async def test_a_caller_that_does_not_read_times_out(shots: Bench) -> None:
    ref = await kept(shots)
    store = shots.worker.artifacts
    request = execution_pb2.ReadArtifactRequest(ref=ref, session="s1")
    blocked = asyncio.Event()

    async def write(_: execution_pb2.ReadArtifactResponse) -> None:
        await blocked.wait()

    with pytest.raises(Fault, match="continue later with the offset") as error:
        await send_artifact(store, request, write, timeout=0.01)
    assert error.value.reason is Reason.OVERLOADED
    assert not store._readers


async def keep_without_session(bench: Bench, tenant: str = "") -> str:
    """Make a unary call without a session that returns an image; return its reference."""
    request = execution_pb2.CallToolRequest(server_id="shots", tool="echo", tenant=tenant)
    request.arguments.update({"text": "hi"})
    calling = bench.execution.CallTool(request, timeout=60)
    await answer(bench, result(PNG))
    response = await calling
    return str(response.content[0].image.artifact)


async def test_the_artifact_of_a_call_without_a_session_belongs_to_its_tenant(shots: Bench) -> None:
    ref = await keep_without_session(shots, tenant="acme")
    parts = await read(shots, ref, tenant="acme", session="")
    assert b"".join(part.data for part in parts) == PNG


@pytest.mark.parametrize(
    ("tenant", "session"), [("other", ""), ("", ""), ("acme", "s1"), ("other", "s1")]
)
async def test_another_tenant_or_session_cannot_read_an_artifact_of_a_tenant(
    shots: Bench, tenant: str, session: str
) -> None:
    ref = await keep_without_session(shots, tenant="acme")
    fault = await refused(shots, ref, tenant=tenant, session=session)
    assert fault.reason is Reason.ARTIFACT_LOST


async def test_a_reference_does_not_reveal_the_next_one(shots: Bench) -> None:
    refs = [await keep_without_session(shots) for _ in range(8)]
    ends = [re.sub(r".*Z-[0-9a-f]{8}-[0-9a-f]{4}-", "", ref) for ref in refs]
    # Each digit of the 74 random bits differs somewhere; version and variant stand still.
    columns = zip(*ends, strict=True)
    still = "".join(column[0] for column in columns if len(set(column)) == 1)
    assert re.fullmatch(r"8-[89ab]?-\.png", still), ends


@pytest.mark.parametrize(
    ("auth", "owner", "others"),
    [
        (Auth("authorization_code", "user"), {"user": "anna"}, [{"user": "bob"}, {}]),
        (
            Auth("token_exchange", "caller"),
            {"subject_token": "of-anna"},
            [{"subject_token": "of-bob"}, {"user": "anna"}, {}],
        ),
    ],
    ids=["logins", "tokens"],
)
async def test_an_image_of_a_server_that_acts_for_users_is_its_users_only(
    bench: Bench, auth: Auth, owner: dict[str, Any], others: list[dict[str, str]]
) -> None:
    def reader(user: str = "", subject_token: str = "") -> dict[str, Any]:
        client = catalog_pb2.ClientInfo(protocol_version=1, user=user)
        return {"client": client, "subject_token": subject_token}

    await bench.hold("shots", auth=auth)
    ref = await kept(bench, **owner)
    assert b"".join(part.data for part in await read(bench, ref, **reader(**owner))) == PNG
    for other in others:
        assert (await refused(bench, ref, **reader(**other))).reason is Reason.ARTIFACT_LOST
