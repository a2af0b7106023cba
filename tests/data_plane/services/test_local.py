"""Callers in the worker's process: their credentials, and the limits of their streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.calls import call_message
from tests.conftest import BOUND
from tests.data_plane.conftest import worker_bench

from leaseway.data_plane.services.local import LocalCallStream
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import Principal, Role
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

SHARED = Principal("the caller", frozenset({Role.CALLER}), "acme")
VIEWER = Principal("the viewer", frozenset({Role.VIEWER}))
KEY, OTHER = "k" * 24, "v" * 24


async def end_of(caller: Any) -> Fault:
    """Return the fault with which a stream ended."""
    with pytest.raises(Fault) as caught:
        await asyncio.wait_for(caller._reader, BOUND)
    return caught.value


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, Reason.UNAUTHENTICATED),
        ("x" * 24, Reason.UNAUTHENTICATED),
        (OTHER, Reason.PERMISSION_DENIED),
    ],
)
async def test_a_caller_without_an_accepted_credential_gets_no_stream(
    key: str | None, reason: Reason
) -> None:
    authenticator = Authenticator(shared=[(KEY, SHARED), (OTHER, VIEWER)])
    async with worker_bench(authenticator=authenticator) as bench:
        bench.in_process = True
        assert (await end_of(bench.caller(key))).reason is reason
        assert not bench.worker.execution._exchanges.open_streams


async def test_a_caller_acts_only_for_the_tenant_of_its_credential() -> None:
    async with worker_bench(authenticator=Authenticator(shared=[(KEY, SHARED)])) as bench:
        bench.in_process = True
        await bench.hold("time")
        caller = bench.caller(KEY)
        fault = await caller.refused("time", tenant="other")
        assert fault.reason is Reason.PERMISSION_DENIED
        await caller.begin("time")
        (call,) = await bench.wait_for_calls()
        (active,) = bench.worker.executor._active.values()
        assert active.call.tenant == "acme"
        call.answer(b"{}")


async def test_a_revoked_credential_ends_the_stream_and_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=1.0)
    add_key(path, record)
    authenticator = Authenticator(keys=path)
    async with worker_bench(authenticator=authenticator) as bench:
        bench.in_process = True
        await bench.hold("time")
        caller = bench.caller(key)
        await caller.begin("time")
        (call,) = await bench.wait_for_calls()
        revoke_key(path, record.id, 2.0)
        await authenticator.refresh()
        fault = await end_of(caller)
        assert fault.reason is Reason.UNAUTHENTICATED
        assert "revoked" in fault.message
        assert call.cancelled
        assert not bench.worker.executor.in_flight


async def test_a_call_that_crosses_the_end_of_its_stream_does_not_run() -> None:
    async with worker_bench() as bench:
        bench.in_process = True
        await bench.hold("time")
        caller = bench.caller()
        await caller.begin("time")
        await bench.wait_for_calls()
        (stream,) = bench.worker.execution._exchanges._streams
        assert isinstance(stream, LocalCallStream)
        stream.abort(Fault(Reason.OVERLOADED, "It holds too much.", "unknown"))
        await end_of(caller)
        stream.start_call(call_message(id=9, server_id="time", tool="echo"), b'{"text": "hi"}')
        assert not bench.worker.executor.in_flight


class _WithCertificates(Authenticator):
    accepts_certificates = True


@pytest.mark.parametrize("kind", [Authenticator, _WithCertificates])
async def test_a_certificate_counts_only_on_a_connection(kind: type[Authenticator]) -> None:
    async with worker_bench(authenticator=kind(shared=[(KEY, SHARED)])) as bench:
        local = bench.worker.local
        assert local.admits(None) == (kind is Authenticator)
        assert local.admits(f"Bearer {KEY}")


async def test_a_client_has_one_limit_of_calls_here_and_on_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_CLIENT_CALLS", 2)
    async with worker_bench(authenticator=Authenticator(shared=[(KEY, SHARED)])) as bench:
        bench.in_process = True
        await bench.hold("time")
        first, second = bench.caller(KEY), bench.caller(KEY)
        await first.begin("time")
        await second.begin("time")
        await bench.wait_for_calls(2)
        fault = await first.refused("time")
        assert (fault.reason, fault.metadata["limit"]) == (Reason.OVERLOADED, "calls")


async def test_arguments_over_their_bound_are_refused() -> None:
    async with worker_bench() as bench:
        bench.in_process = True
        await bench.serve("time")
        arguments = b'{"text": "' + b"x" * bounds.MAX_ARGUMENTS + b'"}'
        fault = await bench.caller().refused("time", arguments=arguments)
        assert fault.reason is Reason.INVALID_ARGUMENTS
