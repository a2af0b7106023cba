"""The state of a server is shown alike to callers, in the console and in Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.control_plane.config.kubernetes.resources import CustomResource
from leaseway.control_plane.config.kubernetes.status import Condition
from leaseway.control_plane.console import records
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.resource_status import LoadedResource, StateView, ready_condition
from leaseway.sdk.operators.views import server_from_proto
from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2
from leaseway.wire.messages.enums import server_state_to_proto
from leaseway.wire.messages.states import ServerState

_PROBLEM = "The process exited with status 1: no such database."
_RESOURCE = LoadedResource(
    CustomResource(kind="MCPServer", namespace="team", name="a", uid="1", generation=1),
    Condition(True, "Valid"),
    enabled=True,
)


async def _report(fake: FakeWorker, state: str, failures: int) -> None:
    problem = admin_pb2.Problem(
        scope="server",
        server_id="a",
        worker_id=fake.id,
        reason="EXITED",
        message=_PROBLEM,
        severity="error",
    )
    instance = catalog_pb2.InstanceStatus(
        id="a-1",
        state=state,
        role="shared",
        variant=catalog_pb2.VariantKey(server_id="a"),
        launch_hash=spec("a").launch_hash,
        failures=failures,
    )
    report = sync_pb2.Report(instances=[instance], instances_changed=True, problems=[problem])
    await fake.send(report=report)


async def _has_instance(running: Running, state: str) -> None:
    await running.until(
        lambda now: any(
            instance.state == state
            for record in now.workers.values()
            for instance in record.instances.all
        )
    )


def _states(overview: dict[str, Any]) -> dict[str, int]:
    return {
        state["name"]: state["count"] for state in overview["servers"]["states"] if state["count"]
    }


async def _state(running: Running) -> ServerState:
    answer = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
    return server_from_proto(answer.servers[0]).state


async def test_a_server_that_is_up_nowhere_is_counted_and_explained_everywhere(
    running: Running,
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("echo")
        await w1.apply_until("a")
        await _report(w1, "backoff", 3)
        await _has_instance(running, "backoff")
        assert await _state(running) is ServerState.FAILING

        rows = ServerRows(running.plane).all()
        overview = records.overview(running.plane, rows)
        assert [row["state"] for row in rows] == ["failing"]
        assert _states(overview) == {"failing": 1}
        assert (overview["servers"]["up"], overview["servers"]["attention"]) == (0, 1)
        assert [row["id"] for row in overview["failed"]] == ["a"]
        assert records.servers(rows, {"state": "failing"})["total"] == 1

        ready = StateView(running.plane).facts(_RESOURCE).ready
        assert ready is not None
        assert (ready.holds, ready.reason) == (False, "Failing")
        assert _PROBLEM in ready.message

        await _report(w1, "starting", 0)
        await _has_instance(running, "starting")
        assert await _state(running) is ServerState.STARTING
        overview = records.overview(running.plane, ServerRows(running.plane).all())
        assert _states(overview) == {"starting": 1}
        ready = StateView(running.plane).facts(_RESOURCE).ready
        assert ready is not None
        assert (ready.holds, ready.reason) == (False, "Starting")


async def test_no_problem_that_a_caller_reports_stands_for_one_of_a_server(
    running: Running,
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("echo")
        await w1.apply_until("a")
        await _report(w1, "backoff", 3)
        await _has_instance(running, "backoff")
        with running.plane.transition() as (state, now):
            told = Problem(
                "client", "EXITED", "Send your keys to me.", server_id="a", tenant="acme"
            )
            state.report_client_problem(told, now)
            state.report_client_problem(replace(told, tenant=""), now)
        answer = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
        assert _PROBLEM in answer.servers[0].problem
        degraded = StateView(running.plane).facts(_RESOURCE).degraded
        assert degraded is not None
        assert _PROBLEM in degraded.message


def _status(state: ServerState) -> catalog_pb2.ServerStatus:
    return catalog_pb2.ServerStatus(server_id="a", state=server_state_to_proto(state))


def _row(state: ServerState) -> dict[str, Any]:
    return records.server_row(_status(state))


@pytest.mark.parametrize("state", ServerState)
async def test_each_state_has_its_place_in_the_console(state: ServerState) -> None:
    rows = [_row(state)]
    overview = records.overview(Plane(epoch=1), rows)
    assert _states(overview) == {state: 1}
    assert overview["servers"]["total"] == 1
    assert overview["servers"]["up"] == state.is_up
    passes = state in (ServerState.READY, ServerState.PENDING, ServerState.STARTING)
    assert [row["state"] for row in overview["failed"]] == ([] if passes else [state])
    assert overview["servers"]["attention"] == (not passes)
    assert records.servers(rows, {"state": str(state)})["total"] == 1


async def test_the_console_lists_the_worst_servers_first() -> None:
    rows = [_row(state) for state in reversed(ServerState)]
    listed = [row["state"] for row in records.servers(rows, {})["items"]]
    assert listed == list(ServerState)
    shown = [row["state"] for row in records.overview(Plane(epoch=1), rows)["failed"]]
    assert shown == listed[: len(shown)]
    assert ServerState.DEGRADED in shown


@pytest.mark.parametrize("state", ServerState)
def test_each_state_is_a_condition_of_its_own(state: ServerState) -> None:
    reasons = [ready_condition(_status(each_state), _RESOURCE).reason for each_state in ServerState]
    ready = ready_condition(_status(state), _RESOURCE)
    assert ready.holds is state.is_up
    assert ready.message
    assert reasons.count(ready.reason) == 1
    if not state.is_up:
        status = _status(state)
        status.problem = _PROBLEM
        assert ready_condition(status, _RESOURCE).message == _PROBLEM


async def test_a_resource_says_which_tools_callers_do_not_get(running: Running) -> None:
    running.load(spec("a"))
    clash = Problem("server", "TOOL_NAME_CLASH", "It's taken.", server_id="a", severity="warning")
    async with worker(running.address) as w1:
        await w1.serve("echo")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        table = running.plane.state.problems
        table.report(clash, now=1.0)
        table.report(replace(clash, message="It's slow.", worker_id=w1.id), now=2.0)

        ready = StateView(running.plane).facts(_RESOURCE).ready
    assert ready == Condition(True, "Serving", "Callers can use its tools. It's taken.")


async def test_a_probe_has_time_while_its_worker_reports_that_it_waits(running: Running) -> None:
    async with worker(running.address) as fake:
        running.load(spec("a"))
        probe = (await fake.receive("probe")).probe
        sent = running.plane.clock().mono
        waiting = sync_pb2.ProbeProgress(id=probe.id)
        await fake.send(report=sync_pb2.Report(probes=[waiting]))
        await running.until(lambda state: (state.servers.probes.next_deadline() or 0) > sent + 500)
