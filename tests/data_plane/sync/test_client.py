"""Sync: the Hello, deltas, reports, and streams that end."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import grpc
import msgspec
import pytest

from leaseway.data_plane.sync.convert import read_spec, variant_from_proto
from leaseway.spec.codec import encode_spec, key_to_proto
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2
from leaseway.wire.bounds import MAX_MESSAGE
from leaseway.wire.errors import Fault, Reason

Bench = Any


async def rejoin(bench: Bench) -> sync_pb2.Hello:
    bench.plane.end_stream()
    hello: sync_pb2.Hello = await bench.plane.hello()
    return hello


async def test_the_hello_describes_the_worker(bench: Bench) -> None:
    hello = bench.first_hello
    assert hello.protocol_version == 1
    assert hello.package_version.startswith("leaseway-python/")
    assert hello.worker.id == "w1"
    assert hello.worker.address == bench.address
    assert hello.worker.incarnation
    assert hello.capacity == 4
    assert dict(hello.labels) == {"zone": "a"}
    assert (hello.highest_registry_version, hello.highest_epoch) == (0, 0)


async def test_a_worker_sends_pulses_if_the_control_plane_asks_for_them(bench: Bench) -> None:
    await bench.push()
    assert bench.plane.received.empty()  # this one did not ask
    bench.plane.pulse_interval = 0.1
    await rejoin(bench)
    for _ in range(3):
        await bench.plane.expect("pulse")


async def test_an_ack_has_the_deltas_nonce_and_the_version_reached(bench: Bench) -> None:
    ack = await bench.push(bench.upsert(bench.spec("time")), registry_version=77)
    assert (ack.nonce, ack.registry_version) == (1, 77)


async def test_a_worker_that_joins_again_lists_its_state(bench: Bench) -> None:
    spec = await bench.serve("db", shared=False)
    acquired = await bench.acquire()
    hello = await rejoin(bench)
    assert hello.worker.incarnation == bench.first_hello.worker.incarnation
    assert (hello.highest_registry_version, hello.highest_epoch) == (1, 1)
    (held,) = hello.held
    assert (held.key.server_id, held.launch_hash) == ("db", spec.launch_hash)
    assert held.toolset_hash
    (lease,) = hello.leases
    assert lease.id == acquired.id
    (instance,) = hello.instances
    assert (instance.state, instance.lease_id) == ("ready", lease.id)


async def test_what_a_worker_holds_is_named_by_a_digest_and_listed_on_request(bench: Bench) -> None:
    spec = await bench.serve("db")
    named = await rejoin(bench)
    told = await bench.plane.expect("held_list")
    assert hashlib.sha256(told.held).digest() == named.held_digest
    (held,) = sync_pb2.Hello.FromString(told.held).held
    assert (held.key.server_id, held.launch_hash) == ("db", spec.launch_hash)


async def test_held_variants_are_returned_as_they_were_sent(bench: Bench) -> None:
    upsert = bench.upsert(bench.spec("time"))
    await bench.push(upsert)
    await rejoin(bench)
    keys = [key_to_proto(VariantKey("time")), key_to_proto(VariantKey("never-seen"))]
    bench.plane.send(want=sync_pb2.Want(keys=keys))
    held = await bench.plane.expect("held")
    assert list(held.variants) == [upsert]


async def test_calls_continue_without_a_control_plane(bench: Bench) -> None:
    await bench.serve("time")
    bench.plane.refusal = Fault(Reason.SYNCING, "not now")
    await rejoin(bench)
    caller = bench.caller()
    assert (await caller.call("time")).payload
    await bench.plane.hello()
    assert (await caller.call("time")).payload
    bench.plane.refusal = None
    await bench.plane.hello()


async def test_a_rejected_worker_logs_the_reason_and_tries_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.plane.refusal = Fault(Reason.PERMISSION_DENIED, "It lacks the role plane.")
    with caplog.at_level(logging.ERROR):
        await rejoin(bench)
        await bench.plane.hello()
    assert "It lacks the role plane." in caplog.text
    assert "LEASEWAY_WORKER_KEY" in caplog.text, "what the operator has to set"


async def test_a_taken_worker_id_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    taken = "A second worker calls itself 'w1' while the first is connected."
    bench.plane.refusal = grpc.StatusCode.ALREADY_EXISTS, taken
    with caplog.at_level(logging.WARNING):
        await rejoin(bench)
        for _ in range(3):
            await bench.plane.hello()
    (said,) = [record.getMessage() for record in caplog.records if taken in record.getMessage()]
    assert "rejected worker w1, which tries again: " + taken in said
    assert "cannot be reached" not in caplog.text


async def test_a_worker_rejoins_a_control_plane_that_reads_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that this side ends must not end the loop that opens streams."""
    bench.servers.tools = {
        f"t{number}": msgspec.json.encode({"name": f"t{number}", "description": "d" * 100_000})
        for number in range(30)
    }
    await bench.push(bench.upsert(bench.spec("big")))
    bench.plane.reads.clear()
    bench.plane.send(want=sync_pb2.Want(keys=[key_to_proto(VariantKey("big"))] * 4))
    sync = bench.worker.sync
    await asyncio.gather(*(sync.flush() for _ in range(1100)))
    bench.plane.reads.set()
    await bench.plane.hello()
    assert caplog.text.count("1024 messages wait for it") == 1
    assert await bench.push()


async def test_a_worker_tries_again_if_nothing_welcomes_it(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leaseway.data_plane.sync.client._WELCOME_TIMEOUT", 0.1)
    bench.plane.welcomes.clear()
    await rejoin(bench)
    await bench.until(lambda: "sent no welcome within 0.1 s" in caplog.text)
    monkeypatch.undo()
    bench.plane.welcomes.set()
    await bench.plane.hello()
    assert await bench.push()


async def test_a_control_plane_with_an_older_epoch_is_rejected(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.plane.epoch = 5
    await rejoin(bench)
    await bench.serve("time")
    bench.plane.epoch = 4
    await rejoin(bench)
    hello = await bench.plane.hello()
    assert hello.highest_epoch == 5
    assert "epoch 4, older than 5" in caplog.text


async def test_a_control_plane_with_another_protocol_is_rejected(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.plane.protocol_version = 99
    await rejoin(bench)
    await bench.plane.hello()
    assert "protocol 99" in caplog.text


async def test_the_valid_part_of_a_delta_applies_and_the_rest_is_rejected(
    bench: Bench,
) -> None:
    good = bench.upsert(bench.spec("time"))
    unknown = bench.upsert(server_spec(VariantKey("odd"), "carrier_pigeon"))
    of_package = bench.upsert(server_spec(VariantKey("greeter"), "greeter"))
    of_package.spec = of_package.spec.replace(b'"launch":{', b'"launch":{"language":"de",')
    broken = bench.upsert(bench.spec("broken"))
    broken.toolset.exposed.add(original_name="ghost", name="ghost")
    newer, garbled = bench.upsert(bench.spec("newer")), bench.upsert(bench.spec("garbled"))
    newer.spec = newer.spec.replace(b'"launch":{', b'"launch":{"a_later_setting":true,')
    garbled.spec = b"\xff"
    bench.plane.send(delta=bench.delta(newer, good, unknown, of_package, garbled, broken))
    nack = await bench.plane.expect("nack")
    assert {(refusal.key.server_id, refusal.problem.reason) for refusal in nack.refusals} == {
        ("odd", "TRANSPORT_NOT_AVAILABLE"),
        ("greeter", "TRANSPORT_NOT_AVAILABLE"),
        ("broken", "INVALID_TOOLSET"),
        ("newer", "SPEC_NOT_UNDERSTOOD"),
        ("garbled", "SPEC_NOT_UNDERSTOOD"),
    }
    assert (await bench.plane.expect("ack")).nonce == nack.nonce
    caller = bench.caller()
    assert (await caller.call("time")).payload
    assert (await caller.refused("odd")).reason is Reason.TOOL_NOT_FOUND


async def test_a_rejected_update_keeps_the_previous_version(bench: Bench) -> None:
    await bench.serve("time")
    broken = bench.upsert(bench.spec("time", args=("--new",)))
    broken.toolset.recorded[0].definition = b"{"
    bench.plane.send(delta=bench.delta(broken))
    await bench.plane.expect("nack")
    assert (await bench.caller().call("time")).payload


async def test_long_messages_travel_in_parts_both_ways(bench: Bench) -> None:
    bench.servers.tools = {
        f"t{number}": msgspec.json.encode({"name": f"t{number}", "description": "d" * 100_000})
        for number in range(30)
    }
    upsert = bench.upsert(bench.spec("big"))
    assert upsert.ByteSize() > 2 * MAX_MESSAGE
    bench.plane.send_in_parts(delta=bench.delta(upsert))
    await bench.plane.expect("ack")
    bench.plane.send(want=sync_pb2.Want(keys=[key_to_proto(VariantKey("big"))]))
    held = await bench.plane.expect("held")
    assert list(held.variants) == [upsert]
    assert bench.plane.parts >= 3


async def test_variants_of_a_server_share_what_they_have_in_common(bench: Bench) -> None:
    variants = [bench.upsert(bench.spec("time", tenant=tenant)) for tenant in ("", "a", "b")]
    await bench.push(*variants)
    held = bench.worker.pool.desired_state.variants.values()
    assert len(held) == 3
    assert len({id(variant.toolset.tools["echo"]) for variant in held}) == 1


async def test_a_variant_shares_the_spec_of_its_probe(bench: Bench) -> None:
    spec = bench.spec("time")
    probed = read_spec(spec.key, encode_spec(spec))
    assert probed == spec
    assert variant_from_proto(bench.upsert(spec), None).spec is probed
    changed = bench.spec("time", args=("--new",))
    assert variant_from_proto(bench.upsert(changed), None).spec == changed


async def test_open_problems_are_reported_again_on_a_new_stream(bench: Bench) -> None:
    bench.servers.tools = {"echo": b'{"name":"echo","inputSchema":7}'}
    await bench.serve("time")
    await bench.plane.expect_report(lambda report: report.problems)
    await rejoin(bench)
    report = await bench.plane.expect_report(lambda report: report.problems)
    assert report.problems[0].reason == "SCHEMA_NOT_COMPILED"


async def test_granted_leases_and_changed_instances_are_reported(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    acquired = await bench.acquire()
    report = await bench.plane.expect_report(lambda report: report.leases_gained)
    assert report.leases_gained[0].id == acquired.id
    assert report.instances_changed
    assert [instance.lease_id for instance in report.instances] == [acquired.id]


async def test_an_event_reports_the_instance_that_it_changed_and_no_other(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    known: dict[str, str] = {}

    async def reported(session: str) -> sync_pb2.Report:
        lease = await bench.acquire(session)

        def tells(report: sync_pb2.Report) -> bool:
            changes = report.instance_changes
            known.update({change.key: change.status.lease_id for change in changes})
            return (lease.id, "ready") in [
                (change.status.lease_id, change.status.state) for change in changes
            ]

        report: sync_pb2.Report = await bench.plane.expect_report(tells)
        return report

    for session in ("s1", "s2", "s3"):
        await reported(session)
    before = dict(known)
    report = await reported("s4")
    assert not before.keys() & {instance_change.key for instance_change in report.instance_changes}
    bench.plane.send(ask_instances=sync_pb2.AskInstances())
    whole = await bench.plane.expect_report(lambda report: report.instances_version == 1)
    assert len(whole.instance_changes) == len(known) == 4


async def test_a_server_that_waits_for_its_next_start_is_in_backoff(bench: Bench) -> None:
    bench.servers.faults = [Fault(Reason.SERVER_NOT_READY, "no")] * 500
    await bench.serve("time")
    report = await bench.plane.expect_report(
        lambda report: any(instance.state == "backoff" for instance in report.instances)
    )
    assert report.instances[0].starts >= 1


async def test_a_drain_requests_a_shutdown(bench: Bench) -> None:
    bench.plane.send(drain=sync_pb2.Drain(reason="an operator said so"))
    await bench.until(bench.shutdown.requested.is_set)
    assert "an operator said so" in bench.shutdown.reason
