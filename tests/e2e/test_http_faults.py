"""Errors that callers get from faulty servers over HTTP.

| fault | outcome of the call | after |
|---|---|---|
| headers, a body or events that trickle in (slow-loris) | `DeadlineExceeded`, started yes or unknown | at the timeout |
| the connection is reset before an answer | `ServerLost`, started unknown | at once |
| it is reset, or ends, in the middle of a body | `ServerLost`, started yes | at once |
| a response that is not HTTP | `ServerLost`, started unknown | at once |
| 5xx without a body | `ServerError`, started unknown | at once |
| 503 or 429 with a `Retry-After` | retried after that time, at most 5 times; `ServerError`, started no, if the timeout is shorter | at once |
| another content type, a redirect to elsewhere | `ServerError` that names it | at once |
| a body, or one event, of more than 32 MiB | `ResultTooLarge`, started yes | at once |
| no process listens | `ServerLost`, started no, after 5 tries | within seconds; recovers by itself |
| 404 for the session | the result: another session was opened | at once |
| https to a port without TLS, or no listener, at the start | `ServerNotReady` with the reason | at its start; retried with backoff |
"""  # noqa: E501 - a table's rows

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.e2e.servers import raw_http_server
from tests.e2e.system import SERVERS, eventually, running
from tests.ports import free_port

from leaseway.sdk import (
    AsyncClient,
    DeadlineExceeded,
    LeasewayError,
    ResultTooLarge,
    ServerError,
    ServerLost,
    ServerNotReady,
)
from leaseway.wire.bounds import MAX_LINE

AT_ONCE = 30.0
"""Limit in seconds for anything that does not wait, on a busy machine."""


@dataclass
class Remote:
    """The faulty server, which can be restarted at its port."""

    port: int = field(default_factory=free_port)
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        words = (sys.executable, str(SERVERS / "http_faults.py"), str(self.port))
        self.process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            assert int(await self.process.stdout.readline()) == self.port

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


def shared(name: str, url: str, **settings: Any) -> dict[str, object]:
    return {
        "transport": "streamable_http",
        "url": url,
        "truely-stateless": True,
        "transform": [{"prefix": f"{name}_"}],
        **settings,
    }


@dataclass
class Site:
    client: AsyncClient
    remote: Remote
    neighbour: str


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    remote = Remote()
    await remote.start()
    try:
        async with raw_http_server("--legacy") as neighbour:
            servers = {
                "faulty": shared("faulty", f"http://127.0.0.1:{remote.port}/mcp"),
                "neighbour": shared("neighbour", f"{neighbour}/mcp"),
                "tls": shared("tls", neighbour.replace("http", "https"), startup_timeout=10),
                "absent": shared("absent", "http://127.0.0.1:1/mcp", startup_timeout=10),
            }
            folder = tmp_path_factory.mktemp("http-faults")
            async with running(folder, servers) as (system, client):
                yield Site(client, remote, neighbour)
                async with asyncio.timeout(BOUND):  # a call in flight would hold the drain up
                    assert await system.workers["worker-1"].end() == 0
    finally:
        await remote.kill()


@contextlib.asynccontextmanager
async def neighbour_is_unaffected(client: AsyncClient) -> AsyncIterator[None]:
    """Call another server during a block, and check that it answers in time."""

    async def call() -> None:
        while True:
            async with asyncio.timeout(AT_ONCE):
                assert (await client.call_tool("neighbour_echo", {"text": "x"})).text == "x"
            count.append(1)
            await asyncio.sleep(0.01)

    count: list[int] = []
    calls = asyncio.create_task(call())
    try:
        yield
        await eventually(lambda: len(count) > 3 or calls.done())
        assert not calls.done()
    finally:
        calls.cancel()
        await asyncio.gather(calls, return_exceptions=True)


@dataclass
class Case:
    """A fault and the error of its call.

    Attributes:
        how: The fault.
        error: The exception's class.
        says: A part of its message.
        started: The allowed values of its `started`.
        timeout: The call's timeout; short if the call must reach it.
    """

    how: str
    error: type[LeasewayError]
    says: str
    started: tuple[str, ...] = ("yes",)
    timeout: float = 90.0


FATES = ("yes", "unknown")
"""Of a call that timed out: either the worker or the client notices first."""

CASES = [
    Case(how="slow_head", error=DeadlineExceeded, says="passed", started=FATES, timeout=4.0),
    Case(how="slow_body", error=DeadlineExceeded, says="passed", started=FATES, timeout=4.0),
    Case(how="slow_events", error=DeadlineExceeded, says="passed", started=FATES, timeout=4.0),
    Case("reset", ServerLost, "broke before its response", ("unknown",)),
    Case("reset_body", ServerLost, "broke before its response was complete"),
    Case("half_body", ServerLost, "broke before its response was complete"),
    Case("no_http", ServerLost, "broke before its response", ("unknown",)),
    Case("unavailable", ServerError, "HTTP status 503", ("unknown",)),
    Case("refused", ServerError, "HTTP status 503", ("no",)),
    Case("html", ServerError, "text/html"),
    Case("redirect", ServerError, "http://127.0.0.2:1/other", ("no",)),
    Case("huge", ResultTooLarge, str(MAX_LINE)),
    Case("endless_line", ResultTooLarge, str(MAX_LINE)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.how)
async def test_a_fault_fails_only_its_own_call_with_a_reason(site: Site, case: Case) -> None:
    async with neighbour_is_unaffected(site.client):
        begun = time.monotonic()
        with pytest.raises(case.error) as caught:
            await site.client.call_tool("faulty_fault", {"how": case.how}, timeout=case.timeout)
        assert case.says in caught.value.message
        assert caught.value.started in case.started
        assert time.monotonic() - begun < AT_ONCE
        assert (await site.client.call_tool("faulty_echo", {"text": "on"})).text == "on"


async def test_a_call_is_retried_until_a_burst_of_503_is_over(site: Site) -> None:
    result = await site.client.call_tool("faulty_fault", {"how": "burst"}, timeout=AT_ONCE)
    assert result.text == "after the burst"


async def test_a_server_that_does_not_listen_is_lost_until_it_is_restarted(site: Site) -> None:
    async with neighbour_is_unaffected(site.client):
        await site.remote.kill()
        begun = time.monotonic()
        with pytest.raises(ServerLost) as caught:
            await site.client.call_tool("faulty_echo", {"text": "x"})
        assert caught.value.started == "no"
        assert time.monotonic() - begun < AT_ONCE
        await site.remote.start()

        async def is_restarted() -> bool:
            try:
                return (await site.client.call_tool("faulty_echo", {"text": "x"})).text == "x"
            except (ServerLost, ServerNotReady):
                return False

        await eventually(is_restarted, within=AT_ONCE)


async def test_a_session_that_the_server_forgot_is_reopened_without_an_error(site: Site) -> None:
    calls = [site.client.call_tool("neighbour_echo", {"text": "x"}) for _ in range(10)]
    await asyncio.gather(*calls)
    async with aiohttp.ClientSession() as http, http.post(f"{site.neighbour}/forget") as answer:
        assert answer.status == 200
    calls = [site.client.call_tool("neighbour_echo", {"text": "x"}) for _ in range(10)]
    async with asyncio.timeout(AT_ONCE):
        assert [result.text for result in await asyncio.gather(*calls)] == ["x"] * 10


@pytest.mark.parametrize(("server", "reason"), [("tls", "TLS|SSL"), ("absent", "reached|refused")])
async def test_the_error_of_an_unreachable_server_has_the_reason(
    site: Site, server: str, reason: str
) -> None:
    with pytest.raises(ServerNotReady, match=reason) as caught:
        await site.client.call_tool(f"{server}:echo", timeout=AT_ONCE)
    assert caught.value.started == "no"
