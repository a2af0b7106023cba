"""Images and sounds of servers: stored by workers, read by sessions, shown to models."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.system import System, eventually, python_server, running
from tests.servers.pictures import SVG, WAV, png

from leaseway.sdk import ArtifactLost, AsyncClient, Client
from leaseway.wire.bounds import BATCH_SIZE

RED = png(255, 0, 0)


def pictures(**settings: object) -> dict[str, object]:
    return {"pictures": python_server("pictures.py", **settings)}


@pytest.fixture(scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[System, AsyncClient]]:
    """Run two workers with a shared server of images."""
    servers = pictures(**{"truely-stateless": True})
    folder = tmp_path_factory.mktemp("pictures")
    async with running(folder, servers, workers=2) as (system, client):
        yield system, client


async def test_media_of_results_are_references_whose_bytes_can_be_read(
    shared: tuple[System, AsyncClient],
) -> None:
    _, client = shared
    result = await client.call_tool("gallery")
    assert [item["type"] for item in result.content] == ["text", "image", "audio", "image"]
    assert [media.mime_type for media in result.media] == [
        "image/png",
        "audio/wav",
        "image/svg+xml",
    ]
    for media, content in zip(result.media, (RED, WAV, SVG), strict=True):
        assert media.artifact is not None
        assert media.byte_length == len(content)
        artifact = client.read_artifact(media.artifact)
        assert await artifact == content
        assert (artifact.mime_type, artifact.byte_length) == (media.mime_type, len(content))


async def test_for_model_has_images_and_describes_other_media(
    shared: tuple[System, AsyncClient],
) -> None:
    _, client = shared
    result = await client.call_tool("gallery")
    look, red, sound, svg = await result.for_model()
    assert look == {"type": "text", "text": "Look:"}
    assert red == {
        "type": "image",
        "mime_type": "image/png",
        "data": base64.b64encode(RED).decode(),
    }
    assert sound["type"] == svg["type"] == "text"
    assert sound["text"].startswith(f"A sound (audio/wav, {len(WAV)} bytes)")
    assert sound["text"].endswith(str(result.content[2]["artifact"]))
    assert "image/svg+xml" in svg["text"]


async def test_a_call_can_ask_for_inline_media(shared: tuple[System, AsyncClient]) -> None:
    _, client = shared
    result = await client.call_tool("pixel", {"color": [1, 2, 3]}, inline_media=True)
    assert base64.b64decode(result.content[0]["data"]) == png(1, 2, 3)
    assert result.media[0].data == png(1, 2, 3)
    assert result.for_model() == await result.for_model()


async def test_media_of_prompts_are_references_or_inline_like_those_of_results(
    shared: tuple[System, AsyncClient],
) -> None:
    _, client = shared
    blue = png(0, 0, 255)
    kept = (await client.get_prompt("describe")).messages[0]["content"]
    assert (kept["mimeType"], kept["byteLength"]) == ("image/png", len(blue))
    assert await client.read_artifact(kept["artifact"]) == blue
    shown = (await client.get_prompt("describe", inline_media=True)).messages[0]["content"]
    assert base64.b64decode(shown["data"]) == blue
    assert "artifact" not in shown


async def test_bytes_of_resources_are_inline(shared: tuple[System, AsyncClient]) -> None:
    _, client = shared
    read = await client.read_resource("pictures://green")
    assert read.blob == png(0, 255, 0)
    assert read.contents[0].keys() >= {"uri", "mimeType", "blob"}


async def test_media_with_invalid_base64_become_a_text(shared: tuple[System, AsyncClient]) -> None:
    _, client = shared
    result = await client.call_tool("broken")
    assert json.loads(result.text)["data"] == "no base64!"
    assert (await result.for_model())[0]["type"] == "text"


async def test_a_large_artifact_is_read_in_parts(shared: tuple[System, AsyncClient]) -> None:
    _, client = shared
    size = 20 << 20  # in base64 above the limit of a result, below that of a line
    result = await client.call_tool("large", {"size": size})
    parts = [part async for part in client.read_artifact(result.content[0]["artifact"])]
    assert b"".join(parts) == bytes(range(256)) * (size // 256)
    assert max(len(part) for part in parts) <= BATCH_SIZE


async def test_the_synchronous_client_reads_artifacts(shared: tuple[System, AsyncClient]) -> None:
    system, _ = shared

    def use() -> None:
        with Client(system.address) as client, client.session("s") as session:
            result = session.call_tool("pixel", {"color": [9, 8, 7]})
            ref = result.content[0]["artifact"]
            artifact = session.read_artifact(ref)
            assert b"".join(artifact) == artifact_bytes == session.read_artifact(ref).read()
            assert (artifact.mime_type, artifact.byte_length) == ("image/png", len(artifact_bytes))
            items = result.for_model()
            assert items[0] == items[-1]
            (item,) = items
            assert item["type"] == "image"
            assert item["data"] == base64.b64encode(artifact_bytes).decode()
            with pytest.raises(ArtifactLost):
                client.read_artifact(ref).read()

    artifact_bytes = png(9, 8, 7)
    await asyncio.to_thread(use)


@pytest.mark.parametrize("ref", ["", "../../etc/passwd", "artifacts/mcp/pictures/pixel/x.png"])
async def test_an_invalid_reference_is_reported_as_a_lost_artifact(
    shared: tuple[System, AsyncClient], ref: str
) -> None:
    _, client = shared
    with pytest.raises(ArtifactLost):
        await client.read_artifact(ref)


async def test_a_session_reads_only_its_own_artifacts(tmp_path: Path) -> None:
    async with running(tmp_path, pictures()) as (system, client):
        first, second = client.session("first"), client.session("second")
        mine = (await first.call_tool("pixel", {"color": [1, 1, 1]})).content[0]["artifact"]
        theirs = (await second.call_tool("pixel", {"color": [2, 2, 2]})).content[0]["artifact"]
        assert await first.read_artifact(mine) == png(1, 1, 1)
        assert await second.read_artifact(theirs) == png(2, 2, 2)
        async with AsyncClient(system.address, tenant="other") as other:
            for reader in (second, client, other, other.session("first")):
                with pytest.raises(ArtifactLost):
                    await reader.read_artifact(mine)
        async with AsyncClient(system.address) as again:
            assert await again.session("first").read_artifact(mine) == png(1, 1, 1)


async def test_artifacts_of_a_killed_worker_are_lost(tmp_path: Path) -> None:
    servers = pictures(**{"truely-stateless": True})
    async with running(tmp_path, servers) as (system, client):
        result = await client.call_tool("pixel", {"color": [1, 1, 1]})
        ref = result.content[0]["artifact"]
        await system.workers.pop("worker-1").end(signal.SIGKILL)
        await system.start_worker("worker-2")
        await eventually(lambda: _is_lost(client, ref))
        (item,) = await result.for_model()
        assert item["type"] == "text"
        assert "no longer kept" in item["text"]


async def _is_lost(client: AsyncClient, ref: str) -> bool:
    try:
        await client.read_artifact(ref)
    except ArtifactLost:
        return True
    except Exception as error:
        print(f"not yet: {error}")
    return False


async def test_workers_remove_their_artifacts_and_those_of_killed_workers(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "artifacts"
    servers = pictures(**{"truely-stateless": True})
    async with running(tmp_path, servers) as (system, client):
        await system.workers.pop("worker-1").end()
        await system.start_worker("worker-2", "--artifacts", str(folder))
        await eventually(lambda: _called(client))
        (own,) = folder.iterdir()
        assert [path.suffix for path in own.rglob("*") if path.is_file()] == [".png"]
        await system.workers.pop("worker-2").end(signal.SIGKILL)
        assert own.exists()
        await system.start_worker("worker-3", "--artifacts", str(folder))
        assert own not in list(folder.iterdir())
        await system.workers.pop("worker-3").end()
        assert list(folder.iterdir()) == []


async def _called(client: AsyncClient) -> bool:
    try:
        await client.call_tool("pixel", {"color": [0, 0, 0]}, timeout=60)
    except Exception as error:
        print(f"not yet: {error}")
        return False
    return True
