"""A server that never answers delays only its own callers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.calls import call_message
from tests.conftest import BOUND
from tests.e2e.counting import counts, settled
from tests.e2e.system import Part, eventually, python_server, running

from leaseway.sdk import AsyncClient, DeadlineExceeded
from leaseway.v1 import execution_pb2, execution_pb2_grpc
from leaseway.wire.bounds import MAX_CALLS_IN_FLIGHT
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import fault_from_status

SERVERS = {
    name: python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": f"{name}_"}]}
    )
    for name in ("mute", "other")
}
MANY = 1000


@asynccontextmanager
async def unanswered(
    worker: Part, client: AsyncClient, name: str, number: int
) -> AsyncIterator[None]:
    """Keep this number of calls in flight to a tool that never answers."""
    wanted = (await counts(worker)).facts["calls"] + number

    async def in_flight() -> bool:
        return (await counts(worker)).facts["calls"] == wanted

    tasks = [asyncio.create_task(client.call_tool(name, timeout=280)) for _ in range(number)]
    try:
        await eventually(in_flight)
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def calls_of(client: AsyncClient, name: str) -> float:
    """Make many calls at once; return their total duration in seconds."""
    began = time.perf_counter()
    texts = [str(number) for number in range(MANY)]
    async with asyncio.timeout(BOUND):
        results = await asyncio.gather(*(client.call_tool(name, {"text": t}) for t in texts))
    assert [result.text for result in results] == texts
    return time.perf_counter() - began


@pytest.mark.usefixtures("leak_guard")
async def test_a_thousand_calls_finish_while_other_calls_are_never_answered(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        worker = system.workers["worker-1"]
        await calls_of(client, "other_echo")
        before = await counts(worker)
        alone = await calls_of(client, "other_echo")
        async with (
            unanswered(worker, client, "mute_never", 100),
            unanswered(worker, client, "other_never", 100),
        ):
            beside = await calls_of(client, "other_echo")
            same = await calls_of(client, "mute_echo")
            held = await counts(worker)
            assert held.facts["calls"] == 200
            # A waiting call has no task; the number of other tasks varies.
            assert held.facts["tasks"] < before.facts["tasks"] + 100
        print(
            f"{MANY} calls: alone {alone:.2f} s, beside 200 unanswered calls {beside:.2f} "
            f"s, of the mute server itself {same:.2f} s"
        )
        await settled(worker, before)


@pytest.mark.usefixtures("leak_guard")
async def test_a_client_whose_stream_is_full_waits_and_other_clients_do_not(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, SERVERS) as (system, client),
        AsyncClient(system.address) as other,
    ):
        worker = system.workers["worker-1"]
        for caller in (client, other):
            await calls_of(caller, "other_echo")
        before = await counts(worker)
        async with unanswered(worker, client, "mute_never", MANY):
            await calls_of(client, "other_echo")  # with the 24 remaining places
            async with unanswered(worker, client, "mute_never", MAX_CALLS_IN_FLIGHT - MANY):
                with pytest.raises(
                    DeadlineExceeded, match="before the call could be sent"
                ) as caught:
                    await client.call_tool("other_echo", {"text": "x"}, timeout=0.5)
                assert caught.value.started == "no"
                await calls_of(other, "other_echo")
            await client.call_tool("other_echo", {"text": "x"}, timeout=60)
        await settled(worker, before)


@pytest.mark.usefixtures("leak_guard")
async def test_calls_beyond_the_limit_of_a_stream_are_rejected_as_overload(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, SERVERS) as (system, client),
        grpc.aio.insecure_channel(
            system.workers["worker-1"].address, options=CHANNEL_OPTIONS
        ) as channel,
    ):
        version = (await client.status()).registry_version
        stub: Any = execution_pb2_grpc.ExecutionServiceStub(channel)
        stream = stub.Exchange()
        for first in range(1, MAX_CALLS_IN_FLIGHT + 11, 128):
            last = min(first + 128, MAX_CALLS_IN_FLIGHT + 11)
            await stream.write(_never(range(first, last), version))
        refused: dict[int, Fault] = {}
        async with asyncio.timeout(BOUND):
            while len(refused) < 10:
                for result in (await stream.read()).results:
                    refused[result.call_id] = fault_from_status(result.status)
        assert sorted(refused) == list(range(MAX_CALLS_IN_FLIGHT + 1, MAX_CALLS_IN_FLIGHT + 11))
        assert {(fault.reason, fault.started) for fault in refused.values()} == {
            (Reason.OVERLOADED, "no")
        }
        assert Counter(bool(fault.retry_delay) for fault in refused.values()) == {True: 10}
        await calls_of(client, "other_echo")
        stream.cancel()


def _never(ids: range, version: int) -> execution_pb2.ExchangeRequest:
    return execution_pb2.ExchangeRequest(
        calls=[
            call_message(id=number, server_id="mute", tool="never", registry_version=version)
            for number in ids
        ]
    )
