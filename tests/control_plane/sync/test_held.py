"""What joining workers name by a digest: asked of one of them, checked, and shared."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.sync.held import HeldHashes
from leaseway.control_plane.sync.toolsets import MalformedMessage
from leaseway.spec.codec import key_to_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2

DESK = VariantKey("desk")
LISTED = sync_pb2.Hello(held=[sync_pb2.HeldHashes(key=key_to_proto(DESK), launch_hash="1" * 32)])
CONTENT = LISTED.SerializeToString(deterministic=True)
NAMED = sync_pb2.Hello(held_digest=hashlib.sha256(CONTENT).digest())


class Worker:
    """Answers when the test lets it; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.times = 0
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def ask(self) -> bytes:
        self.times += 1
        self.asked.set()
        return await asyncio.shield(self._answer)

    def answer(self, content: bytes) -> None:
        self._answer.set_result(content)


async def never() -> bytes:
    raise AssertionError("asked for what is known")


async def test_workers_that_hold_the_same_are_asked_once_and_share_it() -> None:
    held, workers = HeldHashes(), [Worker() for _ in range(3)]
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        tasks = [group.create_task(held.of_worker(NAMED, worker.ask)) for worker in workers]
        await workers[0].asked.wait()
        workers[0].answer(CONTENT)
    first, *others = [task.result() for task in tasks]
    assert list(first) == [DESK]
    assert all(other is first for other in others)
    assert [worker.times for worker in workers] == [1, 0, 0]
    assert await held.of_worker(LISTED, never) is first, "a list of an older worker"
    assert await held.of_worker(NAMED, never) is first


async def test_another_worker_is_asked_if_the_first_one_leaves() -> None:
    held, leaving, staying = HeldHashes(), Worker(), Worker()
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        left = group.create_task(held.of_worker(NAMED, leaving.ask))
        await leaving.asked.wait()
        stayed = group.create_task(held.of_worker(NAMED, staying.ask))
        left.cancel()
        await staying.asked.wait()
        staying.answer(CONTENT)
    assert list(stayed.result()) == [DESK]


async def test_one_other_worker_is_asked_if_the_first_one_is_slow() -> None:
    held, slow, others = HeldHashes(slow_after=0.01), Worker(), [Worker(), Worker()]
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
        waiting = group.create_task(held.of_worker(NAMED, slow.ask))
        await slow.asked.wait()
        tasks = [group.create_task(held.of_worker(NAMED, worker.ask)) for worker in others]
        await others[0].asked.wait()
        others[0].answer(CONTENT)
        slow.answer(CONTENT)
    assert waiting.result() is tasks[0].result() is tasks[1].result()
    assert slow.times == 1


@pytest.mark.parametrize("content", [b"", b"\xff", LISTED.SerializeToString() * 2])
async def test_a_list_that_is_not_the_named_one_is_refused(content: bytes) -> None:
    held, liar, honest = HeldHashes(), Worker(), Worker()
    liar.answer(content)
    with pytest.raises(MalformedMessage, match="something else"):
        await held.of_worker(NAMED, liar.ask)
    honest.answer(CONTENT)
    assert list(await held.of_worker(NAMED, honest.ask)) == [DESK]


async def test_names_that_are_no_digests_and_unreadable_lists_are_refused() -> None:
    held, worker = HeldHashes(), Worker()
    with pytest.raises(MalformedMessage, match="SHA-256"):
        await held.of_worker(sync_pb2.Hello(held_digest=b"desk"), never)
    worker.answer(b"\xff")
    named = sync_pb2.Hello(held_digest=hashlib.sha256(b"\xff").digest())
    with pytest.raises(MalformedMessage, match="unreadable"):
        await held.of_worker(named, worker.ask)
