"""Servers of both eras that ask their callers, through whole systems, with both clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypedDict

import pytest
from tests.e2e.system import python_server, running

from leaseway.sdk import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InputRequired,
    ResultTypeError,
    ServerError,
)

SERVERS = {
    "legacy": python_server(
        "official_asking.py", protocol="legacy", transform=[{"prefix": "legacy_"}]
    ),
    "modern": python_server("official_asking.py", transform=[{"prefix": "modern_"}]),
}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Good day."}}


@dataclass
class Visit:
    name: str
    greeting: str
    folders: list[str]


class Weather(TypedDict):
    day: date
    degrees: float


EXPECTED = Visit("Ada", "Good day.", ["file:///work"])


def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
    assert params["message"] == "Who?"
    assert params["requestedSchema"]["required"] == ["name"]
    return {"action": "accept", "content": {"name": "Ada"}}


def on_sampling(params: dict[str, Any]) -> dict[str, Any]:
    assert params["messages"][0]["content"]["text"] == "Greet."
    return SAMPLED


async def greet_slowly(params: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return SAMPLED


async def test_what_servers_ask_is_answered_by_the_asynchronous_client(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        for era in SERVERS:
            visit = await client.session("one").call_tool(
                f"{era}_visit",
                on_elicitation=on_elicitation,
                on_sampling=greet_slowly,
                roots=["file:///work"],
                result_type=Visit,
            )
            assert visit == EXPECTED
            weather = await client.call_tool(f"{era}_weather", result_type=Weather)
            assert weather == {"day": date(2026, 11, 22), "degrees": 4.0}
            with pytest.raises(ResultTypeError, match="returned is no Visit: "):
                await client.call_tool(f"{era}_weather", result_type=Visit)
        async with AsyncClient(
            system.address,
            on_elicitation=lambda _: {"action": "decline"},
            on_sampling=on_sampling,
            roots=[],
        ) as own:
            for era in SERVERS:
                async with own.session("two").stream_tool(f"{era}_visit") as stream:
                    assert [event async for event in stream] == []
                expected = {"name": "decline", "greeting": "Good day.", "folders": []}
                assert stream.result.structured == expected


async def test_what_servers_ask_is_answered_by_the_synchronous_client(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, _):

        def work() -> None:
            with Client(
                system.address,
                on_elicitation=on_elicitation,
                on_sampling=on_sampling,
                roots=["file:///work"],
            ) as client:
                for era in SERVERS:
                    assert client.call_tool(f"{era}_visit", result_type=Visit) == EXPECTED
                    with client.session("one").stream_tool(f"{era}_visit") as stream:
                        assert list(stream) == []
                    assert stream.result.structured == vars(EXPECTED)

        async with asyncio.timeout(60):
            await asyncio.to_thread(work)


async def test_a_caller_without_handlers_is_told_what_to_pass(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (_, client):
        with pytest.raises(InputRequired, match="on_elicitation=") as caught:
            await client.call_tool("modern_visit", timeout=20)
        assert caught.value.metadata["method"] in ("elicitation/create", "sampling/createMessage")
        with pytest.raises(ServerError, match="on_elicitation="):
            await client.call_tool("legacy_visit", timeout=20)


async def test_a_handler_that_fails_or_hangs_ends_its_call_alone(tmp_path: Path) -> None:
    async def hang(params: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with (
        running(tmp_path, SERVERS) as (system, _),
        AsyncClient(system.address, on_sampling=on_sampling, roots=["file:///work"]) as client,
    ):
        for era in SERVERS:
            session = client.session(era)
            await session.call_tool(f"{era}_weather")  # its instance has started by now
            with pytest.raises(DeadlineExceeded):
                await session.call_tool(f"{era}_visit", timeout=1, on_elicitation=hang)
            visit = await session.call_tool(
                f"{era}_visit", on_elicitation=on_elicitation, result_type=Visit
            )
            assert visit == EXPECTED
