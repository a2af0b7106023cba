"""The synchronous client in gunicorn, with and without preloading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually, python_server, running

pytestmark = pytest.mark.usefixtures("leak_guard")

SERVERS = {"counter": python_server("counter.py", transform=[{"prefix": "counter_"}])}
SOON = ("--graceful-timeout", "1")
"""A worker of gevent may wait for its clients to close their connections, by default for 30 s."""
APP = """
import json
import os

from leaseway.sdk import Client

client = Client()  # module-level, as in applications
if os.environ.get("USE_EARLY"):
    client.list_tools()


def app(environ, start_response):
    if environ["PATH_INFO"] == "/tools":
        answer = [tool.name for tool in client.list_tools()]
    else:
        with client.session(environ["PATH_INFO"]) as session:
            session.call_tool("counter_add", {"by": 1})
            answer = session.call_tool("counter_add", {"by": 41}).text
    body = json.dumps({"pid": os.getpid(), "answer": answer}).encode()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [body]
"""


@dataclass
class Site:
    """A running gunicorn."""

    process: asyncio.subprocess.Process
    url: str
    log: list[str]

    async def get(self, path: str) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            with urlopen(self.url + path, timeout=BOUND) as answer:
                parsed: dict[str, Any] = json.load(answer)
                return parsed

        return await asyncio.to_thread(read)


@contextlib.asynccontextmanager
async def site(
    folder: Path, address: str, *options: str, **environment: str
) -> AsyncIterator[Site]:
    """Serve the application with two workers."""
    (folder / "shop.py").write_text(APP)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gunicorn", "-w", "2", "-b", "127.0.0.1:0", *options, "shop:app"),
        cwd=folder,
        env={**os.environ, "LEASEWAY_ADDRESS": address, **environment},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    log: list[str] = []
    url = ""
    try:
        async with asyncio.timeout(BOUND):
            while not url:
                line = (await process.stderr.readline()).decode()
                assert line, log
                log.append(line)
                found = re.search(r"Listening at: (http://\S+)", line)
                url = found.group(1) if found else ""
        rest = asyncio.create_task(_collect(process.stderr, log))
        yield Site(process, url, log)
        process.terminate()
        async with asyncio.timeout(BOUND):
            assert await process.wait() == 0
            await rest
    except BaseException:
        print("".join(log))
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _collect(stream: asyncio.StreamReader, log: list[str]) -> None:
    log.extend([line.decode() async for line in stream])


async def use(served: Site, workers: int = 2) -> set[int]:
    """Call tools until so many workers have answered; return their process ids."""
    seen: set[int] = set()

    async def all_have_answered() -> bool:
        paths = [f"/session-{number}" for number in range(6)]
        answers = await asyncio.gather(*(served.get(path) for path in paths))
        assert all("42" in answer["answer"] for answer in answers), answers
        seen.update(answer["pid"] for answer in answers)
        return len(seen) >= workers

    await eventually(all_have_answered)
    assert "counter_add" in (await served.get("/tools"))["answer"]
    return seen


@pytest.mark.parametrize("options", [(), ("--preload",)], ids=["plain", "preload"])
async def test_workers_of_a_prefork_server_call_tools(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    async with (
        running(tmp_path, SERVERS) as (system, client),
        site(tmp_path, system.address, *options) as served,
    ):
        first = await use(served)
        assert served.process.pid not in first
        os.kill(min(first), signal.SIGKILL)

        async def has_successor() -> bool:
            return bool(await use(served) - first)

        await eventually(has_successor)

        async def no_leases() -> bool:
            return not await client.leases()

        await eventually(no_leases)


async def test_the_error_of_a_client_used_before_the_fork_names_the_hook_to_use(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, SERVERS) as (system, _),
        site(tmp_path, system.address, "--preload", USE_EARLY="yes") as served,
    ):
        with pytest.raises(HTTPError, match="500"):
            await served.get("/tools")
    assert "gunicorn's post_fork hook" in "".join(served.log)


async def test_the_error_of_a_client_in_a_gevent_worker_names_the_class_to_use(
    tmp_path: Path,
) -> None:
    pytest.importorskip("gevent")
    async with site(tmp_path, "127.0.0.1:1", "-k", "gevent", *SOON) as served:
        with pytest.raises(HTTPError, match="500"):
            await served.get("/session")
    assert "gunicorn the worker class gthread" in "".join(served.log)
