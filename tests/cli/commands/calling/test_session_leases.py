"""The report of a new lease of a session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from leaseway.cli.commands.calling.session_leases import print_new_lease
from leaseway.sdk import ControlPlaneUnavailable
from leaseway.sdk.operators import observe

LEASE = SimpleNamespace(id="i-2", server_id="files", worker="w1")
LOST = "Lease i-1 was lost: its process ended. Acquire a new one to go on."


def event(lease_id: str, action: str, message: str, session: str = "k", tenant: str = "t") -> Any:
    return SimpleNamespace(
        lease_id=lease_id, action=action, message=message, session=session, tenant=tenant
    )


def reported(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    events: list[Any] | Exception,
    session: str | None = "k",
    lease: Any = LEASE,
) -> list[str]:
    async def fetch(*_: Any, **__: Any) -> list[Any]:
        if isinstance(events, Exception):
            raise events
        return events

    monkeypatch.setattr(observe, "fetch_events", fetch)
    client: Any = None
    asyncio.run(print_new_lease(client, session, SimpleNamespace(new_lease=lease)))
    return capsys.readouterr().err.splitlines()


ACQUIRED = (
    "leaseway: Acquired lease i-2 of server 'files' for session 'k' on worker w1: the server has"
    " just been started."
)


def test_a_new_lease_is_reported_with_the_end_of_the_previous_lease(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        event("i-0", "released", "Lease i-0 was released."),
        event("i-1", "lost", LOST),
        event("i-9", "revoked", "of another tenant", tenant="other"),
        event("i-8", "revoked", "of another session", session="other"),
        event("i-2", "granted", "Lease i-2 was granted."),
    ]
    report = reported(monkeypatch, capsys, events)
    assert report == [ACQUIRED, f"leaseway: The session's previous lease had ended: {LOST}"]


@pytest.mark.parametrize("events", [[], ControlPlaneUnavailable("It is gone.")])
def test_without_events_only_the_new_lease_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], events: Any
) -> None:
    assert reported(monkeypatch, capsys, events) == [ACQUIRED]


@pytest.mark.parametrize(("session", "lease"), [(None, LEASE), ("k", None)])
def test_no_report_without_a_session_or_a_new_lease(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    session: str | None,
    lease: Any,
) -> None:
    assert reported(monkeypatch, capsys, [], session, lease) == []
