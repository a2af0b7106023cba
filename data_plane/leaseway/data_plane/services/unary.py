"""Calls without an exchange stream: their sink, and MCP results as typed content.

See design.md#calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct, Value

from leaseway.data_plane.background import FairThreads
from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.artifacts.media import InvalidMedia, image_from_text
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.core.tools.arguments import oversize_arguments
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.portable_json import has_many_values
from leaseway.wire.names import DEFAULT_TENANT

_SURELY_SHALLOW = 30
"""Objects and lists of a result that fits, however they are nested: each level of an object takes
three of the 100 levels that a protobuf parser reads."""
_UNTYPABLE: Final = (ValueError, OverflowError, RecursionError, json_format.Error, DecodeError)
"""Why JSON has no place in a message: it is none, nested too deeply, or has too large a number."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_MAX_EXACT = 2.0**53  # beyond it a double no longer holds every integer
_EARLY_SECONDS: Final = 0.05
_EARLY_SHARE: Final = 0.02
"""How much earlier than on the worker, with a part of the timeout, a caller may be cancelled."""
_CONVERT_INLINE: Final = 4 * bounds.KIB
"""Larger arguments and results are converted in a thread, because each value takes long."""
_VALUE_OVERHEAD: Final = 32
"""Maximum bytes of a value in a Struct besides its text."""
_TYPED_MEMBERS = frozenset({"content", "structuredContent", "isError"})
_MAX_EVENTS: Final = 1024
_MAX_EVENT_BYTES: Final = 4 * bounds.MIB


async def encode_arguments(request: execution_pb2.CallToolRequest, threads: FairThreads) -> bytes:
    """Return a request's arguments as JSON; long ones are converted in the tenant's turn.

    Raises:
        Fault: INVALID_ARGUMENTS: they are too large.
    """
    size = request.arguments.ByteSize()
    if size > bounds.MAX_ARGUMENTS + _VALUE_OVERHEAD * bounds.MAX_VALUES:
        raise oversize_arguments()
    if size <= _CONVERT_INLINE:
        return arguments_from_struct(request.arguments)
    tenant = request.tenant or DEFAULT_TENANT
    return await threads.run(tenant, partial(arguments_from_struct, request.arguments))


def arguments_from_struct(arguments: Struct) -> bytes:
    """Return arguments as JSON. Whole numbers become integers, because a Struct has none."""
    return _encode(_with_integers(json_format.MessageToDict(arguments)))


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) <= _MAX_EXACT:
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case _:
            return value


async def typed_response(
    payload: bytes, is_error: bool, tenant: str, threads: FairThreads
) -> execution_pb2.CallToolResponse:
    """Like `typed_result`, in a thread and in the tenant's turn if the result is large."""
    if len(payload) <= _CONVERT_INLINE:
        return typed_result(payload, is_error)
    return await threads.run(tenant, partial(typed_result, payload, is_error))


def typed_result(payload: bytes, is_error: bool) -> execution_pb2.CallToolResponse:
    """Return an MCP `result` object as a typed response.

    Raises:
        Fault: SERVER_ERROR: the server's result is not a JSON object, or does not fit a Struct;
            RESULT_TOO_LARGE: it has too many values.
    """
    if has_many_values(payload):
        raise Fault(
            Reason.RESULT_TOO_LARGE,
            f"The result has more than {bounds.MAX_VALUES} values and keys, too many for typed "
            "content; call the tool over an exchange, or ask it for less.",
            "yes",
        )
    try:
        result = _decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(
            Reason.SERVER_ERROR,
            "The server's result is not a JSON object; report it to the server's maintainer.",
            "yes",
        ) from error
    try:
        response = _typed(result, is_error)
        if payload.count(b"{") + payload.count(b"[") > _SURELY_SHALLOW:
            _check_parsable(response)
    except _UNTYPABLE as error:
        raise Fault(
            Reason.SERVER_ERROR,
            "The server's result is nested too deeply for typed content, or has a number beyond "
            "the range of a double; call the tool over an exchange.",
            "yes",
        ) from error
    return response


def _check_parsable(response: execution_pb2.CallToolResponse) -> None:
    """Raise a DecodeError if no caller could parse a response, in the message that it gets."""
    carried = execution_pb2.CallToolStreamingResponse(result=response)
    execution_pb2.CallToolStreamingResponse.FromString(carried.SerializeToString())


def _typed(result: dict[str, Any], is_error: bool) -> execution_pb2.CallToolResponse:
    response = execution_pb2.CallToolResponse(is_error=is_error)
    content = result.get("content")
    for item in content if isinstance(content, list) else ():
        response.content.append(_content(item))
    if "structuredContent" in result:
        response.structured.CopyFrom(json_format.ParseDict(result["structuredContent"], Value()))
    extra = {name: value for name, value in result.items() if name not in _TYPED_MEMBERS}
    if extra:
        response.extra.update(extra)
    return response


def _content(item: Any) -> execution_pb2.Content:
    if not isinstance(item, dict):
        return execution_pb2.Content(other=_struct({"value": item}))
    kind = item.get("type")
    if kind == "text" and isinstance(item.get("text"), str):
        return execution_pb2.Content(text=item["text"])
    if kind in ("image", "audio"):
        media = _media(item)
        if media is not None:
            if kind == "image":
                return execution_pb2.Content(image=media)
            return execution_pb2.Content(audio=media)
    if kind == "resource_link":
        return execution_pb2.Content(resource_link=_struct(item))
    if kind == "resource":
        return execution_pb2.Content(resource=_struct(item))
    return execution_pb2.Content(other=_struct(item))


def _media(item: dict[str, Any]) -> execution_pb2.Media | None:
    """Return an image or sound with its artifact or its bytes; None if it has neither."""
    declared = item.get("mimeType")
    mime_type = declared if isinstance(declared, str) else ""
    ref, length = item.get("artifact"), item.get("byteLength")
    if isinstance(ref, str) and type(length) is int and 0 <= length <= bounds.MAX_ARTIFACT:
        return execution_pb2.Media(mime_type=mime_type, artifact=ref, byte_length=length)
    data = item.get("data")
    if not isinstance(data, str):
        return None
    media = image_from_text(mime_type, data)
    try:
        content = b"".join(media.parts())
    except InvalidMedia:
        return None
    return execution_pb2.Media(
        mime_type=mime_type or media.mime_type, data=content, byte_length=len(content)
    )


def _struct(item: dict[str, Any]) -> Struct:
    struct = Struct()
    struct.update(item)
    return struct


class UnarySink:
    """The sink of a call without an exchange: its result, a queue of events, its open questions.

    Each request of the caller is answered by the call's result or by questions of the server;
    `wait` waits for either.

    Attributes:
        active: The call, or None before it is started.
        result: The result's payload and `isError`, or the fault.
        keeps_events: Whether the caller requested progress and log messages.
        connection: The caller's connection, as gRPC names it.
    """

    def __init__(self, keep_events: bool, connection: str = "") -> None:
        self.active: ActiveCall | None = None
        self.result: asyncio.Future[tuple[bytes, bool]] = asyncio.get_running_loop().create_future()
        self.keeps_events = keep_events
        self.connection = connection
        self._on_growth: Callable[[], None] | None = None  # only while the call is suspended
        self._events: deque[execution_pb2.CallToolStreamingResponse] = deque()
        self._event_bytes = 0
        self._other_bytes = 0
        self._changed = asyncio.Event()
        self._questions: dict[int, execution_pb2.InputRequest] = {}
        self._has_questions = False

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        self.active = active
        self.result.set_result((payload, is_error))
        self._other_bytes += len(payload)
        self._grew()

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        self.result.set_exception(fault)
        self.result.exception()  # mark it as retrieved: the caller may have disconnected
        self._changed.set()

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str, extra: bytes
    ) -> None:
        """Queue a progress report."""
        report = execution_pb2.Progress(
            call_id=active.call.id, progress=progress, total=total, message=message, extra=extra
        )
        self._add(execution_pb2.CallToolStreamingResponse(progress=report))

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes, extra: bytes) -> None:
        """Queue a log message."""
        message = execution_pb2.LogMessage(
            call_id=active.call.id, level=level, logger=logger, data=data, extra=extra
        )
        self._add(execution_pb2.CallToolStreamingResponse(log=message))

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Add a question; questions of one loop iteration are sent together."""
        try:
            params = _struct(_decode(ask.params))
            question = execution_pb2.InputRequest(id=str(ask_id), method=ask.method, params=params)
            _check_parsable(execution_pb2.CallToolResponse(input_required=[question]))
        except _UNTYPABLE:
            active.refuse(ask_id, "A caller without an exchange cannot receive these params.")
            return
        self._questions[ask_id] = question
        self._other_bytes += self._questions[ask_id].ByteSize()
        asyncio.get_running_loop().call_soon(self._notify_questions)

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Keep only the id of a question: the caller may have got it and answer it."""
        question = self._questions.get(ask_id)
        if question is not None:
            self._other_bytes -= question.ByteSize()
            self._questions[ask_id] = execution_pb2.InputRequest(id=question.id)
            self._other_bytes += self._questions[ask_id].ByteSize()

    def _notify_questions(self) -> None:
        self._has_questions = True
        self._grew()

    @property
    def questions(self) -> list[execution_pb2.InputRequest]:
        """The open questions; empty once the call has ended."""
        if self.active is None or self.active.asks is None:
            return []
        return [self._questions[ask_id] for ask_id, _ in self.active.asks.items()]

    def answer(self, answers: Mapping[str, Struct]) -> None:
        """Send the server the caller's answers; answers to withdrawn questions are dropped.

        Raises:
            Fault: INVALID_REQUEST: the call never asked one of these questions.
        """
        unknown = set(answers) - {question.id for question in self._questions.values()}
        if unknown:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"input_responses has {', '.join(sorted(unknown))[:256]}, which this call never "
                "asked: use the ids of its input_required.",
            )
        for key, result in answers.items():
            ask_id = int(key)
            self._other_bytes -= self._questions.pop(ask_id).ByteSize()
            if self.active is not None:
                encoded = arguments_from_struct(result)
                self.active.answer(execution_pb2.Answer(ask_id=ask_id, result=encoded))
        self._has_questions = bool(self.questions)  # unanswered questions are sent again

    def suspend(self, on_growth: Callable[[], None]) -> None:
        """Keep the call without a request of its caller; report when it holds more bytes."""
        self._on_growth = on_growth

    def resume(self) -> None:
        """End the suspension."""
        self._on_growth = None

    def cancel(self, reason: str) -> None:
        """Cancel the call, unless it has ended or is suspended."""
        if self.active is None or self.active.has_ended:  # the usual case
            return
        if self._on_growth is None:
            # gRPC rounds a deadline up by as much as 1 % on its way to this worker.
            timeout = self.active.call.timeout_ms / 1_000
            self.active.cancel(reason, slack=_EARLY_SECONDS + _EARLY_SHARE * timeout)

    def discard(self, fault: Fault, reason: str) -> None:
        """End a call that was suspended, with the reason for its server."""
        if self.active is not None:
            self.active.abort(fault, reason)

    @property
    def tenant(self) -> str:
        return self.active.call.tenant if self.active is not None else DEFAULT_TENANT

    @property
    def user(self) -> str:
        """For whom the call is, or empty."""
        return self.active.call.user if self.active is not None else ""

    @property
    def tool(self) -> str:
        """The server and tool, for messages."""
        if self.active is None:
            return "?"
        return f"{self.active.call.server_id}:{self.active.call.tool}"

    @property
    def held_bytes(self) -> int:
        arguments = len(self.active.arguments) if self.active is not None else 0
        return arguments + self._event_bytes + self._other_bytes

    def _grew(self) -> None:
        self._changed.set()
        if self._on_growth is not None:
            self._on_growth()

    @property
    def _has_response(self) -> bool:
        return self.result.done() or (self._has_questions and bool(self.questions))

    async def wait(self) -> None:
        """Wait until the call has ended or has questions."""
        while not self._has_response:
            self._changed.clear()
            await self._changed.wait()

    async def events(self) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Yield events until the call has ended or has questions."""
        while self._events or not self._has_response:
            if self._events:
                yield self._pop_event()
            else:
                self._changed.clear()
                await self._changed.wait()

    def add_subscription(self, active: ActiveCall) -> None:
        raise Fault(Reason.INVALID_REQUEST, "Subscribing to resources requires an exchange.")

    def resource_updated(self, active: ActiveCall, uri: str) -> None:
        """Never called: there are no subscriptions without an exchange."""

    def notify(self, session: str, server_id: str, method: str, params: bytes) -> None:
        """Drop a notification that belongs to no call: without an exchange nobody waits for it."""

    def tell_lease_end(self, lease_id: str, ended: Fault) -> None:
        """Tell nobody: without an exchange, the next renewal or call tells it."""

    def _add(self, event: execution_pb2.CallToolStreamingResponse) -> None:
        if self.keeps_events:
            self._events.append(event)
            self._event_bytes += event.ByteSize()
            while len(self._events) > _MAX_EVENTS or self._event_bytes > _MAX_EVENT_BYTES:
                self._pop_event()
            self._grew()

    def _pop_event(self) -> execution_pb2.CallToolStreamingResponse:
        event = self._events.popleft()
        self._event_bytes -= event.ByteSize()
        return event
