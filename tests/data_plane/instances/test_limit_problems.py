"""A limit that a worker does not enforce is a problem of it (design.md#configuration)."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.data_plane.core.problems import sentence
from leaseway.spec.kinds.confinement import Limits
from leaseway.spec.model import InstancePolicy
from leaseway.wire.timing.backoff import Backoff

Bench = Any
WEAK = ("LIMIT_PARTLY_ENFORCED", "limits.memory (64 MiB) applies to each process alone.")
NONE = ("LIMIT_NOT_ENFORCED", "limits.cpu (1.5) is not enforced: no cgroup.")


@pytest.mark.parametrize("shared", [True, False])
async def test_a_limit_that_is_not_enforced_is_a_warning_with_worker_and_server(
    bench: Bench, shared: bool
) -> None:
    bench.servers.warnings = (WEAK, NONE)
    await bench.serve("db", shared=shared, limits=Limits(cpu_cores=1.5))
    if shared:
        await bench.caller().call("db")
    else:
        await bench.acquire()
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert {(problem.reason, problem.severity, problem.message) for problem in report.problems} == {
        (reason, "warning", f"{sentence(text)} (Server db on worker w1.)")
        for reason, text in (WEAK, NONE)
    }


async def test_the_warning_is_cleared_by_the_first_start_with_the_limit(bench: Bench) -> None:
    bench.servers.warnings = (WEAK, NONE)
    quick = InstancePolicy(restart=Backoff(initial=0.001, maximum=0.001))
    await bench.serve("db", instances=quick)
    await bench.plane.expect_report(lambda report: report.problems)
    bench.servers.warnings = (WEAK,)
    bench.servers.opened[0].crash()
    await bench.until(lambda: len(bench.servers.live) == 1 and len(bench.servers.opened) == 2)
    problems = bench.worker.pool.context.reports.problems
    await bench.until(
        lambda: {problem.reason for problem in problems.open} == {WEAK[0], "SERVER_LOST"}
    )


async def test_a_limitation_of_a_server_is_a_warning_until_it_is_replaced(bench: Bench) -> None:
    spec = await bench.serve("db")
    await bench.until_ready()
    live = bench.worker.pool.find(spec.key).shared
    live.on_warning(live.instance, "NO_BACK_CHANNEL", "set protocol: legacy.")
    report = await bench.plane.expect_report(lambda report: report.problems)
    [problem] = report.problems
    assert (problem.reason, problem.severity) == ("NO_BACK_CHANNEL", "warning")
    assert problem.message == "set protocol: legacy. (Server db on worker w1.)"
    await bench.serve("db", protocol="legacy")
    report = await bench.plane.expect_report(lambda report: report.cleared)
    assert report.cleared[0].reason == "NO_BACK_CHANNEL"
