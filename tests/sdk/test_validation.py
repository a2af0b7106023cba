"""Errors for parameters of the wrong type name the parameter."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from tests.sdk.fakes import BOUND, FakeControlPlane

from leaseway.sdk import AsyncClient, Client, InvalidRequest


@dataclass
class Zone:
    name: str


class ZoneModel(BaseModel):
    name: str = "UTC"


CALLS: list[tuple[dict[str, Any], str]] = [
    ({"name": 5}, "name is a str, not int"),
    ({"timeout": "5"}, "timeout is a number of seconds, not str"),
    ({"timeout": True}, "timeout is a number of seconds, not bool"),
    ({"arguments": [1]}, "arguments is a mapping .* not list"),
    ({"arguments": '{"a": 1}'}, "arguments is a mapping .* not str; read text with json.loads"),
    ({"arguments": Zone("UTC")}, "arguments is a mapping .* not Zone; pass dataclasses.asdict"),
    ({"arguments": ZoneModel()}, "arguments is a mapping .* not ZoneModel; pass its model_dump"),
    ({"on_progress": 1}, "on_progress is a function or None, not int"),
    ({"on_log": "print"}, "on_log is a function or None, not str"),
]


@pytest.mark.parametrize(("wrong", "sentence"), CALLS, ids=lambda value: str(value)[:40])
async def test_a_call_names_the_wrong_parameter(
    client: AsyncClient, wrong: dict[str, Any], sentence: str
) -> None:
    parameters = {"name": "time_now", **wrong}
    for caller in (client, client.session("a")):
        with pytest.raises(TypeError, match=sentence):
            await caller.call_tool(**parameters)


async def test_an_unknown_log_level_names_the_known_ones(client: AsyncClient) -> None:
    level: Any = "warn"
    with pytest.raises(ValueError, match=r"debug, info, .* not 'warn'"):
        await client.call_tool("time_now", on_log=print, log_level=level)
    with pytest.raises(ValueError, match="not 'warn'"):
        client.stream_tool("time_now", log_level=level)


async def test_other_methods_name_the_wrong_parameter_too(client: AsyncClient) -> None:
    wrong: Any = [5]
    session = client.session("a")
    uses: list[tuple[Callable[[], Awaitable[Any]], str]] = [
        (lambda: session.acquire(wrong), "server is a str, not list"),
        (lambda: session.acquire("desk", ttl=wrong), "ttl is a number of seconds, not list"),
        (lambda: session.acquire("desk", wait=wrong), "wait is a number of seconds, not list"),
        (lambda: session.release(wrong), "server is a str, not list"),
        (lambda: client.list_tools(timeout=wrong), "timeout is a number of seconds, not list"),
        (lambda: client.list_tools("time"), r"servers is a list of ids, such as \['time'\]"),
        (lambda: client.list_tools(wrong), "servers is a list of ids"),
        (lambda: client.list_resources(wrong), "servers is a list of ids"),
        (lambda: client.logs(wrong), "server is a str, not list"),
        (lambda: client.logs("time", wrong), "lines is a whole number, not list"),
        (lambda: client.report_problem("X", "Y", severity=wrong), "severity is a str, not list"),
        (lambda: client.revoke_lease("l", wrong), "reason is a str, not list"),
    ]
    for use, sentence in uses:
        with pytest.raises(TypeError, match=sentence):
            await use()
    with pytest.raises(TypeError, match="session is a str, not list"):
        client.session(wrong)


@pytest.mark.parametrize("parameter", ["address", "agent", "tenant", "key"])
def test_client_parameters_must_be_strings(parameter: str) -> None:
    wrong: dict[str, Any] = {parameter: 5}
    with pytest.raises(TypeError, match=f"{parameter} is a str, not int"):
        Client(**wrong)


def test_a_synchronous_client_rejects_an_async_callback() -> None:
    async def on_progress(*_: object) -> None:
        """Never called."""

    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(TypeError, match="pass a plain function, or use AsyncClient"),
    ):
        client.call_tool("time_now", on_progress=on_progress)


async def test_a_timeout_may_be_any_real_number(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    from fractions import Fraction

    number: Any = Fraction(5, 1)
    assert (await client.call_tool("time_now", timeout=number)).text == "{}"


HALF = "x\ud800"


async def test_a_name_that_cannot_be_encoded_does_not_fail_concurrent_calls(
    client: AsyncClient,
) -> None:
    async with asyncio.timeout(BOUND):
        bad, good = await asyncio.gather(
            client.call_tool(HALF), client.call_tool("time_now"), return_exceptions=True
        )
        assert isinstance(bad, InvalidRequest)
        assert not isinstance(good, BaseException)
        assert (await client.call_tool("time_now")).text == "{}"


async def test_text_that_cannot_be_encoded_is_rejected(client: AsyncClient) -> None:
    session = client.session("a")
    uses: list[Callable[[], Awaitable[Any]]] = [
        lambda: client.get_prompt(HALF),
        lambda: client.get_prompt("p", server=HALF),
        lambda: client.read_resource(HALF),
        lambda: client.read_artifact(HALF),
        lambda: client.complete("a", "", prompt=HALF),
        lambda: client.complete(HALF, "", prompt="p"),
        lambda: client.list_tools([HALF]),
        lambda: client.logs(HALF),
        lambda: client.find_lease(HALF, "desk"),
        lambda: client.revoke_lease(HALF),
        lambda: client.drain_worker(HALF),
        lambda: session.acquire(HALF),
        lambda: session.release(HALF),
    ]
    async with asyncio.timeout(BOUND):
        for use in uses:
            with pytest.raises(InvalidRequest, match=r"lone surrogate.*\\ud800"):
                await use()
    with pytest.raises(InvalidRequest, match="session holds a lone surrogate"):
        client.session(HALF)
    for parameter in ("agent", "tenant", "key"):
        given: dict[str, Any] = {parameter: HALF}
        with pytest.raises(InvalidRequest, match=f"{parameter} holds a lone surrogate"):
            AsyncClient("127.0.0.1:1", **given)


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", "a\x00"])
async def test_session_keys_tenants_and_agents_follow_one_rule(
    client: AsyncClient, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="session has at most 256 characters"):
        client.session(name)
    with pytest.raises(InvalidRequest, match="session has at most 256 characters"):
        await client.find_lease(name, "desk")
    for parameter in ("agent", "tenant"):
        given: dict[str, Any] = {parameter: name}
        with pytest.raises(InvalidRequest, match=f"{parameter} has at most 256 characters"):
            AsyncClient("127.0.0.1:1", **given)
    assert client.session("x" * 256).key == "x" * 256


async def test_a_time_of_nan_is_rejected(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match="timeout is a number of seconds, not NaN"):
        await client.call_tool("time_now", timeout=math.nan)
    with pytest.raises(ValueError, match="ttl is a number of seconds, not NaN"):
        await client.acquire("desk", ttl=math.nan)
