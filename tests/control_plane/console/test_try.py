"""The console calls a tried tool by the relay of the SDK, with the operator's credential."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.sdk.fakes import FakeWorker

from leaseway.control_plane.console.actions import ActionRefused, Actions
from leaseway.identity.principal import Principal, Role
from leaseway.wire.errors import Fault, Reason

OPERATOR = Principal("token ann", frozenset({Role.OPERATOR, Role.CALLER}), agent="desk")


async def tried(
    worker: FakeWorker,
    monkeypatch: pytest.MonkeyPatch,
    *,
    shared: bool = True,
    arguments: dict[str, Any] | None = None,
    sent: str | None = None,
) -> dict[str, Any]:
    """Try a tool of a server that the worker has, and return what the page gets."""
    actions = actions_for(worker, monkeypatch, shared=shared)
    server = "kit" if shared else "desk"
    return await actions.try_tool(server, "echo", "acme", arguments or {}, OPERATOR, sent)


def actions_for(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> Actions:
    """Return the actions of a console that finds a worker's server."""
    record = SimpleNamespace(
        id=worker.id, hello=SimpleNamespace(address=SimpleNamespace(address=worker.ref.address))
    )
    plane = MagicMock()
    served = SimpleNamespace(spec=SimpleNamespace(truely_stateless=shared, call_timeout=5.0))
    plane.state.visible.view.return_value.servers.get.return_value = served
    actions = Actions(plane, "the-shared-key")
    monkeypatch.setattr(actions, "_worker_for", lambda _served, _key: record)
    return actions


@pytest.mark.parametrize(
    ("sent", "expected"),
    [("Bearer ann's token", "Bearer ann's token"), (None, "Bearer the-shared-key")],
    ids=["with a credential", "on loopback without any"],
)
async def test_the_worker_gets_the_operators_credential(
    sent: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeWorker() as worker:
        found = await tried(worker, monkeypatch, sent=sent)
    assert found["worker"] == "w1"
    assert worker.metadata["authorization"] == expected
    (call,) = worker.calls
    assert (call.agent, call.tenant, call.session) == ("console", "acme", "")


async def test_numbers_reach_the_tool_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeWorker() as worker:
        await tried(worker, monkeypatch, arguments={"id": 2**60 + 1})
    assert b"1152921504606846977" in worker.calls[0].arguments


async def test_a_lease_that_a_try_acquires_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeWorker() as worker:
        await tried(worker, monkeypatch, shared=False)
        assert worker.leases == {}
    ((tenant, session),) = worker.released_for
    assert (tenant, session) == ("acme", worker.calls[0].session)


async def test_tries_of_one_call_share_a_session_as_an_approval_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeWorker() as worker:
        actions = actions_for(worker, monkeypatch, shared=False)
        for amount in 5, 5, 6:
            await actions.try_tool("desk", "echo", "acme", {"amount": amount}, OPERATOR, None)
        first, again, other = (call.session for call in worker.calls)
    assert first == again != other


async def test_a_try_beside_another_of_the_same_call_has_a_session_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeWorker() as worker:
        actions = actions_for(worker, monkeypatch, shared=False)
        tries = (actions.try_tool("desk", "echo", "acme", {}, OPERATOR, None) for _ in range(2))
        await asyncio.gather(*tries)
        first, beside = (call.session for call in worker.calls)
        await actions.try_tool("desk", "echo", "acme", {}, OPERATOR, None)
    assert first != beside
    assert worker.calls[-1].session in (first, beside)


async def test_a_refused_try_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeWorker() as worker:
        worker.faults = [Fault(Reason.RATE_LIMITED, "Too many calls.")]
        with pytest.raises(ActionRefused, match=r"RATE_LIMITED: Too many calls\."):
            await tried(worker, monkeypatch)
