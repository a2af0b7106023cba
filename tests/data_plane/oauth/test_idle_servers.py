"""Servers that are idle while there is no token for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest
from aiohttp import web
from tests.data_plane.mcp.conftest import Bench, bench, until
from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.whoami import PATHS

from leaseway.data_plane.mcp.protocol.features.health import Patience
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.spec.auth import Auth
from leaseway.spec.references import Value

__all__ = ["bench"]

VALUES = {"client_id": Value("literal", "me"), "client_secret": Value("literal", "word")}
AUTH = Auth("client_credentials", values=VALUES)
PATIENCE = Patience(idle=0.05, answer=0.2)


async def test_a_server_outlives_an_outage_of_its_authorization_server_in_which_its_token_expires(
    bench: Bench, guarded: Guarded
) -> None:
    now = 1_000.0
    spec = bench.http_spec(f"{guarded.base}/mcp", auth=AUTH, protocol="legacy")
    instance = await bench.start(spec, tokens=Tokens(now=lambda: now), patience=PATIENCE)

    async def fail(form: Mapping[str, str]) -> web.Response:
        return web.Response(status=503)

    guarded.answer = fail

    def has_asked(times: int) -> bool:
        nonlocal now
        now += 10  # each look is later
        return len(guarded.granted) >= times

    now += 3_600
    refused = guarded.refused
    await until(partial(has_asked, 12))  # more than a server gets that cannot be reached
    assert bench.closed.empty()
    guarded.answer = None
    await until(lambda: has_asked(0) and len(guarded.accepted) > 1)
    assert (await bench.call(instance, "whoami")).fault is None
    assert guarded.refused == refused


@pytest.mark.parametrize("transport", ["streamable_http", "sse"])
async def test_a_server_outlives_an_authorization_server_that_does_not_answer(
    bench: Bench, guarded: Guarded, transport: str
) -> None:
    now = 1_000.0
    spec = bench.at(transport, f"{guarded.base}/{PATHS[transport]}", auth=AUTH, protocol="legacy")
    instance = await bench.start(spec, tokens=Tokens(now=lambda: now), patience=PATIENCE)
    proceed = asyncio.Event()

    async def wait(form: Mapping[str, str]) -> web.Response:
        await proceed.wait()
        return guarded.grant(form)

    guarded.answer = wait
    now += 3_600
    await until(lambda: len(guarded.granted) > 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * PATIENCE.answer):
            await bench.closed.get()
    proceed.set()
    assert (await bench.call(instance, "whoami")).fault is None
