"""One exchange as the worker of a fake sees it: calls in, results and what comes before out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from leaseway.sdk.testing.context import Line
from leaseway.v1 import execution_pb2, leases_pb2
from leaseway.wire.bounds import BATCH_SIZE, MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.frames import frame, frame_tag
from leaseway.wire.outbox import Assembler, Outbox
from leaseway.wire.status import fault_from_status, status_from_fault
from leaseway.wire.version import PROTOCOL_VERSION, user_agent


class Executor(Protocol):
    """The fake worker, as its streams need it."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def incarnation(self) -> str:
        """Its run."""

    def renew(self, request: leases_pb2.KeepAliveRequest) -> leases_pb2.KeepAliveResponse:
        """Renew leases."""

    async def execute(
        self,
        call: execution_pb2.Call,
        arguments: bytes,
        result: execution_pb2.Result,
        line: Line,
    ) -> bytes:
        """Execute a call; what is beside its payload goes into the result."""


class Stream:
    """Reads calls and writes what becomes of them, until the caller or the fake ends it."""

    def __init__(self, worker: Executor, context: Any) -> None:
        self._worker = worker
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wake = asyncio.Event()
        self._outbox = Outbox(self._wake.set)
        self._assembler = Assembler(MAX_ARGUMENTS, MAX_CALLS_IN_FLIGHT)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._asked = 0

    async def run(self, requests: AsyncIterator[execution_pb2.ExchangeRequest]) -> None:
        """Carry frames both ways."""
        writer = asyncio.create_task(self._write(), name="leaseway fake writer")
        try:
            async for message in requests:
                self._take(message)
        finally:
            tasks = [writer, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self) -> None:
        info = execution_pb2.WorkerInfo(
            id=self._worker.id,
            incarnation=self._worker.incarnation,
            protocol_version=PROTOCOL_VERSION,
            package_version=user_agent(),
        )
        await self._context.write(execution_pb2.ExchangeResponse(worker=info))
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                batch = execution_pb2.ExchangeResponse.FromString(self._outbox.next_batch())
                await self._context.write(batch)

    def _take(self, message: execution_pb2.ExchangeRequest) -> None:
        for chunk in message.chunks:
            self._assembler.add(chunk)
        for call in message.calls:
            arguments = self._assembler.take(call.id, call.arguments)
            task = asyncio.create_task(self._answer(call, arguments), name="leaseway fake call")
            self._tasks[call.id] = task
        for answer in message.answers:
            self._settle(answer)
        for cancel in message.cancels:
            task_of = self._tasks.get(cancel.call_id)
            if task_of is not None:
                task_of.cancel()
        if message.HasField("keep_alive"):
            self._put("keep_alive", self._worker.renew(message.keep_alive))

    async def _answer(self, call: execution_pb2.Call, arguments: bytes) -> None:
        result = execution_pb2.Result(call_id=call.id)
        payload = b""
        try:
            async with asyncio.timeout(call.timeout_ms / 1000 if call.timeout_ms else None):
                payload = await self._worker.execute(call, arguments, result, self._line(call))
        except Fault as fault:
            result.status.CopyFrom(status_from_fault(fault))
        except TimeoutError:
            late = Fault(Reason.DEADLINE_EXCEEDED, "The call's timeout has passed.", "yes")
            result.status.CopyFrom(status_from_fault(late))
        except Exception as error:
            broken = Fault(Reason.INTERNAL, f"The fake failed: {error!r}", "yes")
            result.status.CopyFrom(status_from_fault(broken))
        finally:
            del self._tasks[call.id]
        if len(payload) > BATCH_SIZE:
            tag = frame_tag(execution_pb2.ExchangeResponse, "results")
            self._outbox.put_large(frame(tag, result), call.id, payload)
        else:
            result.payload = payload
            self._put("results", result)

    def _line(self, call: execution_pb2.Call) -> Line:
        def progress(done: float, total: float | None, message: str) -> None:
            told = execution_pb2.Progress(
                call_id=call.id, progress=done, total=total, message=message
            )
            self._here(lambda: self._put("progress", told))

        def log(level: str, logger: str, data: bytes) -> None:
            told = execution_pb2.LogMessage(call_id=call.id, level=level, logger=logger, data=data)
            self._here(lambda: self._put("logs", told))

        def update(uri: str) -> None:
            self._put("updates", execution_pb2.ResourceUpdate(call_id=call.id, uri=uri))

        def ask(method: str, params: bytes) -> asyncio.Future[bytes]:
            self._asked = number = self._asked + 1
            question: asyncio.Future[bytes] = self._loop.create_future()
            question.add_done_callback(lambda _: self._forget(call.id, number, question))
            self._questions[number] = question
            asked = execution_pb2.Ask(call_id=call.id, ask_id=number, method=method, params=params)
            self._put("asks", asked)
            return question

        return Line(
            progress=progress if call.wants_progress else None,
            log=log if call.log_level else None,
            log_level=call.log_level,
            update=update,
            ask=ask,
            answers=frozenset(call.answers),
        )

    def _forget(self, call_id: int, number: int, question: asyncio.Future[bytes]) -> None:
        self._questions.pop(number, None)
        if question.cancelled():  # the tool waits no longer: the handler need not go on
            back = execution_pb2.AskWithdrawal(call_id=call_id, ask_id=number)
            self._put("withdrawals", back)

    def _settle(self, answer: execution_pb2.Answer) -> None:
        question = self._questions.get(answer.ask_id)
        if question is None or question.done():
            return
        if answer.HasField("error"):
            question.set_exception(fault_from_status(answer.error))
        else:
            question.set_result(answer.result)

    def _put(self, field: str, message: Any) -> None:
        self._outbox.put(frame(frame_tag(execution_pb2.ExchangeResponse, field), message))

    def _here(self, callback: Callable[[], None]) -> None:
        """Call something in the loop: at once from there, else as soon as it may."""
        if threading.get_ident() == self._thread:
            callback()
        else:
            self._loop.call_soon_threadsafe(callback)
