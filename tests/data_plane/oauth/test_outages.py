"""The authorization server (npm oidc-provider) fails: typed errors, and few requests."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from joserfc.jwk import RSAKey
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench, bench, until
from tests.data_plane.oauth.authority import (
    SECRET,
    Gate,
    Provider,
    Providers,
    Resource,
    provider,
)
from tests.data_plane.oauth.whoami import WHOAMI, call, started

from leaseway.data_plane.core.ports import InstancePort
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import TokenAnswer
from leaseway.data_plane.oauth.tokens import InstanceProblems, Tokens
from leaseway.data_plane.outgoing import Authorization
from leaseway.spec.auth import Auth
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

__all__ = ["bench"]
ENVIRONMENT = {"WORD": SECRET}
VALUES = {"client_id": Value("literal", "service"), "client_secret": Value("env", "WORD")}
TOKEN = "/token"


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as gate:
        yield gate


@pytest.fixture
async def resource() -> AsyncIterator[Resource]:
    async with Resource() as resource:
        yield resource


@pytest.fixture
async def authority(host: Providers, gate: Gate, resource: Resource) -> AsyncIterator[Provider]:
    async with host.provider(gate=gate) as authority:
        await resource.trust(authority)
        gate.passed.clear()
        yield authority


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def instance_of(
    bench: Bench, resource: Resource, clock: Clock | None = None, values: Any = VALUES
) -> InstancePort:
    """Return an instance of an API, whose tokens are those of the authorization server."""
    spec = server_spec(
        VariantKey("remote"),
        "http_api",
        url=f"{resource.base}/api",
        http_tools=(WHOAMI,),
        auth=Auth("client_credentials", values=values, resource=f"{resource.base}/mcp"),
        truely_stateless=True,
    )
    tokens = Tokens(now=clock) if clock is not None else Tokens()
    return await started(bench, spec, ENVIRONMENT, tokens)


async def faults_of(instance: InstancePort, calls: int) -> list[Fault | None]:
    return [
        outcome.fault for outcome in await asyncio.gather(*(call(instance) for _ in range(calls)))
    ]


async def succeeds(instance: InstancePort) -> bool:
    outcome = await call(instance)
    return outcome.fault is None and not outcome.is_error


Failing = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def at(path: str, answer: Failing) -> Failing:
    """Fail the requests to one path."""

    async def handle(request: web.Request) -> web.StreamResponse | None:
        return await answer(request) if request.path == path else None

    return handle


async def is_down(request: web.Request) -> web.StreamResponse | None:
    assert request.transport is not None
    request.transport.abort()
    return None


def says(status: int, headers: dict[str, str] | None = None, text: str = "") -> Failing:
    async def handle(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=status, headers=headers, text=text)

    return handle


METADATA = "/.well-known/oauth-authorization-server"


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize(
    "failing",
    [
        is_down,
        says(503),
        says(429),
        says(502, {"Content-Type": "text/html"}, "<h1>Bad gateway</h1>"),
        says(200, {"Content-Type": "text/html"}, "<h1>Down for maintenance</h1>"),
        at(TOKEN, is_down),
        at(TOKEN, says(500, text='{"error": "server_error"}')),
        at(TOKEN, says(200, text="{}")),
        at(METADATA, says(429)),
    ],
    ids=[
        "down", "503", "429", "502", "a page", "down for tokens", "500 for tokens", "no token",
        "429 for metadata",
    ],
)  # fmt: skip
async def test_while_it_is_down_calls_fail_at_once_and_few_ask_it(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock, failing: Failing
) -> None:
    gate.answer = failing
    instance = await instance_of(bench, resource, clock)
    for _ in range(5):
        faults = await faults_of(instance, 100)
        assert all(
            fault is not None and fault.reason is Reason.AUTHORIZATION_FAILED and fault.retry_delay
            for fault in faults
        )
    assert len(gate.passed) <= 4  # one attempt, with all its addresses
    assert resource.called == 0
    gate.answer = at("", is_down)
    clock.now += 61
    assert await succeeds(instance)
    await instance.close()


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize("path", [TOKEN, METADATA])
@pytest.mark.parametrize("is_date", [True, False], ids=["date", "seconds"])
async def test_it_is_not_asked_before_the_time_that_it_names(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock, path: str, is_date: bool
) -> None:
    date = time.time() - 3_000  # by its own clock
    after = formatdate(date + 600, usegmt=True) if is_date else "600"
    headers = {"Retry-After": after, "Date": formatdate(date, usegmt=True)}
    gate.answer = at(path, says(429, headers))
    instance = await instance_of(bench, resource, clock)
    await call(instance)
    gate.passed.clear()
    clock.now += 595
    for fault in await faults_of(instance, 20):
        assert fault is not None
        assert fault.retry_delay == pytest.approx(5, abs=1)
    assert gate.passed == []
    clock.now += 10
    gate.answer = at("", is_down)
    assert await succeeds(instance)
    await instance.close()


@pytest.mark.usefixtures("authority")
async def test_while_it_is_down_calls_use_the_token_until_it_expires(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock
) -> None:
    instance = await instance_of(bench, resource, clock)
    assert await succeeds(instance)
    gate.passed.clear()
    gate.answer = is_down
    for _ in range(5):  # it is to be renewed a minute before its end, and is not
        clock.now = 1_000.0 + 3_600 - 50
        assert await faults_of(instance, 100) == [None] * 100
    await until(lambda: gate.passed)
    assert len(gate.passed) <= 4
    clock.now += 60
    assert not await succeeds(instance)
    await instance.close()


async def test_a_rotated_key_costs_one_token_request_and_no_call(
    bench: Bench, host: Providers, gate: Gate, resource: Resource, clock: Clock
) -> None:
    async with host.provider(gate=gate) as first:
        await resource.trust(first)
        instance = await instance_of(bench, resource, clock)
        assert await succeeds(instance)
    async with host.provider(gate=gate) as second:
        await resource.trust(second)
        gate.passed.clear()
        clock.now += 60
        assert await faults_of(instance, 200) == [None] * 200
        assert gate.count(TOKEN) == 1
    await instance.close()


@pytest.mark.parametrize("ahead", [300, -300])
async def test_a_clock_that_is_5_minutes_off_delays_no_call_with_a_secret(
    bench: Bench, gate: Gate, resource: Resource, ahead: float
) -> None:
    gate.ahead = ahead
    async with provider(gate=gate, ahead=ahead) as authority:
        await resource.trust(authority)
        gate.passed.clear()
        instance = await instance_of(bench, resource)
        assert await faults_of(instance, 200) == [None] * 200
        assert gate.count(TOKEN) == 1
        await instance.close()


async def test_a_clock_that_is_5_minutes_off_is_named_when_it_matters(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock
) -> None:
    key = RSAKey.generate_key(2_048)
    values = {
        "client_id": Value("literal", "signer"),
        "private_key": Value("literal", key.as_pem(private=True).decode()),
    }
    gate.ahead = 300
    async with provider(gate=gate, ahead=300, key=key.as_dict(private=False)) as authority:
        await resource.trust(authority)
        gate.passed.clear()
        instance = await instance_of(bench, resource, clock, values)
        for fault in await faults_of(instance, 200):
            assert fault is not None
            assert re.search(r"clock differs from the worker's by (299|300|301) s", fault.message)
        assert gate.count(TOKEN) == 2  # a statement for the issuer, and one for the endpoint
        await instance.close()


async def test_tokens_that_are_expired_when_they_are_issued_cause_no_storm(
    bench: Bench, gate: Gate, resource: Resource
) -> None:
    async with provider(lifetime=200, gate=gate, ahead=-300) as authority:
        await resource.trust(authority)
        gate.passed.clear()
        instance = await instance_of(bench, resource)
        for _ in range(3):
            for fault in await faults_of(instance, 100):
                assert fault is not None
                assert fault.reason is Reason.AUTHORIZATION_FAILED
        assert gate.count(TOKEN) == 1
        await instance.close()


async def test_a_refresh_under_load_fails_no_call(
    bench: Bench, host: Providers, gate: Gate, resource: Resource
) -> None:
    async with host.provider(lifetime=3, gate=gate) as authority:
        await resource.trust(authority)
        gate.passed.clear()
        instance = await instance_of(bench, resource)
        started = time.monotonic()
        while gate.count(TOKEN) < 3 and time.monotonic() - started < BOUND:
            assert await faults_of(instance, 50) == [None] * 50
        elapsed = time.monotonic() - started
        assert 3 <= gate.count(TOKEN) <= elapsed / 2 + 1
        await instance.close()


@pytest.mark.usefixtures("authority")
async def test_metadata_that_redirect_in_a_circle_are_an_error_after_some_requests(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock
) -> None:
    gate.answer = says(302, {"Location": "/circle"})
    instance = await instance_of(bench, resource, clock)
    for fault in await faults_of(instance, 100):
        assert fault is not None
        assert "redirects more than 5 times" in fault.message
    assert len(gate.passed) <= 12
    await instance.close()


@pytest.mark.usefixtures("authority")
@pytest.mark.parametrize("path", ["", TOKEN], ids=["metadata", "token"])
async def test_an_answer_of_100_mib_is_read_no_further_than_its_bound(
    bench: Bench, gate: Gate, resource: Resource, clock: Clock, path: str
) -> None:
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for _ in range(100):
            await response.write(b" " * bounds.MIB)
            written += bounds.MIB
        return response

    gate.answer = at(path, endless) if path else endless
    instance = await instance_of(bench, resource, clock)
    for fault in await faults_of(instance, 20):
        assert fault is not None
        assert "more than 262144 bytes" in fault.message
    assert written < 30 * bounds.MIB  # what the sockets hold
    await instance.close()


@pytest.mark.parametrize("other", [("quick", ""), ("slow", "acme")], ids=["server", "tenant"])
async def test_a_slow_authorization_server_delays_no_tokens_of_others(
    other: tuple[str, str],
) -> None:
    release = threading.Event()
    asked: list[str] = []

    def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        asked.append(wanted.server)
        if (wanted.server, wanted.tenant) == ("slow", ""):
            release.wait(BOUND)
        return TokenAnswer("token")

    tokens = Tokens(obtain)
    problems = Ignored()

    async def header_of(authorization: Authorization) -> str:
        credential = await authorization.credential()
        assert credential is not None
        return credential.header

    def header(server: str, client: str, tenant: str = "") -> Any:
        auth = Auth("authorization_code", "tenant", issuer="http://127.0.0.1:9")
        spec = server_spec(VariantKey(server, tenant), "streamable_http", auth=auth)
        resolved = ResolvedValues(url="http://127.0.0.1:9/mcp", auth={"client_id": client})
        authorization = tokens.authorization(spec, resolved, problems)
        assert authorization is not None
        return asyncio.ensure_future(header_of(authorization))

    try:
        waiting = [header("slow", f"client{number}") for number in range(50)]
        await until(lambda: asked)
        async with asyncio.timeout(BOUND):
            assert await header(other[0], "client", other[1]) == "Bearer token"
        assert not any(task.done() for task in waiting)
        assert len(asked) <= 10
    finally:
        release.set()
    assert await asyncio.gather(*waiting) == ["Bearer token"] * 50
    await tokens.aclose()


class Ignored(InstanceProblems):
    """Problems that nobody sees."""

    def __init__(self) -> None:
        pass

    def report(self, fault: Fault) -> None:
        """Ignore it."""

    def clear(self) -> None:
        """Ignore it."""
