"""What sending a call means for its instance."""

from __future__ import annotations

from typing import Any, cast

from tests.data_plane.conftest import Bench

from leaseway.data_plane.calls.stages.send import SendStage
from leaseway.data_plane.calls.subscriptions import WorkerSubscriptions
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.tools.prompts_resources import SUBSCRIBE, AdmittedRequest


class Active:
    """What sending uses of a call."""

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)


async def test_a_subscription_that_waited_while_its_server_was_replaced_keeps_no_old_instance(
    bench: Bench,
) -> None:
    await bench.serve("notes")
    first = await bench.until_ready()
    generation = bench.worker.pool.resolve("notes", "")
    live = generation.shared
    assert live is not None
    live.calls += 1  # a call that waits for the sink of the audit
    generation.instances.retire(live)
    ended: list[Any] = []
    active = Active(
        call=IncomingCall(server_id="notes", method=SUBSCRIBE),
        generation=generation,
        live=live,
        lease=None,
        client=None,
        trace=None,
        plan=AdmittedRequest(SUBSCRIBE, "note://a", b"{}"),
        add_subscription=lambda: None,
        resource_updated=lambda _: None,
        handle_outcome=ended.append,
        timer=None,
    )
    subscriptions = WorkerSubscriptions(bench.worker.leases, lambda *_: True)
    SendStage(subscriptions, bench.worker.artifacts, None).enter(cast("Any", active))
    await bench.until(lambda: first.state == "closed" and ended)
    assert (live.calls, live.followers) == (0, 0)
