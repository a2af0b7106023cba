"""What becomes of one unary or streaming call: its events, its questions, its end.

MCP results as typed content, for callers without an exchange (DESIGN §6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct, Value

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.core.artifacts.media import BadMedia, media_from_text
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.core.tools.arguments import has_many_values, oversize_arguments
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_LARGEST_EXACT = 2.0**53  # beyond it a double no longer holds every integer
_QUICKLY_TYPED: Final = 4 * bounds.KIB
_LARGEST_VALUE: Final = 32
"""Bytes that a value of a Struct has around its text, at most."""
_OWN_FIELDS = frozenset({"content", "structuredContent", "isError"})


async def arguments_of(request: execution_pb2.CallToolRequest) -> bytes:
    """Return a request's arguments as JSON; long ones are made in a thread.

    Raises:
        Fault: INVALID_ARGUMENTS: they are longer than any that may be sent.
    """
    size = request.arguments.ByteSize()
    if size > bounds.MAX_ARGUMENTS + _LARGEST_VALUE * bounds.MAX_VALUES:
        raise oversize_arguments()
    if size <= _QUICKLY_TYPED:
        return arguments_from_struct(request.arguments)
    return await asyncio.to_thread(arguments_from_struct, request.arguments)


def arguments_from_struct(arguments: Struct) -> bytes:
    """Return arguments as JSON; whole numbers become integers, as Struct has none."""
    return _encode(_with_integers(json_format.MessageToDict(arguments)))


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) <= _LARGEST_EXACT:
            return int(value)
        case dict():
            return {name: _with_integers(item) for name, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case _:
            return value


async def typed_response(payload: bytes, is_error: bool) -> execution_pb2.CallToolResponse:
    """Return what `typed_result` does; a long one is made in a thread, as each value takes long."""
    if len(payload) <= _QUICKLY_TYPED:
        return typed_result(payload, is_error)
    return await asyncio.to_thread(typed_result, payload, is_error)


def typed_result(payload: bytes, is_error: bool) -> execution_pb2.CallToolResponse:
    """Return an MCP `result` object as a typed response.

    Raises:
        Fault: SERVER_ERROR: the server's result is not a JSON object; RESULT_TOO_LARGE: it has
            too many values.
    """
    if has_many_values(payload):
        raise Fault(
            Reason.RESULT_TOO_LARGE,
            f"The result holds more than {bounds.MAX_VALUES} values and keys, too many for typed "
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
    response = execution_pb2.CallToolResponse(is_error=is_error)
    content = result.get("content")
    for item in content if isinstance(content, list) else ():
        response.content.append(_content(item))
    if "structuredContent" in result:
        response.structured.CopyFrom(json_format.ParseDict(result["structuredContent"], Value()))
    extra = {name: value for name, value in result.items() if name not in _OWN_FIELDS}
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
    """Return an image or a sound: where it is kept, or its bytes; None where it has neither."""
    mime_type = item.get("mimeType")
    said = mime_type if isinstance(mime_type, str) else ""
    ref, length = item.get("artifact"), item.get("byteLength")
    if isinstance(ref, str) and isinstance(length, int) and 0 <= length <= bounds.MAX_ARTIFACT:
        return execution_pb2.Media(mime_type=said, artifact=ref, byte_length=length)
    data = item.get("data")
    if not isinstance(data, str):
        return None
    media = media_from_text("image", said, data)
    try:
        content = b"".join(media.parts())
    except BadMedia:
        return None
    return execution_pb2.Media(
        mime_type=said or media.mime_type, data=content, byte_length=len(content)
    )


def _struct(item: dict[str, Any]) -> Struct:
    struct = Struct()
    struct.update(item)
    return struct


_MOST_EVENTS: Final = 1024
_MOST_EVENT_BYTES: Final = 4 * bounds.MIB


class UnarySink:
    """The sink of one call: its result as a future, its events as a bounded queue.

    A caller without an exchange gets one of two things for each of its requests: the end of the
    call, or what the server asks. `turn` waits for either.

    Attributes:
        active: The call; set by whoever begins it.
        result: Its end.
        keeps_events: Whether progress and log messages are wanted.
        connection: The connection that asked for it, as gRPC names it.
        on_growth: Called when it holds more, while the call waits for another request of its
            caller; None while it does not wait.
    """

    def __init__(self, keep_events: bool, connection: str = "") -> None:
        self.active: ActiveCall | None = None
        self.result: asyncio.Future[tuple[bytes, bool]] = asyncio.get_running_loop().create_future()
        self.keeps_events = keep_events
        self.connection = connection
        self.on_growth: Callable[[], None] | None = None
        self._events: deque[execution_pb2.CallToolStreamingResponse] = deque()
        self._event_bytes = 0
        self._other_bytes = 0
        self._changed = asyncio.Event()
        self._questions: dict[int, execution_pb2.InputRequest] = {}
        self._asked = False

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        """Receive the result."""
        self.active = active
        self.result.set_result((payload, is_error))
        self._other_bytes += len(payload)
        self._grew()

    def fail(self, active: ActiveCall, fault: Fault) -> None:
        self.result.set_exception(fault)
        self.result.exception()  # whoever has gone away does not ask
        self._changed.set()

    def progress(
        self, active: ActiveCall, progress: float, total: float | None, message: str
    ) -> None:
        """Keep a progress report; of too many the oldest go."""
        self._add(
            execution_pb2.CallToolStreamingResponse(
                progress=execution_pb2.Progress(
                    call_id=active.call.id, progress=progress, total=total, message=message
                )
            )
        )

    def log(self, active: ActiveCall, level: str, logger: str, data: bytes) -> None:
        """Keep a log message; of too many the oldest go."""
        self._add(
            execution_pb2.CallToolStreamingResponse(
                log=execution_pb2.LogMessage(
                    call_id=active.call.id, level=level, logger=logger, data=data
                )
            )
        )

    def ask(self, active: ActiveCall, ask_id: int, ask: Ask) -> None:
        """Keep a question; those that come in one turn of the loop go out together."""
        try:
            params = Struct()
            params.update(_decode(ask.params))
        except (ValueError, RecursionError):
            active.refuse(ask_id, "The params can't be passed to a caller without an exchange.")
            return
        self._questions[ask_id] = execution_pb2.InputRequest(
            id=str(ask_id), method=ask.method, params=params
        )
        self._other_bytes += self._questions[ask_id].ByteSize()
        asyncio.get_running_loop().call_soon(self._say_asked)

    def withdraw_ask(self, active: ActiveCall, ask_id: int) -> None:
        """Keep only that it was asked: its caller may have been told and answer it."""
        question = self._questions.get(ask_id)
        if question is not None:
            self._other_bytes -= question.ByteSize()
            self._questions[ask_id] = execution_pb2.InputRequest(id=question.id)
            self._other_bytes += self._questions[ask_id].ByteSize()

    def _say_asked(self) -> None:
        self._asked = True
        self._grew()

    @property
    def questions(self) -> list[execution_pb2.InputRequest]:
        """What is to be answered before there is a result; empty once there is one."""
        if self.active is None or self.active.asks is None:
            return []
        return [self._questions[ask_id] for ask_id, _ in self.active.asks.items()]

    def answer(self, answers: Mapping[str, Struct]) -> None:
        """Give the server what the caller answers; what it withdrew meanwhile is dropped.

        Raises:
            Fault: INVALID_REQUEST: one names what was never asked.
        """
        unknown = self._never_asked(answers)
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
        self._asked = bool(self.questions)  # what is left is asked again

    def _never_asked(self, ids: Iterable[str]) -> set[str]:
        return set(ids) - {question.id for question in self._questions.values()}

    def leave(self, reason: str) -> None:
        """Cancel the call, if it has not ended and does not wait for another request."""
        if self.active is not None and self.on_growth is None:
            self.active.cancel(reason)

    @property
    def tenant(self) -> str:
        return (self.active.call.tenant if self.active is not None else "") or DEFAULT_TENANT

    @property
    def what(self) -> str:
        """What is called, for messages."""
        return (
            f"{self.active.call.server_id}:{self.active.call.tool}"
            if self.active is not None
            else "?"
        )

    @property
    def held(self) -> int:
        arguments = len(self.active.arguments) if self.active is not None else 0
        return arguments + self._event_bytes + self._other_bytes

    def _grew(self) -> None:
        self._changed.set()
        if self.on_growth is not None:
            self.on_growth()

    @property
    def _turn_is_over(self) -> bool:
        return self.result.done() or (self._asked and bool(self.questions))

    async def turn(self) -> None:
        """Wait until the call has ended or asks something."""
        while not self._turn_is_over:
            self._changed.clear()
            await self._changed.wait()

    async def events(self) -> AsyncIterator[execution_pb2.CallToolStreamingResponse]:
        """Yield the events until the call has ended or asks something."""
        while self._events or not self._turn_is_over:
            if self._events:
                yield self._take()
            else:
                self._changed.clear()
                await self._changed.wait()

    def admit_updates(self, active: ActiveCall) -> None:
        """Refuse: one call has no way to be told of changes."""
        raise Fault(Reason.INVALID_REQUEST, "Resources are followed over an exchange only.")

    def updated(self, active: ActiveCall, uri: str) -> None:
        """Drop it: nothing is followed here."""

    def _add(self, event: execution_pb2.CallToolStreamingResponse) -> None:
        if self.keeps_events:
            self._events.append(event)
            self._event_bytes += event.ByteSize()
            while len(self._events) > _MOST_EVENTS or self._event_bytes > _MOST_EVENT_BYTES:
                self._take()
            self._grew()

    def _take(self) -> execution_pb2.CallToolStreamingResponse:
        event = self._events.popleft()
        self._event_bytes -= event.ByteSize()
        return event
