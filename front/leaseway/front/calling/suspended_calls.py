"""Calls that are suspended while their client answers `input_required` results.

A legacy server sends requests to the client in the middle of a call. A modern client gets them as
an `input_required` result and answers with another request. Meanwhile the call stays open, on this
front only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import msgspec
from mcp_types.jsonrpc import INVALID_PARAMS

from leaseway.front.calling.listener import Listener
from leaseway.front.handshake import SERVER_META
from leaseway.front.messages import JsonRpcError, encode
from leaseway.sdk.relay import ServerRequest

_STATE: Final = "leaseway-parked "
_TIMEOUT: Final = 300.0
"""Seconds that a suspended call waits for its client."""
_MAX_SUSPENDED: Final = 256
"""Suspended calls of one caller."""

_decode_responses: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_suspended(state: str | None) -> bool:
    """Return whether a `requestState` belongs to a suspended call."""
    return state is not None and state.startswith(_STATE)


class SuspendedCalls:
    """The suspended calls of one caller, by `requestState`."""

    def __init__(self) -> None:
        self._calls: dict[str, _SuspendableCall] = {}

    async def start(self, listener: Listener, call: Coroutine[Any, Any, bytes]) -> bytes:
        """Run a call; return its result, or `input_required` when its server asks the client.

        Raises:
            JsonRpcError, LeasewayError: The call failed.
        """
        return await self._run(_SuspendableCall(listener, call))

    async def resume(self, listener: Listener, state: str, responses: bytes) -> bytes:
        """Continue a suspended call with the client's answers.

        Args:
            listener: The client's side of the new request.
            state: The `requestState` of the `input_required` result.
            responses: The `inputResponses`: a JSON object by name.

        Raises:
            JsonRpcError, LeasewayError: The call failed, or is not suspended here.
        """
        call = self._calls.pop(state, None)
        if call is None:
            raise JsonRpcError(
                INVALID_PARAMS,
                "This call is not suspended here: it timed out, was answered already, or runs on "
                "another front. Call the tool again.",
            )
        call.attach(listener)
        try:
            answers = _decode_responses(responses or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answers = {}
        call.answer(answers)
        return await self._run(call)

    async def _run(self, call: _SuspendableCall) -> bytes:
        try:
            await call.wait_until_done_or_asking()
        except asyncio.CancelledError:
            call.pass_cancel_reason()
            call.task.cancel()
            await asyncio.wait([call.task])
            raise
        if call.task.done():
            return call.task.result()
        if len(self._calls) >= _MAX_SUSPENDED:
            call.reject_all(f"{_MAX_SUSPENDED} calls of this client already wait for answers.")
            return await call.task
        state = f"{_STATE}{secrets.token_hex(16)}"
        self._calls[state] = call
        call.suspend(partial(self._calls.pop, state, None))
        return encode(
            {
                "resultType": "input_required",
                "inputRequests": call.input_requests(),
                "requestState": state,
                "_meta": SERVER_META,
            }
        )


class _SuspendableCall:
    """A call and its open server requests.

    Args:
        listener: The client's side of the first request. Later requests are attached to it.
        call: The call.
    """

    def __init__(self, listener: Listener, call: Coroutine[Any, Any, bytes]) -> None:
        self._listener = listener
        self._attached = listener
        listener.ask_through(self)
        self._loop = asyncio.get_running_loop()
        self._server_requests: dict[str, ServerRequest] = {}
        self._sent: set[str] = set()
        self._count = 0
        self._rejection = ""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.task = asyncio.create_task(call)
        self.task.add_done_callback(self._on_done)

    async def wait_until_done_or_asking(self) -> None:
        """Wait until the call has ended or its server has a new server request."""
        if self.task.done() or self._server_requests.keys() - self._sent:
            return
        self._waiter = self._loop.create_future()
        await self._waiter

    def input_requests(self) -> dict[str, Any]:
        """Return the open server requests as `inputRequests`, and mark them as sent."""
        self._sent = set(self._server_requests)
        return {
            name: {"method": request.method, "params": msgspec.Raw(request.params_json)}
            for name, request in self._server_requests.items()
        }

    def suspend(self, on_timeout: Callable[[], object]) -> None:
        """Drop notifications until the client answers; after the timeout, cancel the call."""
        self._listener.detach()

        def expire() -> None:
            on_timeout()
            self.task.cancel()

        self._timer = self._loop.call_later(_TIMEOUT, expire)

    def attach(self, listener: Listener) -> None:
        """Send further notifications to the client's new request."""
        if self._timer is not None:
            self._timer.cancel()
        self._attached = listener
        self._listener.attach(listener)

    def pass_cancel_reason(self) -> None:
        """Let the server be told why the client cancelled its newest request."""
        self._listener.cancel_reason = self._attached.cancel_reason

    def answer(self, answers: dict[str, msgspec.Raw]) -> None:
        """Pass the client's answers on; reject sent server requests that it did not answer."""
        for name in self._sent & self._server_requests.keys():
            server_request = self._server_requests.pop(name)
            if name in answers:
                server_request.answer(bytes(answers[name]))
            else:
                server_request.reject("The client did not answer.")
        self._sent.clear()

    def reject_all(self, reason: str) -> None:
        """Refuse all open and future server requests."""
        self._rejection = reason
        for server_request in self._server_requests.values():
            server_request.reject(reason)
        self._server_requests.clear()

    def ask(self, server_request: ServerRequest) -> None:
        if self._rejection:
            server_request.reject(self._rejection)
            return
        self._count += 1
        self._server_requests[f"question-{self._count}"] = server_request
        self._wake()

    def withdraw(self, server_request: ServerRequest) -> None:
        for name, asked in tuple(self._server_requests.items()):
            if asked is server_request:
                del self._server_requests[name]

    def _on_done(self, task: asyncio.Task[bytes]) -> None:
        if not task.cancelled():
            task.exception()  # mark as retrieved, in case its client never resumes it
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
