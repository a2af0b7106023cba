"""Answers to workers' questions about approvals while the store is slow or fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import serving
from tests.control_plane.fake_worker import FakeWorker, worker

from leaseway.control_plane.store.memory import MemoryStore
from leaseway.control_plane.store.port import Change, StoreUnavailable
from leaseway.control_plane.sync.approvals import MAX_USE_ID
from leaseway.v1 import admin_pb2, sync_pb2


class SlowStore(MemoryStore):
    """Writes only when it may, and not at all if it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.may_write = asyncio.Event(), asyncio.Event()
        self.down = False

    async def write(self, epoch: int, changes: Sequence[Change]) -> None:
        self.writes.set()
        await self.may_write.wait()
        if self.down:
            raise StoreUnavailable("It is down.")
        await super().write(epoch, changes)


async def ask(who: FakeWorker, number: int, use_id: str = "") -> None:
    question = sync_pb2.ApprovalQuestion(
        id=number, tenant="acme", server_id="bank", tool="pay", digest=str(number), use_id=use_id
    )
    await who.send(approval_question=question)


async def test_a_slow_store_delays_only_the_questions_that_wait_for_it() -> None:
    store = SlowStore()
    async with serving(store=store) as running, worker(running.address) as w1:
        await ask(w1, 1, use_id="call-1")
        async with asyncio.timeout(BOUND):
            await store.writes.wait()
        status = await running.admin.GetStatus(admin_pb2.GetStatusRequest())
        assert (status.workers, status.store) == (1, "memory")
        store.may_write.set()
        answer = (await w1.receive("approval_answer")).approval_answer
        assert (answer.id, answer.state) == (1, "waiting")


async def test_only_a_worker_that_names_its_calls_is_told_that_the_store_fails() -> None:
    store = SlowStore()
    store.down = True
    store.may_write.set()
    async with serving(store=store) as running, worker(running.address) as w1:
        await ask(w1, 1)  # an older one: it would take the answer for another
        await ask(w1, 2, use_id="call-2")
        answer = (await w1.receive("approval_answer")).approval_answer
        assert (answer.id, answer.state) == (2, "unavailable")


async def test_a_call_with_too_long_a_name_ends_the_stream() -> None:
    async with serving() as running, worker(running.address) as w1:
        await ask(w1, 1, use_id="x" * MAX_USE_ID)
        assert (await w1.receive("approval_answer")).approval_answer.state == "waiting"
        await ask(w1, 2, use_id="x" * (MAX_USE_ID + 1))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await w1.receive("approval_answer")
        assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
