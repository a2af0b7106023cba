"""The server is notified however a caller stops waiting, over both transports and in both eras."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.e2e.servers import raw_http_server
from tests.e2e.system import eventually, python_server, running

from leaseway.sdk import AsyncClient, Cancelled, Client, DeadlineExceeded


@dataclass
class Place:
    """A server: a tool that never answers, counts of its calls and of their cancellations."""

    tool: str
    arguments: dict[str, Any]
    received: Callable[[], Awaitable[int]]
    cancelled: Callable[[], Awaitable[int]]


def complete_lines(log: Path) -> list[Any]:
    """Return the records of a log whose last line its server may still be writing."""
    return [json.loads(line) for line in log.read_text().splitlines(True) if line.endswith("\n")]


def piped(name: str, log: Path) -> Place:
    """Return the place of a stdio server, which logs its messages."""

    def lines(method: str, tool: str) -> int:
        messages = complete_lines(log)
        mine = [m for m in messages if m.get("method") == method]
        if method == "tools/call":
            return sum(1 for m in mine if m["params"]["name"] == tool)
        ids = {m["id"] for m in messages if m.get("method") == "tools/call"}
        return sum(1 for m in mine if m["params"]["requestId"] in ids)

    async def received() -> int:
        return lines("tools/call", "never")

    async def cancelled() -> int:
        return lines("notifications/cancelled", "never")

    return Place(f"{name}_never", {}, received, cancelled)


def posted(name: str, url: str, log: Path, *, modern: bool) -> Place:
    """Return the place of an HTTP server, which logs its requests and reports cancellations."""

    async def received() -> int:
        bodies = [line["body"] for line in complete_lines(log)]
        return sum(1 for body in bodies if body.get("method") == "tools/call")

    async def cancelled() -> int:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/state") as answer:
            seen = await answer.json()
        return seen["disconnected"] if modern else len(seen["cancelled"])

    return Place(f"{name}_echo", {"text": "never"}, received, cancelled)


@pytest.fixture(scope="module")
async def places(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[str, dict[str, Place]]]:
    folder = tmp_path_factory.mktemp("cancellation")
    logs = {
        name: folder / f"{name}.jsonl" for name in ("piped", "piped_old", "posted", "posted_old")
    }
    for log in logs.values():
        log.touch()

    def entry(name: str, settings: dict[str, object]) -> dict[str, object]:
        return {**settings, "truely-stateless": True, "transform": [{"prefix": f"{name}_"}]}

    async with (
        raw_http_server("--log", str(logs["posted"])) as modern,
        raw_http_server("--legacy", "--log", str(logs["posted_old"])) as legacy,
    ):
        servers: dict[str, dict[str, object]] = {
            "piped": python_server("echo_raw.py", "--log", str(logs["piped"])),
            "piped_old": python_server("echo_raw.py", "--legacy", "--log", str(logs["piped_old"])),
            "posted": {"transport": "streamable_http", "url": f"{modern}/mcp"},
            "posted_old": {"transport": "streamable_http", "url": f"{legacy}/mcp"},
        }
        servers = {name: entry(name, settings) for name, settings in servers.items()}
        found = {
            "piped": piped("piped", logs["piped"]),
            "piped_old": piped("piped_old", logs["piped_old"]),
            "posted": posted("posted", modern, logs["posted"], modern=True),
            "posted_old": posted("posted_old", legacy, logs["posted_old"], modern=False),
        }
        async with running(folder, servers) as (system, _):
            yield system.address, found


async def cancel_task(address: str, place: Place, reached: Callable[[], Awaitable[None]]) -> None:
    async with AsyncClient(address) as client:
        call = asyncio.create_task(client.call_tool(place.tool, place.arguments))
        await reached()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def time_out(address: str, place: Place, reached: Callable[[], Awaitable[None]]) -> None:
    def call() -> None:
        with Client(address) as client:
            client.list_tools()
            for timeout in (
                3.0,
                9.0,
                27.0,
            ):  # a short one may pass before the server has received the call
                with pytest.raises(DeadlineExceeded):
                    client.call_tool(place.tool, place.arguments, timeout=timeout)
                if seen.is_set():
                    return

    async def see() -> None:
        await reached()
        seen.set()

    seen = threading.Event()
    await asyncio.gather(asyncio.to_thread(call), see())


async def close_client(address: str, place: Place, reached: Callable[[], Awaitable[None]]) -> None:
    client = AsyncClient(address)
    call = asyncio.create_task(client.call_tool(place.tool, place.arguments))
    await reached()
    await client.close()
    with pytest.raises(Cancelled):
        await call


async def leave_stream(address: str, place: Place, reached: Callable[[], Awaitable[None]]) -> None:
    async with (
        AsyncClient(address) as client,
        client.session("dialog").stream_tool(place.tool, place.arguments),
    ):
        await reached()


CALLER = """
import json, sys
from leaseway.sdk import Client
address, tool, arguments = sys.argv[1:]
Client(address).call_tool(tool, json.loads(arguments))
"""


async def kill_caller(address: str, place: Place, reached: Callable[[], Awaitable[None]]) -> None:
    words = (CALLER, address, place.tool, json.dumps(place.arguments))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", *words)
    try:
        await reached()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.mark.parametrize("stop", [cancel_task, time_out, close_client, leave_stream, kill_caller])
async def test_the_server_is_notified_when_a_caller_stops_waiting(
    places: tuple[str, dict[str, Place]], stop: Any
) -> None:
    address, found = places

    async def stop_waiting(place: Place) -> None:
        received, cancelled = await place.received(), await place.cancelled()

        async def reached() -> None:
            async def has_received() -> bool:
                return await place.received() > received

            await eventually(has_received)

        async def is_cancelled() -> bool:
            return await place.cancelled() > cancelled

        await stop(address, place, reached)
        await eventually(is_cancelled)

    await asyncio.gather(*(stop_waiting(place) for place in found.values()))
