"""Calls that wait while their client answers `input_required` results.

A legacy server sends requests to the client in the middle of a call. A modern client gets them as
an `input_required` result and answers with another request. Meanwhile the call stays open, on this
front only.

The result of a modern server ends its call, and the client's next try is another one, which the
front passes on. A leased server must be the same then: the session of a call without one is held.

Either way the client hands back a state, which is worthless for any other request or caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from leaseway.front.calling.approvals import is_answer
from leaseway.front.calling.requests import Request, pass_input_responses
from leaseway.front.protocol.handshake import SERVER_META
from leaseway.front.protocol.messages import JsonRpcError, ResumableParams, encode
from leaseway.front.sessions.listener import Listener
from leaseway.front.sessions.sealing import InvalidSessionId
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk import AsyncClient, AsyncSession
from leaseway.sdk.relay import ServerRequest
from leaseway.wire.messages.mcp import INVALID_PARAMS

_STATE: Final = "leaseway-parked "
_SEALED: Final = "leaseway-state "
_OWN: Final = (_STATE, _SEALED, "leaseway-approval ")
_INPUT_REQUIRED: Final = b'"input_required"'
_REQUEST: Final = "mcp-request-"
TIMEOUT: Final = 300.0
"""Seconds that a suspended call waits for its client."""
_MAX_SUSPENDED: Final = 256
"""Suspended calls of one caller."""

_decode_responses: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def is_suspended(state: str | None) -> bool:
    """Return whether a `requestState` belongs to a suspended call."""
    return state is not None and state.startswith(_STATE)


class Binding(NamedTuple):
    """The request that a state belongs to: a client's next try is the same request.

    Attributes:
        scope: The server that the client sees, or empty.
        method: The method.
        name: The tool, the prompt or the URI.
        arguments: The arguments as JSON, or empty.
    """

    scope: str
    method: str
    name: str
    arguments: bytes = b""

    def digest(self) -> bytes:
        """Return a digest that does not depend on how a client writes the same arguments."""
        try:
            arguments = msgspec.json.decode(self.arguments or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            arguments = None  # the request is refused for that
        parts = (self.scope, self.method, self.name, arguments or None)
        return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic")).digest()


NO_BINDING: Final = Binding("", "", "")


class _SealedState(msgspec.Struct, omit_defaults=True):
    state: str | None = None
    session: str = ""
    expires: float = 0.0


_decode_state: Final = msgspec.json.Decoder(_SealedState).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def wrong_state() -> JsonRpcError:
    return JsonRpcError(
        INVALID_PARAMS,
        "This requestState was not given to this caller for this request, or it has expired. Send "
        "it back unchanged with the same name and arguments, or call again without it.",
        {"started": "no"},
    )


def waits_for_request(session: str) -> bool:
    """Return whether a session is that of a single request, and not one that models name."""
    return session.startswith(_REQUEST)


def asks_for_input(payload: bytes) -> bool:
    """Return whether a modern server's result asks the client for input."""
    if _INPUT_REQUIRED not in payload:
        return False
    return _members(payload).get("resultType") == msgspec.Raw(_INPUT_REQUIRED)


def seal_state(
    sessions: SessionTable, payload: bytes, binding: Binding, session: str = ""
) -> bytes:
    """Return an `input_required` result whose state only its caller can send back.

    Args:
        sessions: The sessions of the caller.
        payload: The server's result.
        binding: The request.
        session: The session that waits for the client's next try, or empty.
    """
    members: dict[str, Any] = dict(_members(payload))
    encoded = members.get("requestState")
    state = msgspec.json.decode(encoded) if encoded is not None else None
    if state is None and not session:
        return payload
    if state is not None and not isinstance(state, str):
        return payload  # the client says what is wrong with it
    if state is not None and state.startswith(_OWN) and not session:
        return payload  # the front waits itself
    content = _SealedState(state, session, time.time() + TIMEOUT)
    sealed = sessions.seal_text(msgspec.json.encode(content), binding.digest())
    return encode({**members, "requestState": _SEALED + sealed})


def open_state(sessions: SessionTable, state: str, binding: Binding) -> tuple[str | None, str]:
    """Return the server's own state in a sealed one, and the session that waits.

    Raises:
        JsonRpcError: The state belongs to another request or caller, or has expired.
    """
    try:
        if not state.startswith(_SEALED):
            raise InvalidSessionId
        text = sessions.open_text(state.removeprefix(_SEALED), binding.digest())
    except InvalidSessionId:
        raise wrong_state() from None
    content = _decode_state(text)
    if content.expires < time.time():
        raise wrong_state()
    return content.state, content.session


@dataclass(slots=True)
class OwnSession:
    """The session of a request that no rule gives one.

    Attributes:
        key: Its key.
        session: The session.
        has_to_wait: Whether its client's next try needs it.
    """

    key: str
    session: AsyncSession
    has_to_wait: bool = False


def pass_answers_on(request: Request, params: ResumableParams, binding: Binding) -> None:
    """Pass a modern client's answers on to the server that asked for them.

    Raises:
        JsonRpcError: The state belongs to another request.
    """
    state = params.state
    if not request.modern or (state is None and not bytes(params.responses)):
        return
    if state is not None and not is_suspended(state) and not is_answer(state):
        state, request.waiting = open_state(request.carried.sessions, state, binding)
    pass_input_responses(request, bytes(params.responses), state)


class HeldSessions:
    """The sessions of requests that wait for their client's next try.

    Args:
        client: Opens them.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._held: dict[str, OwnSession] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def opened(self, request: Request) -> AsyncIterator[OwnSession]:
        """Open the session of a request without one: a new one, or the one that waited for it.

        Set `has_to_wait` to keep it for the next try, whose state has to name it
        (`Request.waiting`).
        """
        own = await self._open(request.waiting)
        request.waiting = ""
        try:
            yield own
        finally:
            if own.has_to_wait and request.modern:
                request.waiting = own.key
                self._hold(replace(own))  # each wait has a time of its own
            else:
                await self._close(own)

    async def _open(self, key: str) -> OwnSession:
        # If another front holds it, a session of the same key uses its leases.
        key = key or f"{_REQUEST}{secrets.token_hex(12)}"
        own = self._held.pop(key, None)
        if own is None:
            own = OwnSession(key, self._client.session(key))
            await own.session.__aenter__()
        own.has_to_wait = False
        return own

    def _hold(self, own: OwnSession) -> None:
        if len(self._held) >= _MAX_SUSPENDED:
            self._expire(next(iter(self._held.values())))
        self._held[own.key] = own
        asyncio.get_running_loop().call_later(TIMEOUT, self._expire, own)

    def _expire(self, own: OwnSession) -> None:
        if self._held.get(own.key) is own and own.has_to_wait:
            del self._held[own.key]
            task = asyncio.create_task(self._close(own), name="front ends a held session")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _close(self, own: OwnSession) -> None:
        await own.session.__aexit__(None, None, None)


class SuspendedCalls:
    """The suspended calls of one caller, by `requestState`."""

    def __init__(self) -> None:
        self._calls: dict[str, _SuspendableCall] = {}

    async def run(
        self,
        request: Request,
        params: ResumableParams,
        binding: Binding,
        call: Coroutine[Any, Any, bytes],
    ) -> bytes:
        """Run a request's call, or continue the one that it answers; return the result.

        Modern clients get server requests as `input_required` results.

        Args:
            request: The client's request.
            params: Its params.
            binding: The same request for every try.
            call: The call; it is closed if a suspended one continues.

        Raises:
            JsonRpcError, LeasewayError: The call failed, or is not suspended here.
        """
        if not request.modern:
            return await call
        if not request.listener.answers:
            payload = await call
        elif params.state is None or not is_suspended(params.state):
            payload = await self.start(request.listener, call, binding)
        else:
            call.close()  # the suspended call continues instead
            answers = bytes(params.responses)
            payload = await self.resume(request.listener, params.state, answers, binding)
        if not asks_for_input(payload):
            return payload
        return seal_state(request.carried.sessions, payload, binding, request.waiting)

    async def start(
        self,
        listener: Listener,
        call: Coroutine[Any, Any, bytes],
        binding: Binding = NO_BINDING,
    ) -> bytes:
        """Run a call; return its result, or `input_required` when its server asks the client.

        Args:
            listener: The client's side of the request.
            call: The call.
            binding: The request.

        Raises:
            JsonRpcError, LeasewayError: The call failed.
        """
        return await self._run(_SuspendableCall(listener, call, binding))

    async def resume(
        self, listener: Listener, state: str, responses: bytes, binding: Binding = NO_BINDING
    ) -> bytes:
        """Continue a suspended call with the client's answers.

        Args:
            listener: The client's side of the new request.
            state: The `requestState` of the `input_required` result.
            responses: The `inputResponses`: a JSON object by name.
            binding: The new request.

        Raises:
            JsonRpcError, LeasewayError: The call failed, or is not suspended here.
        """
        call = self._calls.get(state)
        if call is not None and call.binding.digest() != binding.digest():
            raise wrong_state()  # the call goes on waiting for its own client
        if self._calls.pop(state, None) is None or call is None:
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
        binding: The request.
    """

    def __init__(
        self, listener: Listener, call: Coroutine[Any, Any, bytes], binding: Binding
    ) -> None:
        self.binding = binding
        self._listener = listener
        self._attached = listener
        self._loop = asyncio.get_running_loop()
        self._server_requests: dict[str, ServerRequest] = {}
        self._sent: set[str] = set()
        self._count = 0
        self._rejection = ""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        listener.ask_through(self)
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

        self._timer = self._loop.call_later(TIMEOUT, expire)

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
