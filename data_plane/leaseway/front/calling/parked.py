"""Calls that wait for their client's answers, for clients whose protocol has no questions.

A legacy server asks in the midst of a call. A modern client is asked by an `input_required` result
and answers with another request; in between, its call stays open here, on this front alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from typing import Any, Final

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.calling.relay import Listener
from leaseway.front.messages import RpcError, encode
from leaseway.sdk.transport.server_requests import ServerRequest

_STATE: Final = "leaseway-parked "
_PATIENCE: Final = 300.0
"""Seconds that a call waits for its client's answers."""
_MOST: Final = 256
"""Calls of one caller that wait."""

_read_answers: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def waits(state: str | None) -> bool:
    """Return whether a request brings the answers to what a call waits for."""
    return state is not None and state.startswith(_STATE)


class ParkedCalls:
    """The calls of one caller that wait for its client."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Call] = {}

    async def begin(self, listener: Listener, call: Coroutine[Any, Any, bytes]) -> bytes:
        """Run a call until its result, or until its server asks; return what the client gets.

        Raises:
            RpcError, LeasewayError: It failed.
        """
        return await self._until_asked(_Call(listener, call))

    async def go_on(self, listener: Listener, state: str, responses: bytes) -> bytes:
        """Go on with a call as its client has answered.

        Args:
            listener: The client's side of the new request.
            state: What `begin` had the client send back.
            responses: Its answers, a JSON object by name.

        Raises:
            RpcError, LeasewayError: The call failed, or waits no longer.
        """
        call = self._waiting.pop(state, None)
        if call is None:
            raise RpcError(
                INVALID_PARAMS,
                "This call does not wait here any more: its time passed, it was answered before, "
                "or another front holds it. Call the tool anew.",
            )
        call.attend(listener)
        try:
            answers = _read_answers(responses or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answers = {}
        call.take(answers)
        return await self._until_asked(call)

    async def _until_asked(self, call: _Call) -> bytes:
        try:
            await call.turned()
        except asyncio.CancelledError:
            call.task.cancel()
            await asyncio.wait([call.task])
            raise
        if call.task.done():
            return call.task.result()
        if len(self._waiting) >= _MOST:
            call.refuse(f"{_MOST} calls of this client wait for answers already.")
            return await call.task
        state = f"{_STATE}{secrets.token_hex(16)}"
        self._waiting[state] = call
        call.park(lambda: self._waiting.pop(state, None))
        return encode(
            {
                "resultType": "input_required",
                "inputRequests": call.requests(),
                "requestState": state,
            }
        )


class _Call:
    """One call and what its server asks.

    Args:
        listener: The client's side of the request that began it; what comes later is told there,
            on behalf of the request that goes on with it.
        call: The call.
    """

    def __init__(self, listener: Listener, call: Coroutine[Any, Any, bytes]) -> None:
        self._listener = listener
        listener.ask, listener.withdraw = self._ask, self._withdraw
        self._loop = asyncio.get_running_loop()
        self._questions: dict[str, ServerRequest] = {}
        self._asked: set[str] = set()
        self._count = 0
        self._refusal = ""
        self._turn: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.task = asyncio.create_task(call)
        self.task.add_done_callback(self._ended)

    async def turned(self) -> None:
        """Wait until the call has ended or its server asks something new."""
        if self.task.done() or self._questions.keys() - self._asked:
            return
        self._turn = self._loop.create_future()
        await self._turn

    def requests(self) -> dict[str, Any]:
        """Return what is asked, by name."""
        self._asked = set(self._questions)
        return {
            name: {"method": question.method, "params": msgspec.Raw(question.params_json)}
            for name, question in self._questions.items()
        }

    def park(self, forget: Any) -> None:
        """Wait for the client, for a while; then the call is given up."""
        self._listener.send = lambda _message: None

        def give_up() -> None:
            forget()
            self.task.cancel()

        self._timer = self._loop.call_later(_PATIENCE, give_up)

    def attend(self, listener: Listener) -> None:
        """Tell another request of the client what comes from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._listener.send, self._listener.token = listener.send, listener.token

    def take(self, answers: dict[str, msgspec.Raw]) -> None:
        """Pass the client's answers on; what it was asked and left out is refused."""
        for name in self._asked & self._questions.keys():
            question = self._questions.pop(name)
            if name in answers:
                question.answer(bytes(answers[name]))
            else:
                question.reject("The client did not answer.")
        self._asked.clear()

    def refuse(self, why: str) -> None:
        """Refuse all that is asked, from now on."""
        self._refusal = why
        for question in self._questions.values():
            question.reject(why)
        self._questions.clear()

    def _ask(self, question: ServerRequest) -> None:
        if self._refusal:
            question.reject(self._refusal)
            return
        self._count += 1
        self._questions[f"question-{self._count}"] = question
        self._wake()

    def _withdraw(self, question: ServerRequest) -> None:
        for name, asked in tuple(self._questions.items()):
            if asked is question:
                del self._questions[name]

    def _ended(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled():
            task.exception()  # seen, also where its client never comes back
        self._wake()

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
