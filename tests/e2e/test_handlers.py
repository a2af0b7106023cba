"""Both clients answer requests of servers of both eras, and parse results into types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date
from typing import Any, TypedDict

import pytest
from tests.conftest import BOUND
from tests.e2e.system import System, eventually, official_server, running

from leaseway.sdk import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InputRequired,
    ResultTypeError,
    ServerError,
)

SERVERS = {
    "legacy": official_server(
        "official_asking.py", protocol="legacy", transform=[{"prefix": "legacy_"}]
    ),
    "modern": official_server("official_asking.py", transform=[{"prefix": "modern_"}]),
}
ELICITING = {"eliciting": official_server("official_eliciting.py", start="lazy")}
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


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with running(tmp_path_factory.mktemp("asking"), SERVERS | ELICITING) as (made, _):
        yield made


@pytest.fixture
async def client(system: System) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(system.address, agent="test") as made:
        yield made


async def test_a_server_that_needs_a_back_channel_is_restarted_in_the_legacy_era(
    system: System, client: AsyncClient
) -> None:
    session = client.session("first")
    with pytest.raises(ServerError, match="no back-channel"):
        await session.call_tool("greet", on_elicitation=on_elicitation)
    await session.release("eliciting")
    for key in ("first", "later"):
        session = client.session(key)
        assert (
            await session.call_tool("greet", on_elicitation=on_elicitation)
        ).text == "Hello, Ada."

    async def is_reported() -> bool:
        messages = [
            problem.message
            for problem in await client.problems()
            if problem.reason == "NO_BACK_CHANNEL"
        ]
        return len(messages) == 1 and "release an older lease" in messages[0]

    await eventually(is_reported)


@pytest.mark.parametrize("era", SERVERS)
async def test_the_asynchronous_client_answers_server_requests(
    system: System, client: AsyncClient, era: str
) -> None:
    session = client.session(f"{era} async")
    visit = await session.call_tool(
        f"{era}_visit",
        on_elicitation=on_elicitation,
        on_sampling=greet_slowly,
        roots=["file:///work"],
        result_type=Visit,
    )
    assert visit == EXPECTED
    weather = await session.call_tool(f"{era}_weather", result_type=Weather)
    assert weather == {"day": date(2026, 11, 22), "degrees": 4.0}
    with pytest.raises(ResultTypeError, match="does not match Visit: "):
        await session.call_tool(f"{era}_weather", result_type=Visit)
    async with (
        AsyncClient(
            system.address,
            on_elicitation=lambda _: {"action": "decline"},
            on_sampling=on_sampling,
            roots=[],
        ) as own,
        own.session(session.key).stream_tool(f"{era}_visit") as stream,
    ):
        assert [event async for event in stream] == []
    expected = {"name": "decline", "greeting": "Good day.", "folders": []}
    assert stream.result.structured == expected


@pytest.mark.parametrize("era", SERVERS)
async def test_the_synchronous_client_answers_server_requests(system: System, era: str) -> None:
    def call() -> None:
        with Client(
            system.address,
            on_elicitation=on_elicitation,
            on_sampling=on_sampling,
            roots=["file:///work"],
        ) as client:
            assert client.call_tool(f"{era}_visit", result_type=Visit) == EXPECTED
            with client.stream_tool(f"{era}_visit") as stream:
                assert list(stream) == []
            assert stream.result.structured == vars(EXPECTED)

    async with asyncio.timeout(BOUND):
        await asyncio.to_thread(call)


async def test_the_error_without_handlers_names_the_missing_parameter(client: AsyncClient) -> None:
    with pytest.raises(InputRequired, match="on_elicitation=") as caught:
        await client.call_tool("modern_visit", timeout=60)
    assert caught.value.method == "elicitation/create"
    with pytest.raises(ServerError, match="on_elicitation="):
        await client.call_tool("legacy_visit", timeout=60)


@pytest.mark.parametrize("era", SERVERS)
async def test_a_hanging_handler_is_cancelled_with_its_call(system: System, era: str) -> None:
    hanging, ended = asyncio.Event(), asyncio.Event()

    async def hang(params: dict[str, Any]) -> dict[str, Any]:
        hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    async with AsyncClient(
        system.address, on_sampling=on_sampling, roots=["file:///work"]
    ) as client:
        session = client.session(f"{era} hang")
        await session.call_tool(f"{era}_weather")  # starts its instance
        for timeout in (3, 9, 27):  # a short one may pass before the request of the server
            with pytest.raises(DeadlineExceeded):
                await session.call_tool(f"{era}_visit", timeout=timeout, on_elicitation=hang)
            if hanging.is_set():
                break
        assert hanging.is_set()
        await eventually(ended.is_set)
        visit = await session.call_tool(
            f"{era}_visit", on_elicitation=on_elicitation, result_type=Visit
        )
        assert visit == EXPECTED
