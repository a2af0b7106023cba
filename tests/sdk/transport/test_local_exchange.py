"""The exchange with a worker of the same process: what waits, what ends, and what is picked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.calls import call_message, read_call
from tests.conftest import BOUND

from leaseway.sdk.calls.begun import BegunCall, CallWay
from leaseway.sdk.transport.events import CallEvents
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.local_exchange import LocalExchange
from leaseway.sdk.transport.workers import ServingWorkers, WorkerPool, WorkerRun
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.errors import Fault, Reason

HEAD = call_message(server_id="time", tool="now").SerializeToString()
OK = execution_pb2.Result()


class Worker:
    """The worker's end of one stream, which the test plays."""

    id = "w1"
    incarnation = "run"
    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.accepts = asyncio.Event()
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls: list[tuple[execution_pb2.Call, bytes]] = []
        self.requests: list[execution_pb2.ExchangeRequest] = []
        self.on_call: Callable[[execution_pb2.Call], None] = lambda call: None
        self.authorization: str | None = None
        self.trusts = True
        self.refusal: Fault | None = None

    def admits(self, authorization: str | None) -> bool:
        return self.trusts

    async def carry(self, caller: Any, authorization: str | None, hello: Any) -> None:
        self.authorization = authorization
        await self.accepts.wait()
        if self.refusal is not None:
            raise self.refusal
        caller.open(self)
        await self.ends

    def start_call(self, call: execution_pb2.Call, arguments: bytes) -> None:
        self.calls.append((call, arguments))
        self.on_call(call)

    def handle_request(self, request: execution_pb2.ExchangeRequest) -> None:
        self.requests.append(request)


class Local:
    """An exchange and the worker's end of it."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.ended: list[object] = []
        hello = catalog_pb2.ClientInfo()
        self.exchange = LocalExchange(self.worker, "Bearer k", hello, self.ended.append)

    def start(
        self, payload: bytes = b"{}", seconds: float = BOUND, events: CallEvents | None = None
    ) -> asyncio.Task[Any]:
        deadline = asyncio.get_running_loop().time() + seconds
        call = self.exchange.call(HEAD, payload, deadline, "tool 'now'", events)
        return asyncio.create_task(call)

    async def accept(self) -> None:
        self.worker.accepts.set()
        await self.until(lambda: self.exchange._stream is not None)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND):
            while not condition():
                await asyncio.sleep(0)


async def fault_of(call: asyncio.Task[Any]) -> Fault:
    with pytest.raises(Fault) as caught:
        await asyncio.wait_for(call, BOUND)
    return caught.value


async def test_calls_and_renewals_wait_until_the_worker_has_accepted_the_caller() -> None:
    local = Local()
    call = local.start(b'{"a":1}')
    renewal = asyncio.create_task(local.exchange.keep_alive(["l1"], ["s1"]))
    await local.until(lambda: local.exchange._queued and local.exchange.pending)
    assert not local.worker.calls
    await local.accept()
    ((sent, arguments),) = local.worker.calls
    call_read = read_call(sent)
    assert (call_read.server_id, call_read.tool, sent.id) == ("time", "now", 1)
    assert arguments == b'{"a":1}'
    assert local.worker.authorization == "Bearer k"
    assert list(local.worker.requests[0].keep_alive.lease_ids) == ["l1"]
    answer = leases_pb2.KeepAliveResponse()
    local.exchange.handle_response(execution_pb2.ExchangeResponse(keep_alive=answer))
    local.exchange.handle_result(1, OK, b'{"b":2}')
    assert (await call)[1] == b'{"b":2}'
    assert await renewal == answer
    await local.exchange.close()


async def test_a_result_may_arrive_while_its_call_is_sent() -> None:
    local = Local()
    await local.accept()
    local.worker.on_call = lambda call: local.exchange.handle_result(call.id, OK, b"{}")
    assert (await asyncio.wait_for(local.start(), BOUND))[1] == b"{}"
    await local.exchange.close()


async def test_a_cancelled_call_is_cancelled_at_the_worker_unless_it_was_never_sent() -> None:
    local = Local()
    unsent = local.start()
    await local.until(lambda: local.exchange.pending)
    unsent.cancel()
    await asyncio.wait([unsent])
    await local.accept()
    assert not local.worker.calls
    sent = local.start()
    await local.until(lambda: local.worker.calls)
    sent.cancel()
    await asyncio.wait([sent])
    ((cancel,),) = [request.cancels for request in local.worker.requests]
    assert cancel.call_id == local.worker.calls[0][0].id
    local.exchange.handle_result(cancel.call_id, OK, b"{}")  # it crossed the cancellation
    await local.exchange.close()


async def test_a_refused_caller_gets_the_reason() -> None:
    local = Local()
    call = local.start()
    await local.until(lambda: local.exchange.pending)
    local.worker.refusal = Fault(Reason.UNAUTHENTICATED, "No.")
    local.worker.accepts.set()
    fault = await fault_of(call)
    assert (fault.reason, fault.started) == (Reason.UNAUTHENTICATED, "no")
    assert not local.worker.calls
    assert local.ended == [local.exchange]


async def test_what_became_of_a_call_is_unknown_if_its_stream_ends_with_a_fault() -> None:
    local = Local()
    await local.accept()
    call = local.start()
    await local.until(lambda: local.worker.calls)
    local.worker.ends.set_exception(Fault(Reason.OVERLOADED, "Too much.", "unknown"))
    assert (await fault_of(call)).reason is Reason.FATE_UNKNOWN
    assert (await fault_of(local.start())).reason is Reason.WORKER_LOST


async def test_a_draining_worker_gets_no_more_calls() -> None:
    local = Local()
    await local.accept()
    running = local.start()
    await local.until(lambda: local.worker.calls)
    goodbye = execution_pb2.ExchangeResponse(going_away=execution_pb2.GoingAway(reason="drain"))
    local.exchange.handle_response(goodbye)
    assert local.exchange.going_away
    assert (await fault_of(local.start())).reason is Reason.DRAINING
    local.exchange.handle_result(1, OK, b"{}")
    assert (await running)[1] == b"{}"
    local.worker.ends.set_result(None)
    await local.until(lambda: local.exchange.ended)


async def test_a_result_over_its_bound_is_refused() -> None:
    local = Local()
    await local.accept()
    call = local.start()
    await local.until(lambda: local.worker.calls)
    local.exchange.handle_result(1, OK, b"x" * (MAX_RESULT + 1))
    assert (await fault_of(call)).reason is Reason.RESULT_TOO_LARGE
    await local.exchange.close()


async def test_an_error_in_a_handler_ends_the_stream_and_not_the_work_of_the_worker() -> None:
    class Broken(CallEvents):
        def handle_progress(self, frame: execution_pb2.Progress) -> None:
            raise ZeroDivisionError

    local = Local()
    await local.accept()
    call = local.start(events=Broken())
    await local.until(lambda: local.worker.calls)
    report = execution_pb2.Progress(call_id=1, progress=1.0)
    local.exchange.handle_response(execution_pb2.ExchangeResponse(progress=[report]))
    assert (await fault_of(call)).reason is Reason.FATE_UNKNOWN
    assert local.ended == [local.exchange]


async def test_shared_calls_stay_in_the_process_as_long_as_its_worker_takes_them() -> None:
    own, other = WorkerRun("w1", "run", "127.0.0.1:1"), WorkerRun("w2", "run", "127.0.0.1:2")
    workers = ServingWorkers((other, own))
    worker = Worker()
    pool = WorkerPool(ClientIdentity("", "", "", None), worker)
    try:
        assert {pool.pick(workers).worker for _ in range(8)} == {own}
        assert pool.pick(workers, avoid=(own,)).worker == other
        link = pool.link(own)
        assert isinstance(link.exchange, LocalExchange)
        goodbye = execution_pb2.ExchangeResponse(going_away=execution_pb2.GoingAway())
        link.exchange.handle_response(goodbye)
        assert pool.pick(workers).worker == other
        assert not isinstance(pool.link(own._replace(incarnation="next")).exchange, LocalExchange)
    finally:
        await pool.close()


async def test_a_replaced_stream_ends_when_its_last_renewal_is_answered() -> None:
    pool = WorkerPool(ClientIdentity("", "", "", None), Worker())
    try:
        replaced = pool.link(WorkerRun("w1", "run", "127.0.0.1:1")).exchange
        renewal = asyncio.create_task(replaced.keep_alive(["l1"], ["s1"]))
        await asyncio.sleep(0)
        pool.replace_streams()
        pool.end_replaced_streams()
        for _ in range(10):  # as long as the end of a stream takes
            await asyncio.sleep(0)
        assert isinstance(replaced, LocalExchange)
        answer = leases_pb2.KeepAliveResponse()
        replaced.handle_response(execution_pb2.ExchangeResponse(keep_alive=answer))
        assert await renewal == answer
        pool.end_replaced_streams()
        async with asyncio.timeout(BOUND):
            while not replaced.ended:
                await asyncio.sleep(0)
    finally:
        await pool.close()


async def test_a_caller_whose_certificate_may_be_its_credential_connects() -> None:
    worker = Worker()
    worker.trusts = False
    pool = WorkerPool(ClientIdentity("", "", "", None), worker)
    try:
        link = pool.link(WorkerRun("w1", "run", "127.0.0.1:1"))
        assert not isinstance(link.exchange, LocalExchange)
    finally:
        await pool.close()


class Begun(BegunCall):
    """A call without a task, whose outcome nobody expects here."""

    def on_payload(self, payload: bytes) -> None:
        raise AssertionError(payload)

    def on_other(self) -> None:
        raise AssertionError("it goes on")


async def test_a_call_without_a_task_that_cannot_be_sent_gets_no_outcome_later() -> None:
    local = Local()
    await local.accept()

    def refuse(_call: execution_pb2.Call) -> None:
        raise ValueError("not this one")

    local.worker.on_call = refuse
    call = Begun(CallWay("", "now"), b"{}", CallEvents())
    deadline = asyncio.get_running_loop().time() + BOUND
    with pytest.raises(ValueError, match="not this one"):
        local.exchange.begin(HEAD, b"{}", deadline, 1000, call)
    assert not local.exchange.pending
    local.exchange.handle_result(call.call_id, OK, b"{}")
    await local.exchange.close()
