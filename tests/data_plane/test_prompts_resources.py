"""Prompts and resources through a worker: what is listed, what may be asked, what is followed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import BOTH_WAYS
from tests.data_plane.notes import (
    GREET,
    NOTE,
    TEMPLATE,
    about,
    end_of,
    follow,
    offering,
    serve,
    told,
)

from leaseway.data_plane.core.ports import ListedPromptsResources
from leaseway.data_plane.services.replies import Updates
from leaseway.data_plane.sync import probes
from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.v1 import execution_pb2, sync_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Reason
from leaseway.wire.messages.frames import Outbox

Bench = Any
Caller = Any
OFFERS = ListedPromptsResources((GREET,), (NOTE,), (TEMPLATE,))


async def read(caller: Caller, uri: str, **fields: Any) -> Any:
    return await caller.call("notes", uri, **about(uri), **fields)


async def test_a_probe_sends_all_that_a_server_offers(bench: Bench) -> None:
    bench.servers.prompts_resources = OFFERS
    result = await bench.probe(bench.spec("notes"))
    assert list(result.prompts) == [GREET]
    assert list(result.resources) == [NOTE]
    assert list(result.resource_templates) == [TEMPLATE]


async def test_only_a_probe_lists_offers_and_not_each_lease(bench: Bench) -> None:
    await serve(bench, shared=False)
    caller = bench.caller()
    await read(caller, "note://a", session="s1")
    assert [instance.prompts_resources for instance in bench.servers.opened] == [None]


async def test_lists_that_fail_are_a_warning_until_they_succeed(bench: Bench) -> None:
    bench.servers.prompts_resources = ListedPromptsResources(
        (GREET,), gaps=("resources/list failed: no disk.",)
    )
    await bench.probe(bench.spec("notes"))
    report = await bench.plane.expect_report(lambda report: report.problems)
    (problem,) = [
        each_problem
        for each_problem in report.problems
        if each_problem.reason == "OFFERS_NOT_LISTED"
    ]
    assert (problem.server_id, problem.severity) == ("notes", "warning")
    assert "resources/list failed: no disk." in problem.message
    bench.servers.prompts_resources = OFFERS
    bench.servers.live[0].change_tools(bench.servers.tools)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert [each_problem.reason for each_problem in report.cleared] == ["OFFERS_NOT_LISTED"]


async def test_a_lease_that_ends_while_its_lists_are_read_is_no_warning(bench: Bench) -> None:
    await serve(bench, shared=False)
    caller = bench.caller()
    await read(caller, "note://a", session="s1")
    await read(caller, "note://a", session="s2")
    ends, stays = bench.servers.live
    listed = asyncio.Event()

    async def end_and_list(
        timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        ends.state = "failed"
        listed.set()
        return ListedPromptsResources(gaps=("prompts/list failed: the connection was closed.",))

    ends.list_prompts_resources = end_and_list
    ends.change_tools(bench.servers.tools)
    async with asyncio.timeout(BOUND):
        await listed.wait()
    bench.servers.prompts_resources = ListedPromptsResources(
        (GREET,), skipped=("It lists 'k' twice.",)
    )
    stays.change_tools(bench.servers.tools)
    report = await bench.plane.expect_report(lambda report: report.problems)
    reasons = {problem.reason for problem in report.problems}
    assert "DEFINITIONS_LEFT_OUT" in reasons
    assert "OFFERS_NOT_LISTED" not in reasons


async def test_warnings_about_lists_end_with_a_launch_that_another_worker_has_probed(
    bench: Bench,
) -> None:
    bench.servers.prompts_resources = ListedPromptsResources(gaps=("resources/list failed.",))
    await bench.probe(bench.spec("notes"))
    problems = bench.worker.pool.context.reports.problems
    assert [problem.reason for problem in problems.open] == ["OFFERS_NOT_LISTED"]
    await bench.push(bench.upsert(bench.spec("notes", args=("mended",))))
    assert not problems.open


async def test_warnings_of_a_probe_end_if_its_entry_is_removed_before_it_is_served(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = bench.worker.pool
    end = pool.end_unused_launch
    open_before: list[int] = []

    def watched_end(key: VariantKey, launch_hash: str) -> None:
        open_before.append(len(pool.context.reports.problems.open))
        end(key, launch_hash)

    monkeypatch.setattr(pool, "end_unused_launch", watched_end)
    monkeypatch.setattr(probes, "_UNUSED_AFTER", 0.01)
    bench.servers.prompts_resources = ListedPromptsResources(gaps=("resources/list failed.",))
    await bench.probe_unserved(bench.spec("notes"))
    await bench.until(lambda: open_before)
    assert open_before == [1]
    assert not pool.context.reports.problems.open


async def test_a_lease_of_a_removed_server_brings_no_warning(bench: Bench) -> None:
    await serve(bench, shared=False)
    await read(bench.caller(), "note://a", session="s1")
    (live,) = bench.servers.live
    listed = asyncio.Event()

    async def list_in_vain(
        timeout: float, recorded: ListedPromptsResources
    ) -> ListedPromptsResources:
        listed.set()
        return ListedPromptsResources(gaps=("prompts/list failed: no disk.",))

    live.list_prompts_resources = list_in_vain
    (generation,) = bench.worker.pool.current_generations
    generation.drain()
    live.change_tools(bench.servers.tools)
    async with asyncio.timeout(BOUND):
        await listed.wait()
    await bench.until(lambda: not bench.worker.sync._prober._relisting)
    assert not bench.worker.pool.context.reports.problems.open


async def test_what_is_left_out_of_a_list_is_a_warning_until_it_is_mended(bench: Bench) -> None:
    twice = "It lists tools more than once, the first counts: 'k'."
    bench.servers.prompts_resources = ListedPromptsResources((GREET,), skipped=(twice,))
    await bench.probe(bench.spec("notes"))
    report = await bench.plane.expect_report(lambda report: report.problems)
    (problem,) = [
        each_problem
        for each_problem in report.problems
        if each_problem.reason == "DEFINITIONS_LEFT_OUT"
    ]
    assert (problem.server_id, problem.severity) == ("notes", "warning")
    assert twice in problem.message
    bench.servers.prompts_resources = OFFERS
    bench.servers.live[0].change_tools(bench.servers.tools)
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert [each_problem.reason for each_problem in report.cleared] == ["DEFINITIONS_LEFT_OUT"]


async def test_a_shared_instance_that_offers_more_is_listed_again(bench: Bench) -> None:
    spec = await serve(bench)
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].state == "ready")
    bench.servers.prompts_resources = ListedPromptsResources(
        (GREET, b'{"name":"more"}'), (NOTE,), (TEMPLATE,)
    )
    bench.servers.live[0].change_tools(bench.servers.tools)
    result = await bench.plane.expect("probe_result")
    assert (result.id, result.launch_hash) == (0, spec.launch_hash)
    assert list(result.prompts) == [GREET, b'{"name":"more"}']


async def test_a_list_that_fails_stays_as_another_instance_has_listed_it(bench: Bench) -> None:
    await serve(bench)
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].state == "ready")
    assert bench.servers.live[0].prompts_resources is None
    bench.servers.prompts_resources = ListedPromptsResources(
        (), (NOTE, b'{"uri":"note://b"}'), gaps=("prompts/list failed.",)
    )
    bench.servers.live[0].change_tools(bench.servers.tools)
    result = await bench.plane.expect("probe_result")
    assert list(result.prompts) == [GREET]
    assert list(result.resources) == [NOTE, b'{"uri":"note://b"}']
    assert list(result.resource_templates) == [TEMPLATE]


async def test_a_leased_instance_that_offers_more_is_a_warning(bench: Bench) -> None:
    await serve(bench, shared=False)
    await read(bench.caller(), "note://a", session="s1")
    bench.servers.prompts_resources = ListedPromptsResources(
        (GREET, b'{"name":"more"}'), (NOTE,), (TEMPLATE,)
    )
    bench.servers.live[0].change_tools(bench.servers.tools)
    report = await bench.plane.expect_report(
        lambda report: any(problem.reason == "TOOLS_CHANGED" for problem in report.problems)
    )
    assert report.problems[0].severity == "warning"


async def test_a_new_control_plane_gets_what_it_does_not_know(bench: Bench) -> None:
    bench.servers.prompts_resources = OFFERS
    await bench.probe(bench.spec("notes"))  # what is pushed then has no prompts
    bench.plane.end_stream()
    await bench.plane.hello()
    await bench.push()
    result = await bench.plane.expect("probe_result")
    assert list(result.prompts) == [GREET]


async def test_a_worker_hands_back_what_it_holds_with_all_offers(bench: Bench) -> None:
    spec = await serve(bench)
    bench.plane.send(want=sync_pb2.Want(keys=[key_to_proto(spec.key)]))
    held = await bench.plane.expect("held")
    assert list(held.variants[0].toolset.recorded_prompts) == [GREET]
    assert list(held.variants[0].toolset.resource_filter.blacklist) == ["note://secret/*"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
async def test_requests_reach_the_server_with_its_own_names(bench: Bench, shared: bool) -> None:
    await serve(bench, shared=shared)
    caller = bench.caller()
    params = b'{"name": "greet", "arguments": {"who": "Ada"}, "_meta": {"mine": 1}}'
    result = await caller.call(
        "notes", "greet", method="prompts/get", arguments=params, session="s1"
    )
    assert not result.HasField("status")
    assert result.is_new_lease is not shared
    sent = json.loads(json.loads(result.payload)["content"][0]["text"])
    assert sent == {"name": "greet", "arguments": {"who": "Ada"}}


async def test_the_servers_request_carries_the_trace_and_the_callers_meta(bench: Bench) -> None:
    await serve(bench)
    bench.servers.holds = True
    caller = bench.caller()
    params = b'{"uri": "note://a", "_meta": {"mine": 1}}'
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-00"
    call_id = await caller.begin(
        "notes",
        "note://a",
        method="resources/read",
        arguments=params,
        traceparent=trace,
        wants_progress=True,
    )
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].calls)
    (call,) = bench.servers.live[0].calls
    assert (call.request.method, call.request.name) == ("resources/read", "note://a")
    assert call.request.meta["mine"] == 1
    assert call.request.meta["traceparent"] == trace
    assert call.request.callbacks.on_progress is not None
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id, reason="enough")])
    assert (await end_of(caller, call_id)).reason is Reason.CANCELLED
    assert call.cancelled == "enough"


async def test_what_is_filtered_or_unknown_is_not_found(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    kept = await caller.refused("notes", "x", **about("note://secret/x"))
    assert kept.reason is Reason.TOOL_NOT_FOUND
    assert "resource" in kept.message
    around = await caller.refused("notes", "x", **about("note://open/../secret/x"))
    assert around.reason is Reason.TOOL_NOT_FOUND
    prompt = await caller.refused("notes", "x", method="prompts/get", arguments=b'{"name":"no"}')
    assert prompt.reason is Reason.TOOL_NOT_FOUND
    assert "prompt" in prompt.message
    method = await caller.refused("notes", "x", method="roots/list")
    assert method.reason is Reason.INVALID_REQUEST
    own = await caller.refused(
        "mcp_admin", "mcp_release", method="resources/read", arguments=b'{"serverId": "notes"}'
    )
    assert own.reason is Reason.TOOL_NOT_FOUND
    assert not any(instance.calls for instance in bench.servers.opened)


async def test_a_filter_that_is_new_holds_at_once_also_for_who_follows(bench: Bench) -> None:
    spec = await serve(bench)
    caller = bench.caller()
    call_id = await follow(caller)
    await bench.push(offering(bench, spec, "note://a/*"))
    instance = bench.servers.live[0]
    instance.update("note://a/hidden")
    instance.update("note://a")
    await caller.until(lambda: len(told(caller, call_id)) > 1)
    assert told(caller, call_id) == ["", "note://a"]
    assert (await caller.refused("notes", "x", **about("note://a/b"))).reason is (
        Reason.TOOL_NOT_FOUND
    )


@BOTH_WAYS
async def test_changes_come_until_the_caller_cancels(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    call_id = await follow(caller)
    instance = bench.servers.live[0]
    instance.update("note://a")
    await caller.until(lambda: told(caller, call_id) == ["", "note://a"])
    assert not (await read(caller, "note://a")).HasField("status")  # other calls go on beside it
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id)])
    assert (await end_of(caller, call_id)).reason is Reason.CANCELLED
    assert instance.followed == []
    assert bench.worker.executor.in_flight == 0


async def test_following_ends_with_the_callers_stream(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    await follow(caller)
    caller.close()
    await bench.until(lambda: not bench.servers.live[0].followed)
    assert bench.worker.executor.in_flight == 0


async def test_following_ends_with_the_server(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    call_id = await follow(caller)
    bench.servers.live[0].crash("exit status 3")
    fault = await end_of(caller, call_id)
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "yes")


async def test_a_lease_can_be_released_and_revoked_while_something_is_followed(
    bench: Bench,
) -> None:
    await serve(bench, shared=False)
    caller = bench.caller()
    first = await caller.call("notes", "note://a", session="s1", **about("note://a"))
    lease_id = first.lease.id
    call_id = await follow(caller, session="s1", lease_id=lease_id)
    lease = bench.worker.leases.get(lease_id)
    assert lease.calls == 0
    bench.worker.leases.revoke(lease_id, "the operator said so")
    fault = await end_of(caller, call_id)
    assert fault.reason is Reason.LEASE_REVOKED
    assert "the operator said so" in fault.message


async def test_a_replaced_server_ends_what_follows_it(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    call_id = await follow(caller)
    await serve(bench, args=("newer",))
    assert (await end_of(caller, call_id)).reason is Reason.SERVER_LOST
    assert (await follow(caller)) != call_id
    assert len(bench.servers.live) == 1


async def test_a_worker_that_leaves_ends_what_is_followed(bench: Bench) -> None:
    await serve(bench)
    caller = bench.caller()
    call_id = await follow(caller)
    async with asyncio.timeout(BOUND):
        await bench.worker.executor.drain()
    fault = await end_of(caller, call_id)
    assert (fault.reason, fault.started) == (Reason.DRAINING, "no")


async def test_a_worker_that_leaves_begins_to_follow_nothing(bench: Bench) -> None:
    await serve(bench, shared=False)
    bench.servers.gate = asyncio.Event()
    caller = bench.caller()
    about_it = about("note://a", "resources/subscribe")
    call_id = await caller.begin("notes", "note://a", session="s1", **about_it)
    await bench.until(lambda: bench.servers.live)
    leaving = asyncio.create_task(bench.worker.executor.drain())
    await bench.until(lambda: bench.worker.executor.draining)
    bench.servers.gate.set()
    assert (await end_of(caller, call_id)).reason is Reason.DRAINING
    async with asyncio.timeout(BOUND):
        await leaving


async def test_what_a_caller_says_it_asks_about_is_what_it_asks_about(bench: Bench) -> None:
    await serve(bench)
    bench.servers.holds = True
    caller = bench.caller()
    params = b'{"name":"greet"}'
    call_id = await caller.begin("notes", "no/such", method="prompts/get", arguments=params)
    image = b'{"type":"image","mimeType":"image/png","data":"AAAA"}'
    await bench.until(lambda: bench.servers.live and bench.servers.live[0].calls)
    bench.servers.live[0].calls[0].answer(b'{"messages":[{"role":"user","content":%b}]}' % image)
    await caller.result(call_id)
    kept = json.loads(caller.payloads[call_id])["messages"][0]["content"]["artifact"]
    assert kept.startswith("artifacts/mcp/notes/greet/")


async def test_an_instance_that_is_followed_does_not_rest(bench: Bench) -> None:
    await serve(bench, instances=InstancePolicy(idle_timeout=0.05))
    caller = bench.caller()
    call_id = await follow(caller)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await caller.result(call_id)
    instance = bench.servers.live[0]
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id)])
    await bench.until(lambda: instance.state == "closed")


async def test_a_stream_follows_a_bounded_number_of_resources(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_SUBSCRIPTIONS", 3)
    await serve(bench)
    caller = bench.caller()
    followed = [await follow(caller, f"note://{n}") for n in range(3)]
    fault = await end_of(caller, await follow(caller, "note://3"))
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "no")
    await caller.send(cancels=[execution_pb2.Cancel(call_id=followed[0])])
    await end_of(caller, followed[0])
    assert told(caller, await follow(caller, "note://3")) == [""]


def test_the_same_change_waits_once_and_too_many_parts_count_as_the_whole() -> None:
    outbox = Outbox(lambda: None)
    updates = Updates(outbox)
    updates.add(7)
    for _ in range(3):
        updates.put(7, "note://a", "note://a")
    assert sent(outbox) == ["note://a"]
    updates.put(7, "note://a", "note://a")
    assert sent(outbox) == ["note://a"]  # the one before had left
    for part in range(1000):
        updates.put(7, f"note://a/{part}", "note://a")
    uris = sent(outbox)
    assert len(uris) <= 258
    assert uris[-1] == "note://a"
    updates.remove(7)
    updates.put(7, "note://a", "note://a")
    assert sent(outbox) == []


def sent(outbox: Outbox) -> list[str]:
    message = execution_pb2.ExchangeResponse.FromString(outbox.next_batch())
    return [update.uri for update in message.updates]
