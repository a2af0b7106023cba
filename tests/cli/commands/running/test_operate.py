"""`leaseway lease revoke` and `leaseway worker drain`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from tests.cli.fakes import FakeClient, install_client

from leaseway.cli.commands.running import operate
from leaseway.sdk import ControlPlaneUnavailable, InvalidRequest, LeaseLost

Run = Callable[..., Result]


def worker(state: str = "connected", run: str = "run-1", name: str = "w1") -> Any:
    return SimpleNamespace(id=name, incarnation=run, state=state)


class _Client(FakeClient):
    """A system with the lease `L1`, and the workers that each poll returns."""

    def __init__(self) -> None:
        self.confirms = True
        self.polls: list[list[Any] | Exception] = [[worker()]]
        self.requests: list[tuple[str, ...]] = []

    async def find_lease(self, session: str, server: str) -> str | None:
        return "L1" if (session, server) == ("job", "desk") else None

    async def revoke_lease(self, lease_id: str, reason: str) -> bool:
        if lease_id != "L1":
            raise LeaseLost(f"No worker holds lease '{lease_id}'.")
        self.requests.append((lease_id, reason))
        return self.confirms

    async def workers(self) -> list[Any]:
        poll = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        if isinstance(poll, Exception):
            raise poll
        return poll

    async def drain_worker(self, worker_id: str) -> None:
        if worker_id != "w1":
            message = f"No worker '{worker_id}' is connected. Connected are: w1."
            raise InvalidRequest(message)
        self.requests.append((worker_id,))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    fake = _Client()
    install_client(monkeypatch, fake)
    monkeypatch.setattr(operate, "_POLL", 0.0)
    return fake


def test_a_lease_is_revoked_with_a_reason(run: Run, client: _Client) -> None:
    done = run("lease", "revoke", "L1", "--reason", "it is stuck")
    assert (done.exit_code, done.stdout) == (0, "Lease L1 is revoked.\n")
    assert client.requests == [("L1", "it is stuck")]


def test_a_revocation_that_is_not_confirmed_is_a_failure(run: Run, client: _Client) -> None:
    client.confirms = False
    done = run("lease", "revoke", "L1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "has not confirmed" in done.stderr


def test_an_unknown_lease_is_an_error(run: Run, client: _Client) -> None:
    done = run("lease", "revoke", "L9")
    assert (done.exit_code, done.stderr) == (1, "leaseway: No worker holds lease 'L9'.\n")


def test_a_lease_is_revoked_by_its_session_and_server(run: Run, client: _Client) -> None:
    done = run("lease", "revoke", "--server", "desk", "--session", "job")
    assert (done.exit_code, done.stdout) == (0, "Lease L1 is revoked.\n")
    assert client.requests == [("L1", "")]


def test_a_session_without_a_lease_of_the_server_is_an_error(run: Run, client: _Client) -> None:
    done = run("lease", "revoke", "--server", "desk", "--session", "other")
    assert (done.exit_code, client.requests) == (1, [])
    assert "No worker has reported a lease of server 'desk' for session 'other'." in done.stderr


@pytest.mark.parametrize(
    "named",
    [
        [],
        ["--server", "desk"],
        ["L1", "--server", "desk", "--session", "job"],
        ["L1", "--session", "job"],
    ],
)
def test_a_lease_is_named_in_one_way(run: Run, client: _Client, named: list[str]) -> None:
    done = run("lease", "revoke", *named)
    assert (done.exit_code, client.requests) == (2, [])
    assert "by its id, or by --server and --session" in done.stderr


def test_a_drain_returns_at_once(run: Run, client: _Client) -> None:
    done = run("worker", "drain", "w1")
    assert (done.exit_code, done.stdout) == (0, "Worker w1 is draining.\n")
    assert client.requests == [("w1",)]


@pytest.mark.parametrize(
    "end", [[], [worker("lost")], [worker(run="run-2")], [worker(name="w1-2")]]
)
def test_a_drain_with_wait_returns_when_this_incarnation_has_exited(
    run: Run, client: _Client, end: list[Any]
) -> None:
    away = ControlPlaneUnavailable("Nobody answers.")
    client.polls = [[worker()], [worker("draining")], away, end]
    done = run("worker", "drain", "w1", "--wait")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == ["Worker w1 is draining.", "Worker w1 has exited."]


def test_a_drain_with_wait_has_a_timeout(run: Run, client: _Client) -> None:
    done = run("worker", "drain", "w1", "--wait", "--timeout", "0.05")
    assert done.exit_code == 1
    assert "has not exited within 0.05 s" in done.stderr


def test_an_unknown_worker_is_an_error_with_the_connected_workers(
    run: Run, client: _Client
) -> None:
    done = run("worker", "drain", "w9", "--wait")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "leaseway: No worker 'w9' is connected. Connected are: w1.\n"


def test_a_misspelled_subcommand_starts_no_worker(run: Run) -> None:
    done = run("worker", "drian", "w1")
    assert done.exit_code == 2
    assert "drian" in done.stderr


def test_the_subcommands_are_in_the_help(run: Run) -> None:
    assert "drain" in run("worker", "--help").stdout
    assert "--wait" in run("worker", "drain", "--help").stdout
    assert "--reason" in run("lease", "revoke", "--help").stdout
