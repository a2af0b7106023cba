"""The control plane's services over gRPC, with fake workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, recorded, worker
from tests.control_plane.services.answers import fault_of, heard

from leaseway.control_plane.core.catalog.snapshot import Snapshot
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.bounds import MAX_PROBES
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status


async def resolve(
    running: Running, *names: str, timeout: float = BOUND
) -> list[catalog_pb2.ResolvedTool]:
    request = catalog_pb2.ResolveToolsRequest(names=names)
    return list((await running.catalog.ResolveTools(request, timeout=timeout)).tools)


async def test_tools_are_listed_with_their_whole_definition(running: Running) -> None:
    running.load(spec("time"))
    async with worker(running.address) as w1:
        await w1.serve("now", "zones")
        await w1.apply_until("time")
        await running.until(lambda state: state.ready)
        (first, second) = (await running.catalog.ListTools(catalog_pb2.ListToolsRequest())).tools
    assert (first.name, first.original_name, first.server_id) == ("time_now", "now", "time")
    assert second.name == "time_zones"
    assert json.loads(first.input_schema) == {"type": "object"}
    assert json.loads(first.annotations) == {"readOnlyHint": True}
    assert json.loads(first.extra) == {"icons": [{"src": "x"}]}
    assert first.shared


async def test_a_call_before_the_first_result_waits_for_it(running: Running) -> None:
    running.load(spec("time"))
    async with worker(running.address) as w1:
        asked = asyncio.create_task(resolve(running, "time_now", "time:now"))
        await w1.serve("now")
        await w1.apply_until("time")
        exposed, qualified = await asked
    assert [ref.id for ref in exposed.workers] == ["w1"]
    assert (qualified.server_id, qualified.original_name) == ("time", "now")
    assert exposed.read_only


async def test_the_workers_of_many_names_are_sent_once_and_not_again(running: Running) -> None:
    running.load(spec("time"))
    async with worker(running.address) as w1:
        await w1.serve("now", "zones")
        await w1.apply_until("time")
        request = catalog_pb2.ResolveToolsRequest(
            names=["time_now", "time_zones"], takes_worker_sets=True
        )
        answer = await running.catalog.ResolveTools(request)
        (workers,) = answer.worker_sets
        assert [tool.worker_set for tool in answer.tools] == [workers.id, workers.id]
        assert [each_worker.id for each_worker in workers.workers] == ["w1"]
        assert not any(tool.workers for tool in answer.tools)
        request.known_worker_sets.append(workers.id)
        assert not (await running.catalog.ResolveTools(request)).worker_sets


async def test_names_of_one_request_are_resolved_in_one_version(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        running.load(spec("a"), spec("slow"))
        probe = (await w1.receive("probe")).probe
        changed, waits = running.plane.wait_for_first_results, asyncio.Event()

        async def wait(timeout: float) -> None:
            waits.set()
            await changed(timeout)

        monkeypatch.setattr(running.plane, "wait_for_first_results", wait)
        request = catalog_pb2.ResolveToolsRequest(names=["a_x", "slow_y"])
        asked = asyncio.ensure_future(running.catalog.ResolveTools(request, timeout=BOUND))
        async with asyncio.timeout(BOUND):
            await waits.wait()
            running.load(spec("a", prefix="other_"), spec("slow"))
            await w1.receive("delta")
            await w1.send(
                probe_result=sync_pb2.ProbeResult(
                    id=probe.id,
                    key=probe.key,
                    launch_hash=probe.launch_hash,
                    tools=recorded("y"),
                    protocol_version="2025-11-25",
                )
            )
            await w1.apply_until("a", "slow")
            answer = await asked
    moved, waited = answer.tools
    assert fault_from_status(moved.error).reason is Reason.TOOL_NOT_FOUND
    assert (waited.server_id, waited.original_name) == ("slow", "y")
    assert answer.registry_version == running.plane.state.visible.version


@pytest.mark.parametrize("asks_for", ["tool", "lease"])
async def test_a_server_that_somebody_waits_for_is_probed_before_others(
    running: Running, asks_for: str
) -> None:
    running.load(*(spec(f"s{number:02}") for number in range(MAX_PROBES + 3)))
    last = f"s{MAX_PROBES + 2}"
    async with worker(running.address) as w1:
        started = [(await w1.receive("probe")).probe for _ in range(MAX_PROBES)]
        asked: Awaitable[object] = (
            running.catalog.ResolveTools(catalog_pb2.ResolveToolsRequest(names=[f"{last}_x"]))
            if asks_for == "tool"
            else running.placement.Place(leases_pb2.PlaceRequest(session="s", server_id=last))
        )
        waiting = asyncio.ensure_future(asked)
        await running.until(lambda state: not state.servers.probes.can_hurry(VariantKey(last)))
        probe = started[0]
        await w1.send(
            probe_result=sync_pb2.ProbeResult(
                id=probe.id, key=probe.key, launch_hash=probe.launch_hash, tools=recorded("x")
            )
        )
        assert (await w1.receive("probe")).probe.key.server_id == last
        waiting.cancel()


async def test_waiting_ends_at_the_callers_deadline_and_names_the_servers(
    running: Running, hurried: float
) -> None:
    running.load(spec("slow"))
    async with worker(running.address):
        (tool,) = await resolve(running, "slow_x", timeout=hurried)
    fault = fault_from_status(tool.error)
    assert fault.reason is Reason.SERVER_NOT_READY
    assert "slow" in fault.message


async def test_a_list_response_has_a_version_and_pending_servers(running: Running) -> None:
    running.load(spec("a"), spec("b"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.visible.served)
        reply = await running.catalog.ListTools(catalog_pb2.ListToolsRequest())
    assert reply.registry_version == running.plane.state.visible.version > 0
    assert list(reply.pending) == ["b"]
    assert reply.HasField("config_loaded_at")


async def test_ten_thousand_tools_come_in_pages_of_at_most_a_mebibyte(running: Running) -> None:
    running.load(spec("big"))
    names = [f"tool{number:05}" for number in range(10_000)]
    async with worker(running.address) as w1:
        probe = (await w1.receive("probe")).probe
        await w1.send(
            probe_result=sync_pb2.ProbeResult(
                id=probe.id, key=probe.key, tools=recorded(*names, size=300)
            )
        )
        await w1.apply_until("big")
        await running.until(lambda state: state.ready)
        assert len(w1.held["big"].toolset.recorded) == 10_000
        assert w1.parts > 1
        seen: list[str] = []
        token = ""
        while True:
            page = await running.catalog.ListTools(catalog_pb2.ListToolsRequest(page_token=token))
            assert page.ByteSize() <= 1024 * 1024 + 4096
            seen += [tool.original_name for tool in page.tools]
            token = page.next_page_token
            if not token:
                break
    assert seen == names


async def test_watchers_get_the_current_version_and_each_newer_one(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        async with asyncio.timeout(BOUND):
            first = await heard(watch)
            running.load(spec("a", prefix="other_"))
            await w1.receive("delta")
            second = await heard(watch)
        watch.cancel()
    assert second.registry_version > first.registry_version


async def test_watchers_are_notified_of_a_worker_that_has_caught_up(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        async with asyncio.timeout(BOUND):
            first = await heard(watch)
            async with worker(running.address, "w2") as w2:
                await w2.apply_until("a")
                second = await heard(watch)
        watch.cancel()
    assert not first.workers_changed
    assert second.workers_changed
    assert second.registry_version == first.registry_version


async def test_watchers_are_not_woken_by_other_events(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        await heard(watch)
        looked = 0
        visible: Callable[[Coordinator], Snapshot] = vars(Coordinator)["visible"].fget

        def look(state: Coordinator) -> Snapshot:
            nonlocal looked
            looked += 1
            return visible(state)

        monkeypatch.setattr(Coordinator, "visible", property(look))
        for _ in range(10):
            with running.plane.transition() as (state, _):
                state.record_contact("w1")
            await asyncio.sleep(0)
        watch.cancel()
    assert looked == 0


async def test_a_lease_is_placed_on_a_worker_that_serves(running: Running) -> None:
    running.load(spec("a", shared=False))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        request = leases_pb2.PlaceRequest(session="dialog", server_id="a")
        placed = await running.placement.Place(request, timeout=60)
        assert placed.worker.id == "w1"
        gained = leases_pb2.Lease(id="L1", server_id="a", tenant="default", session="dialog")
        await w1.send(report=sync_pb2.Report(leases_gained=[gained]))
        await running.until(lambda state: state.placements.leases)
        assert (await running.placement.Place(request)).lease_id == "L1"
        held = await running.admin.ListHeldLeases(admin_pb2.ListHeldLeasesRequest())
        assert [(lease.id, lease.worker_id, lease.session) for lease in held.leases] == [
            ("L1", "w1", "dialog")
        ]


async def test_placement_denials_have_their_reasons(running: Running) -> None:
    running.load(spec("a", shared=True))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        place = running.placement.Place
        shared = leases_pb2.PlaceRequest(session="s", server_id="a")
        assert (await fault_of(place(shared, timeout=60))).reason is Reason.NOT_LEASABLE
        unknown = leases_pb2.PlaceRequest(session="s", server_id="aa")
        fault = await fault_of(place(unknown, timeout=60))
        assert (fault.reason, fault.metadata["nearest"]) == (Reason.TOOL_NOT_FOUND, "a")
        blank = leases_pb2.PlaceRequest(server_id="a")
        assert (await fault_of(place(blank, timeout=60))).reason is Reason.INVALID_REQUEST
        long = leases_pb2.PlaceRequest(session="s" * 257, server_id="a")
        assert (await fault_of(place(long, timeout=60))).reason is Reason.INVALID_REQUEST


async def test_another_protocol_version_is_refused_by_name(running: Running) -> None:
    client = catalog_pb2.ClientInfo(protocol_version=99, package_version="future/9")
    request = catalog_pb2.ListToolsRequest(client=client)
    fault = await fault_of(running.catalog.ListTools(request, timeout=60))
    assert fault.reason is Reason.INCOMPATIBLE_VERSION
    assert "future/9" in fault.message


async def test_a_second_run_of_a_workers_id_is_refused_with_a_problem(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        second_run = FakeWorker(running.address, incarnation="run-2")
        await second_run.send_hello()
        assert await second_run.ended() is grpc.StatusCode.ALREADY_EXISTS
        await second_run.close()
        problems = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
        assert [problem.reason for problem in problems.problems] == ["WORKER_TWIN"]
        assert await w1.serve("x") == "a"


async def test_a_reconnecting_worker_replaces_its_older_stream(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as older:
        newer = FakeWorker(running.address)
        await newer.join()
        assert await older.ended() is grpc.StatusCode.ABORTED
        workers = await running.admin.ListWorkers(admin_pb2.ListWorkersRequest())
        assert [each_worker.state for each_worker in workers.workers] == ["connected"]
        await newer.close()


@pytest.mark.parametrize(
    "first",
    [
        {"ack": sync_pb2.Ack(nonce=1)},
        {"hello": sync_pb2.Hello(protocol_version=1)},
        {"hello": sync_pb2.Hello(protocol_version=99)},
    ],
    ids=["no hello", "no id", "another protocol"],
)
async def test_a_stream_without_a_valid_hello_is_rejected(
    running: Running, first: dict[str, object]
) -> None:
    stray = FakeWorker(running.address)
    await stray.send(**first)
    assert await stray.ended() is grpc.StatusCode.INVALID_ARGUMENT
    await stray.close()
    assert running.plane.state.workers == {}


async def test_a_malformed_tool_costs_only_itself(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x", more_tools=[b"{"])
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        assert list(w1.held["a"].toolset.recorded) == recorded("x")
    (problem,) = (await running.admin.ListProblems(admin_pb2.ListProblemsRequest())).problems
    assert problem.reason == "INVALID_TOOL"
    assert "a definition is not JSON" in problem.message


async def test_the_status_shows_the_progress_of_a_start(running: Running) -> None:
    status = await running.admin.GetStatus(admin_pb2.GetStatusRequest())
    assert (status.ready, status.workers, status.epoch) == (False, 0, 7)
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        assert (await running.admin.GetStatus(admin_pb2.GetStatusRequest())).ready


async def test_servers_show_their_state_and_problem(running: Running) -> None:
    running.load(spec("bad"), spec("good"))
    async with worker(running.address) as w1:
        for _ in range(2):
            probe = (await w1.receive("probe")).probe
            failed = probe.key.server_id == "bad"
            problem = admin_pb2.Problem(scope="server", reason="X", message="It exited at once.")
            await w1.send(
                probe_result=sync_pb2.ProbeResult(
                    id=probe.id,
                    key=probe.key,
                    problem=problem if failed else None,
                    tools=[] if failed else recorded("x"),
                )
            )
        await w1.apply_until("good")
        await running.until(lambda state: state.ready)
        reply = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
    bad, good = reply.servers
    assert bad.state == catalog_pb2.SERVER_STATE_FAILED
    assert bad.problem == "The last probe, on worker 'w1', failed. It exited at once."
    assert bad.failures == 1
    assert (good.state, good.tool_count) == (catalog_pb2.SERVER_STATE_READY, 1)
    assert (good.failures, good.HasField("next_try_at")) == (0, False)
    assert list(good.workers) == ["w1"]


async def test_a_reported_problem_is_listed_and_an_empty_one_refused(running: Running) -> None:
    problem = admin_pb2.Problem(scope="client", reason="PROVIDER_REFUSED", message="No $ref.")
    await running.admin.ReportProblem(admin_pb2.ReportProblemRequest(problem=problem))
    listed = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
    assert [(each_problem.reason, each_problem.count) for each_problem in listed.problems] == [
        ("PROVIDER_REFUSED", 1)
    ]
    problem.subject = "echo"
    await running.admin.ReportProblem(admin_pb2.ReportProblemRequest(problem=problem))
    listed = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
    assert [each_problem.subject for each_problem in listed.problems] == ["echo", ""], (
        "two, with different subjects"
    )
    blank = admin_pb2.ReportProblemRequest(problem=admin_pb2.Problem())
    assert (await fault_of(running.admin.ReportProblem(blank))).reason is Reason.INVALID_REQUEST
    for reason in ("no constant", "X" * 65, "TWO\nLINES", "PROVIDER_REFUSE"):
        problem.reason = reason
        odd = admin_pb2.ReportProblemRequest(problem=problem)
        fault = await fault_of(running.admin.ReportProblem(odd))
        assert fault.reason is Reason.INVALID_REQUEST
        assert "one of the runbook" in fault.message
        assert reason not in fault.message.split()
    assert "such as PROVIDER_REFUSED" in fault.message


async def test_a_callers_problem_cannot_have_another_scope(running: Running) -> None:
    for scope in ("server", "worker", "workspace", ""):
        problem = admin_pb2.Problem(
            scope=scope, server_id="a", worker_id="w" + scope, reason="INTERNAL", message="Down."
        )
        await running.admin.ReportProblem(admin_pb2.ReportProblemRequest(problem=problem))
    listed = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
    assert [
        (each_problem.scope, each_problem.worker_id, each_problem.count)
        for each_problem in listed.problems
    ] == [("client", "", 4)]


async def test_reported_problems_are_truncated(running: Running) -> None:
    long = "x" * 100_000
    problem = admin_pb2.Problem(
        scope=long, reason="INTERNAL", message=long, server_id=long, worker_id=long, subject=long
    )
    await running.admin.ReportProblem(admin_pb2.ReportProblemRequest(problem=problem))
    listed = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
    assert listed.ByteSize() < 8192


MANY = 30


async def heard_until(running: Running, watch: object, workers: int) -> int:
    """Return the number of messages until a watcher was notified of all workers."""
    count = 0
    async with asyncio.timeout(BOUND):
        while True:
            message = await watch.read()  # type: ignore[attr-defined]
            assert message is not grpc.aio.EOF
            count += 1
            if len(running.plane.state.visible_state.workers) == workers:
                return count


async def test_watchers_get_few_messages_about_a_change_in_a_fleet(running: Running) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        assert await heard_until(running, watch, 1) == 1
        fleet = [FakeWorker(running.address, f"more{number}") for number in range(MANY)]
        try:
            await asyncio.gather(*(fake.join() for fake in fleet))
            joined = asyncio.gather(*(fake.apply_until("a") for fake in fleet))
            told = await heard_until(running, watch, MANY + 1)
            await joined
        finally:
            watch.cancel()
            await asyncio.gather(*(fake.close() for fake in fleet))
    assert told < MANY / 2
