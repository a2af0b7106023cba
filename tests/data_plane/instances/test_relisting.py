"""Listing changed tools again: how often, and what the control plane gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.data_plane.doubles.servers import ECHO

from leaseway.data_plane.sync import probes
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.backoff import Backoff

Bench = Any
OTHER = msgspec.json.encode({"name": "other", "inputSchema": {"type": "object"}})


class Pauses(Backoff):
    """Remembers which pauses were asked for, and makes each a short one."""

    asked: list[int]

    def ceiling(self, attempt: int) -> float:
        """Return next to nothing."""
        self.asked.append(attempt)
        return 0.01


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setattr(Pauses, "asked", asked, raising=False)
    monkeypatch.setattr(probes, "RETRY", Pauses())
    return asked


async def serve_ready(bench: Bench) -> Any:
    await bench.serve("time")
    await bench.until_ready()
    return bench.servers.opened[0]


async def results_so_far(bench: Bench) -> list[sync_pb2.ProbeResult]:
    bench.plane.send(want=sync_pb2.Want())
    await bench.until(lambda: any(m.HasField("held") for m in bench.plane.received._queue))
    messages = [bench.plane.received.get_nowait() for _ in range(bench.plane.received.qsize())]
    return [m.probe_result for m in messages if m.HasField("probe_result")]


async def test_a_server_that_reports_a_change_with_each_listing_is_listed_less_and_less_often(
    bench: Bench, pauses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await serve_ready(bench)
    plain, listings = instance.relist, []

    async def relist_and_announce() -> Mapping[str, bytes]:
        listings.append(len(pauses))
        if len(listings) < 8:
            instance.change_tools({**ECHO, "other": OTHER})
        listed: Mapping[str, bytes] = await plain()
        return listed

    monkeypatch.setattr(instance, "relist", relist_and_announce)
    instance.change_tools({**ECHO, "other": OTHER})
    await bench.until(lambda: len(pauses) == 8 and not bench.worker.sync._prober._relisting)
    assert listings == list(range(8))  # a pause between any two
    assert pauses == [0, 0, 0, 0, 0, 1, 2, 3]  # a few changes in a row are told promptly
    assert len(await results_so_far(bench)) == 1  # the other listings were equal
    instance.change_tools(ECHO)
    await bench.plane.expect("probe_result")
    assert pauses[8:] in ([], [0])  # after quiet, from the start


async def lease_ready(bench: Bench) -> Any:
    await bench.serve("db", shared=False)
    await bench.acquire()
    return bench.servers.opened[0]


async def reported(bench: Bench) -> str:
    report = await bench.plane.expect_report(lambda report: report.problems)
    (problem,) = report.problems
    assert (problem.reason, problem.severity) == ("TOOLS_CHANGED", "warning")
    return str(problem.message)


async def cleared(bench: Bench) -> list[str]:
    report = await bench.plane.expect_report(lambda report: report.cleared)
    return [problem.reason for problem in report.cleared]


async def test_an_unchanged_list_of_a_leased_instance_is_no_problem(
    bench: Bench, pauses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    instance = await lease_ready(bench)
    for _ in range(3):
        instance.change_tools(ECHO)
    await bench.until(lambda: pauses and not bench.worker.sync._prober._relisting)
    assert len(pauses) == 1  # what came before the listing needs no second one
    assert not [record for record in caplog.records if hasattr(record, "reason")]
    instance.change_tools({**ECHO, "other": OTHER})
    await reported(bench)
    assert [record.reason for record in caplog.records if hasattr(record, "reason")] == [
        "TOOLS_CHANGED"
    ]


async def test_a_changed_list_of_a_leased_instance_is_a_warning_until_it_is_the_recorded_one(
    bench: Bench, pauses: list[int]
) -> None:
    instance = await lease_ready(bench)
    instance.change_tools({**ECHO, "other": OTHER})
    message = await reported(bench)
    assert "leaseway servers" in message
    assert "workers restart" in message
    instance.change_tools(ECHO)
    assert await cleared(bench) == ["TOOLS_CHANGED"]


async def test_the_warning_is_cleared_when_the_changed_list_is_recorded(
    bench: Bench, pauses: list[int]
) -> None:
    instance = await lease_ready(bench)
    instance.change_tools({**ECHO, "other": OTHER})
    await reported(bench)
    await bench.push(bench.upsert(instance.spec))
    assert await cleared(bench) == ["TOOLS_CHANGED"]


async def test_a_changed_list_of_a_leased_instance_that_cannot_be_read_is_a_warning(
    bench: Bench, pauses: list[int]
) -> None:
    instance = await lease_ready(bench)
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "It did not answer.")]
    instance.change_tools(ECHO)
    assert "It did not answer. " in await reported(bench)
    instance.change_tools(ECHO)
    assert await cleared(bench) == ["TOOLS_CHANGED"]


async def test_a_change_without_a_stream_is_sent_on_the_next_one(
    bench: Bench, pauses: list[int]
) -> None:
    instance = await serve_ready(bench)
    bench.plane.refusal = Fault(Reason.SYNCING, "not now")
    bench.plane.end_stream()
    await bench.plane.hello()
    instance.change_tools({**ECHO, "other": OTHER})
    await bench.until(lambda: "other" in instance.tools)
    bench.plane.refusal = None
    while not bench.worker.sync._outgoing.is_open:
        await bench.plane.hello()
        await bench.until(lambda: bench.worker.sync._outgoing.is_open or bench.plane.hellos.qsize())
    await bench.push()
    result = await bench.plane.expect("probe_result")
    assert result.id == 0
    assert [tool.definition for tool in result.tools] == [ECHO["echo"], OTHER]


async def test_unchanged_lists_are_not_read_again_for_a_new_stream(
    bench: Bench, pauses: list[int]
) -> None:
    await serve_ready(bench)
    bench.plane.end_stream()
    await bench.plane.hello()
    await bench.push()
    assert await results_so_far(bench) == []
    assert pauses == []
