"""Shared by tests of server requests: servers that send them, and handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.calls import ReceivedCall
from tests.sdk.fakes import Answer, FakeWorker, text_result

from leaseway.v1 import execution_pb2
from leaseway.wire.status import fault_from_status

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "four"}}


def asking(method: str = ELICIT, params: dict[str, Any] | bytes | None = None) -> Answer:
    """Return an answer that sends a request and returns its answer."""

    async def answer(worker: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        return heard(await worker.ask(call, method, params))

    return answer


def heard(answer: execution_pb2.Answer) -> bytes:
    if answer.HasField("error"):
        return text_result(f"refused: {fault_from_status(answer.error).message}")
    return text_result(answer.result.decode())


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda params: value


class Thinking:
    """A handler that waits until `answer` is set, or until it is cancelled.

    Attributes:
        entered: Set when the handler starts.
        answer: Set by the test to make the handler answer.
        ended: Set when the handler ends.
    """

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.answer = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, params: dict[str, Any]) -> dict[str, Any]:
        self.entered.set()
        try:
            await self.answer.wait()
        finally:
            self.ended.set()
        return ACCEPTED
