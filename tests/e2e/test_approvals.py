"""Calls that need approval, through whole processes: keys, commands, callbacks, audit, events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.e2e.forking import Completed, run_leaseway
from tests.e2e.lease_api import DURATION, LEASE, lease_api
from tests.e2e.system import System, eventually, python_server, running
from tests.postgres_server import PostgresServer, postgres_server

from leaseway.data_plane.audit.chain import verify_run
from leaseway.data_plane.audit.log import runs_in
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.sdk import (
    Approval,
    AsyncClient,
    Client,
    ConfirmationRequired,
    ControlPlaneUnavailable,
    InvalidRequest,
    LeaseLost,
    NotLeader,
    PermissionDenied,
    StoreUnavailable,
)

BANK = python_server(
    "counter.py", **{"truely-stateless": True, "risk": {"add": "financial"}, "transform": []}
)


async def leaseway(*words: str, key: str = "") -> Completed:
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LEASEWAY_KEY": key}
    return await run_leaseway(*words, environment=environment)


async def test_what_was_approved_runs_once_after_the_control_plane_was_killed(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    environment = {"LEASEWAY_DATA": str(data)}
    async with running(tmp_path, {"bank": BANK}, environment=environment) as (system, client):
        approval = await refused(client, 5)
        await client.approve(approval.confirmation_id)
        undecided = await refused(client, 6)
        await kill_control_plane(system)
        await system.start_control_plane()
        await system.ready()
        assert (await client.status()).store == "sqlite"
        both = await asyncio.gather(
            *(client.call_tool("add", {"by": 5}, timeout=60) for _ in range(2)),
            return_exceptions=True,
        )
        assert sorted(type(each_approval).__name__ for each_approval in both) == [
            "ConfirmationRequired", "ToolResult",
        ]  # fmt: skip
        states = {
            each_approval.id: each_approval.state for each_approval in await client.approvals()
        }
        assert states[approval.confirmation_id] == "used"
        assert states[undecided.confirmation_id] == "waiting"

        # A file that is damaged stops the control plane, not the calls that need no approval.
        assert (await client.call_tool("next")).text == "6"
        await kill_control_plane(system)
        (data / "leaseway.db").write_bytes(b"no database, but long enough for one" * 1_000)
        with pytest.raises(RuntimeError, match=r"is damaged\. Restore the folder from a backup"):
            await system.start_control_plane()
        assert (await client.call_tool("next")).text == "7"


async def test_control_planes_that_share_a_database_keep_one_approval_for_one_call(
    tmp_path: Path, database: PostgresServer
) -> None:
    async with (
        lease_api(tmp_path) as lease,
        sharing(tmp_path, database, lease.kubeconfig) as (system, client),
    ):
        approval = await refused(client, 5)
        await client.approve(approval.confirmation_id)
        undecided = await refused(client, 6)
        assert (await client.call_tool("next")).text == "1"
        await kill_control_plane(system)
        assert (await client.call_tool("next")).text == "2"
        lease.expire()

        async def rejoined() -> bool:
            with contextlib.suppress(NotLeader, ControlPlaneUnavailable):
                return len(await client.workers()) == 1
            return False

        await eventually(rejoined)
        assert (await client.status()).store == "postgresql"
        both = await asyncio.gather(
            *(client.call_tool("add", {"by": 5}, timeout=60) for _ in range(2)),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in both) == [
            "ConfirmationRequired", "ToolResult",
        ]  # fmt: skip
        assert await state_of(client, approval) == "used"

        await asyncio.to_thread(database.crash)
        with pytest.raises(StoreUnavailable):
            await client.approve(undecided.confirmation_id)
        with pytest.raises(StoreUnavailable) as down:
            await client.call_tool("add", {"by": 6}, timeout=60)
        assert down.value.started == "no"
        assert (await client.call_tool("next")).text == "8"
        assert "STORE_UNAVAILABLE" in await reasons(client)

        await asyncio.to_thread(database.start)

        async def approved() -> bool:
            with contextlib.suppress(StoreUnavailable, InvalidRequest):
                await client.approve(undecided.confirmation_id)
            return await state_of(client, undecided) == "approved"

        await eventually(approved)
        assert (await client.call_tool("add", {"by": 6}, timeout=60)).text == "14"
        assert "STORE_UNAVAILABLE" not in await reasons(client)


async def reasons(client: AsyncClient) -> set[str]:
    return {problem.reason for problem in await client.problems()}


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@contextlib.asynccontextmanager
async def sharing(
    folder: Path, database: PostgresServer, kubeconfig: Path
) -> AsyncIterator[tuple[System, AsyncClient]]:
    """Run two control planes with a database and a leader, and a worker that knows both."""
    environment = {
        "KUBECONFIG": str(kubeconfig),
        "LEASEWAY_SEAL_KEY": "of both control planes",
        "LEASEWAY_STORE": "env:STORE_DSN",
        "STORE_DSN": database.dsn(database.database()),
    }
    system = System(folder, {"bank": BANK}, environment=environment)
    system.control_plane_options = ("--leader-lease", LEASE)
    system.control_plane_options += ("--leader-lease-duration", str(DURATION))
    try:
        await system.start_control_plane()
        standby = await system.start_standby()
        await system.start_worker("worker-1", "--control-plane", standby.address)
        async with AsyncClient(f"{system.address},{standby.address}", agent="test") as client:
            await system.ready()
            yield system, client
    finally:
        await system.stop()
        print(system.logs())


async def state_of(client: AsyncClient, asked: ConfirmationRequired) -> str:
    found = {approval.id: approval.state for approval in await client.approvals()}
    return found[asked.confirmation_id]


async def kill_control_plane(system: System) -> None:
    assert system.control_plane is not None
    await system.control_plane.end(signal.SIGKILL)


ROLES = {
    "acme": ("acme", [Role.CALLER]),
    "rival": ("rival", [Role.CALLER]),
    "ann": ("acme", [Role.CALLER, Role.APPROVER]),
    "bob": (None, [Role.APPROVER]),
    "eve": ("rival", [Role.APPROVER]),
    "ops": (None, [Role.OPERATOR]),
}


def make_keys(path: Path) -> dict[str, str]:
    keys = {}
    for name, (tenant, roles) in ROLES.items():
        keys[name], record = make_key(roles=roles, tenant=tenant, agent=None, now=0.0)
        add_key(path, record)
    return keys


async def refused(client: AsyncClient, by: int) -> ConfirmationRequired:
    with pytest.raises(ConfirmationRequired) as error:
        await client.call_tool("add", {"by": by}, timeout=60)
    return error.value


async def test_an_approved_call_runs_once_for_the_tenant_that_asked(tmp_path: Path) -> None:
    keys = await asyncio.to_thread(make_keys, tmp_path / "keys.json")
    environment = {
        "LEASEWAY_KEYS": str(tmp_path / "keys.json"),
        "LEASEWAY_KEY": "the-planes-shared-key",
        "LEASEWAY_AUDIT": str(tmp_path / "audit"),
    }

    class Keyed(System):
        async def ready(self, within: float = 2 * BOUND) -> None:
            """Wait until all servers are served; connect with the shared key of the planes."""
            async with AsyncClient(self.address, key="the-planes-shared-key") as client:
                await eventually(lambda: self._is_served(client), within=within)

    async with Keyed(tmp_path, {"bank": BANK}, environment=environment) as system:
        at = ("--address", system.address)
        clients = {name: AsyncClient(system.address, key=key) for name, key in keys.items()}
        acme, rival = clients["acme"], clients["rival"]
        first = await refused(acme, 5)
        assert not first.may_approve

        # Another tenant and callers without the role approver are rejected.
        with pytest.raises(InvalidRequest, match="There is no approval"):
            await clients["eve"].approve(first.confirmation_id)
        for name in ("acme", "ops"):
            with pytest.raises(PermissionDenied):
                await clients[name].approve(first.confirmation_id)
        assert [each_approval.id for each_approval in await clients["ops"].approvals()] == [
            first.confirmation_id
        ]
        assert not await clients["eve"].approvals()
        both = await asyncio.gather(
            *(
                leaseway("approvals", "approve", first.confirmation_id, *at, key=keys[name])
                for name in ("ann", "bob")
            )
        )
        assert sorted(done.status for done in both) == [0, 1]
        [loser] = [done for done in both if done.status]
        assert "already approved by key" in loser.stderr

        # Other arguments and another tenant need their own approval; the call runs once.
        other = await refused(acme, 6)
        foreign = await refused(rival, 5)
        assert len({first.confirmation_id, other.confirmation_id, foreign.confirmation_id}) == 3
        assert (await acme.call_tool("add", {"by": 5})).text == "5"
        replay = await refused(acme, 5)
        assert replay.confirmation_id != first.confirmation_id

        # A call that is too long for the list is approved only after it was shown.
        with pytest.raises(ConfirmationRequired) as long:
            await acme.call_tool("add", {"by": 7, "note": "x" * 3_000 + "end"})
        number = long.value.confirmation_id
        listed = await leaseway("approvals", "list", *at, key=keys["ann"])
        assert f"characters: leaseway approvals show {number}" in listed.stdout
        shown = await leaseway("approvals", "show", number, *at, key=keys["ann"])
        assert '"by": 7' in shown.stdout
        assert 'xend"' in shown.stdout
        blind = await leaseway("approvals", "approve", number, *at, key=keys["ann"])
        assert blind.status == 2
        assert "approve it with --yes" in blind.stderr
        seen = await leaseway("approvals", "approve", number, "--yes", *at, key=keys["ann"])
        assert seen.status == 0

        # A client whose key has the role approver asks its own user.
        requested: list[Approval] = []

        def yes(approval: Approval) -> bool:
            requested.append(approval)
            return True

        async def no(approval: Approval) -> bool:
            requested.append(approval)
            return False

        def pay() -> str:
            with Client(system.address, key=keys["ann"], on_approval=yes) as client:
                return client.call_tool("add", {"by": 2}).text

        assert await asyncio.to_thread(pay) == "7"
        with pytest.raises(PermissionDenied, match="has denied"):
            await clients["ann"].call_tool("add", {"by": 100}, on_approval=no)
        with pytest.raises(ConfirmationRequired):
            await clients["ann"].call_tool("add", {"by": 200}, on_approval=lambda _: None)
        assert [json.loads(each_approval.arguments) for each_approval in requested] == [
            {"by": 2},
            {"by": 100},
        ]
        with pytest.raises(LeaseLost):
            await clients["ops"].revoke_lease("nothing")
        for client in clients.values():
            await client.close()

        listed = await leaseway("events", "--json", *at, key="the-planes-shared-key")
        events = [json.loads(line) for line in listed.stdout.splitlines()]
    actions = [event["action"] for event in events if event["kind"] == "approval"]
    assert actions.count("used") == 2
    assert actions.count("denied") == 1
    assert actions.count("refused") == 2  # by eve, and by the second of ann and bob
    [run] = runs_in(tmp_path / "audit").values()
    lines = [line for path in run for line in path.read_bytes().splitlines(True)]
    assert not verify_run([("audit", lines)]).faults
    records = [json.loads(line) for line in lines]
    decisions = [
        (each_record["approval"], each_record["outcome"])
        for each_record in records
        if each_record["event"] == "approval"
    ]
    assert decisions.count((first.confirmation_id, "approved")) == 1
    # By eve, whose tenant is another one, and by the second of ann and bob.
    assert decisions.count((first.confirmation_id, "INVALID_REQUEST")) == 2
    [tried] = [each_record for each_record in records if each_record["event"] == "operator"]
    assert (tried["action"], tried["lease"], tried["outcome"]) == (
        "revoke", "nothing", "LEASE_LOST",
    )  # fmt: skip
    assert tried["by"] == f"key {keys['ops'][4:12]}"
    listed = await leaseway("audit", "query", str(tmp_path / "audit"))
    assert f"revoke nothing, by {tried['by']}" in listed.stdout
    calls: dict[int, dict[str, Any]] = {}
    for record in records:
        if record["event"] in ("begin", "call"):
            calls.setdefault(record["call"], {}).update(record)
    adds = list(calls.values())
    ran = [each_approval["approval"] for each_approval in adds if each_approval["outcome"] == "ok"]
    assert ran[0] == first.confirmation_id
    outcomes = [
        (each_approval["tenant"], each_approval["arguments"]["by"], each_approval["outcome"])
        for each_approval in adds
    ]
    assert outcomes.count(("acme", 5, "ok")) == 1
    assert outcomes.count(("acme", 5, "CONFIRMATION_REQUIRED")) == 2
    assert ("acme", 6, "CONFIRMATION_REQUIRED") in outcomes
    assert ("rival", 5, "CONFIRMATION_REQUIRED") in outcomes
    assert ("acme", 100, "PERMISSION_DENIED") in outcomes
