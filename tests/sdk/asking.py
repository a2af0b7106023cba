"""What tests of questions share: servers that ask, and handlers that answer or think."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.sdk.fakes import Answer, FakeWorker, text_result

from leaseway.v1 import execution_pb2
from leaseway.wire.status import fault_from_status

ELICIT = "elicitation/create"
SAMPLE = "sampling/createMessage"
ROOTS = "roots/list"
ACCEPTED = {"action": "accept", "content": {"name": "Ada"}}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "four"}}


def asking(method: str = ELICIT, params: dict[str, Any] | bytes | None = None) -> Answer:
    """Return an answer that asks first and then tells what it heard."""

    async def answer(worker: FakeWorker, call: execution_pb2.Call, arguments: bytes) -> bytes:
        return heard(await worker.ask(call, method, params))

    return answer


def heard(answer: execution_pb2.Answer) -> bytes:
    if answer.HasField("error"):
        return text_result(f"refused: {fault_from_status(answer.error).message}")
    return text_result(answer.result.decode())


def returning(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda params: value


class Thinking:
    """A handler that thinks until it is told to answer, or until nobody waits for it any more.

    Attributes:
        entered: Set when it is asked.
        answer: To be set for it to answer.
        ended: Set when it does not think any more.
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
