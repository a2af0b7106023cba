"""Artifacts over HTTP from `leaseway up`: each worker serves its own, to clients with the key."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from tests.e2e.system import eventually, python_server
from tests.e2e.up import start_up, stop
from tests.servers.pictures import png

from leaseway.sdk import AsyncClient
from leaseway.wire.messages.artifact_refs import incarnation_mark, reference_mark

pytestmark = pytest.mark.usefixtures("leak_guard")


async def page_of(client: AsyncClient, ref: str) -> str:
    """Return the URL of an artifact at the worker that its reference names."""
    mark = reference_mark(ref)
    [worker] = [
        each_worker
        for each_worker in await client.workers()
        if incarnation_mark(each_worker.incarnation) == mark
    ]
    return worker.labels["artifacts-http"].removesuffix("artifacts/") + ref


async def test_each_worker_serves_its_artifacts_to_clients_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", "a-key")
    folder = tmp_path / "kept"
    servers: dict[str, object] = {
        "pictures": python_server("pictures.py", **{"truely-stateless": True})
    }
    options = ("--artifacts-http", "127.0.0.1:0", "--artifacts", str(folder), "--workers", "2")
    up = await start_up(tmp_path, *options, servers=servers)
    try:
        lines = [(await up.process.stdout.readline()).decode().split() for _ in range(2)]
        assert [(word, name) for word, _, name in lines] == [
            ("artifacts", "worker-1"),
            ("artifacts", "worker-2"),
        ]
        async with AsyncClient(up.address, key="a-key") as client, aiohttp.ClientSession() as http:
            session = client.session("talk")

            async def both_are_ready() -> bool:
                [pictures] = await client.servers()
                return [instance.state for instance in pictures.instances] == ["ready", "ready"]

            await eventually(both_are_ready)
            refs, used = [], set[str | None]()
            for shade in range(200):  # shared: of so many calls, both workers get some
                result = await session.call_tool("pixel", {"color": [shade, 0, 0]})
                refs.append(result.content[0]["artifact"])
                used.add(reference_mark(refs[-1]))
                if len(used) == 2:
                    break
            prompt = await session.get_prompt("describe")
            refs.append(prompt.messages[0]["content"]["artifact"])
            wanted = [*(png(shade, 0, 0) for shade in range(len(refs) - 1)), png(0, 0, 255)]
            urls = [await page_of(client, ref) for ref in refs]
            assert {url.partition("mcp")[0] for url in urls} == {url for _, url, _ in lines}
            for ref, url, content in zip(refs, urls, wanted, strict=True):
                assert await session.read_artifact(ref) == content
                key = {"Authorization": "Bearer a-key"}
                async with http.get(url, params={"session": "talk"}, headers=key) as answer:
                    assert (answer.status, await answer.read()) == (200, content)
                async with http.get(url, params={"session": "talk"}) as answer:
                    assert answer.status == 401
                async with http.get(url, params={"session": "other"}, headers=key) as answer:
                    assert answer.status == 404
        assert len(list(folder.rglob("*.png"))) == len(refs)
    finally:
        await stop(up)
    assert list(folder.iterdir()) == []
