"""Clients of other projects keep their state behind two fronts, whichever gets a request."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.conftest import ServerCommand
from tests.e2e.clients import CLIENTS, node, output_of
from tests.e2e.mcp_front import BEARER, KEY, part
from tests.e2e.system import Part, running

_OF_ONE_HOP = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "authorization"}
)


class Balancer:
    """Passes each request on to the next front that accepts it, and adds the clients' key.

    When the first conversation is read, it kills the front that has served last.

    Args:
        fronts: The fronts.
        http: Sends the requests.

    Attributes:
        served: The addresses of the fronts that have answered, in order.
    """

    def __init__(self, fronts: list[Part], http: aiohttp.ClientSession) -> None:
        self._fronts = fronts
        self._turns = itertools.cycle(fronts)
        self._http = http
        self._killed = False
        self.served: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request of a client."""
        body = await request.read()
        if b"read_graph" in body and not self._killed:
            self._killed = True
            last = self.served[-1]
            await next(front for front in self._fronts if front.address == last).end(signal.SIGKILL)
        headers = _passed(request.headers) | {"Authorization": BEARER["Authorization"]}
        for front in itertools.islice(self._turns, len(self._fronts)):
            url = f"http://{front.address}/mcp"
            try:
                answer = await self._http.request(request.method, url, data=body, headers=headers)
            except aiohttp.ClientConnectorError:
                continue
            self.served.append(front.address)
            async with answer:
                return await _pass_on(request, answer)
        raise web.HTTPBadGateway


def _passed(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_HOP}


async def _pass_on(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=_passed(answer.headers))
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
    except aiohttp.ClientError:  # its front was killed: the client's stream breaks, too
        assert request.transport is not None
        request.transport.abort()
    return response


@asynccontextmanager
async def balanced(fronts: list[Part]) -> AsyncIterator[tuple[str, Balancer]]:
    """Run a balancer for fronts; yield its URL and itself."""
    timeout = aiohttp.ClientTimeout(total=None)
    # Connections are not kept: one to a killed front would fail a request after it was sent.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as http:
        balancer = Balancer(fronts, http)
        application = web.Application()
        application.router.add_route("*", "/mcp", balancer.handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}/mcp", balancer
        finally:
            await runner.cleanup()


@pytest.mark.npm
@pytest.mark.parametrize(
    "client",
    [
        "fastmcp",
        pytest.param("legacy", marks=pytest.mark.soak),
        pytest.param("2026-07-28", marks=pytest.mark.soak),
    ],
)
async def test_a_conversation_keeps_its_state_on_two_fronts_of_which_one_is_killed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    npm_server: ServerCommand,
    conformance_folder: Path,
    client: str,
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    (memory,) = npm_server("mcp-server-memory")
    server = {
        "transport": "stdio",
        "command": "sh",
        "args": ["-c", f'MEMORY_FILE_PATH="$PWD/memory.json" exec "{memory}"'],
        "cwd": "private",
    }
    environment = {"LEASEWAY_KEY": KEY}
    async with (
        running(tmp_path, {"memory": server}, environment=environment) as (system, _),
        part(system) as one,
        part(system) as other,
        balanced([one, other]) as (url, balancer),
    ):
        if client == "fastmcp":
            python = str(conformance_folder / "env" / "bin" / "python")
            command = [python, str(CLIENTS / "conversations.py"), url]
        else:
            script = str(CLIENTS / "conversations.mjs")
            command = [node(conformance_folder), script, str(conformance_folder), url, client]
        output = await output_of(*command)
    assert json.loads(output.splitlines()[-1]) == [["a"], ["b"]]
    assert set(balancer.served) == {one.address, other.address}
