"""Requests that servers send during a call: elicitation, sampling and roots, and their answers.

A request is answered by the handler of its method. The asynchronous client runs each handler in a
task that ends with the call, the synchronous client in the thread that waits for the call. If a
handler fails, the server gets the failure as its answer, and the call continues.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

from leaseway.sdk.validation import check_callback, checked_return
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ELICIT_URL, ROOTS, SAMPLE
from leaseway.wire.status import status_from_fault
from leaseway.wire.timing.running_tasks import RunningTasks

_MAX_REFUSAL: Final = 2000
"""Bytes of an error of an MCP client that are repeated as a text."""
_PARAMETERS: Final = {ELICIT: "on_elicitation", SAMPLE: "on_sampling", ROOTS: "roots"}
_ACTIONS: Final = ("accept", "decline", "cancel")
_ROLES: Final = ("user", "assistant")


class UnusableAnswer(Exception):
    """Why a request has no answer: the end of a sentence, without a full stop."""


def encode_answer(method: str, value: object) -> bytes:
    """Encode a handler's return value as an MCP result in JSON.

    Args:
        method: The MCP method of the request.
        value: A mapping, or a pydantic model.

    Raises:
        UnusableAnswer: The value does not fit the method, or JSON cannot represent it.
    """
    plain = _plain(value)
    if not isinstance(plain, Mapping):
        raise UnusableAnswer(
            f"a handler of {method} returns a mapping or a pydantic model, not "
            f"{type(value).__name__}"
        )
    present = {member: part for member, part in plain.items() if part is not None}
    try:
        encoded = json.dumps(present, ensure_ascii=False, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableAnswer(
            f"JSON cannot represent what the handler returned ({type(error).__name__})"
        ) from None
    if len(encoded) > MAX_ASK:
        raise UnusableAnswer(
            f"the handler's return value has {len(encoded)} bytes as JSON, more than {MAX_ASK}"
        )
    check = _CHECKS.get(method)
    if check is not None:
        check(json.loads(encoded))
    return encoded


def roots_result(roots: object) -> dict[str, Any]:
    """Return roots as the MCP result of `roots/list`.

    Raises:
        TypeError: They are not a sequence of URIs, or of mappings with a URI.
        ValueError: A URI is not a `file://` URI.
    """
    if isinstance(roots, str) or not isinstance(roots, Sequence):
        raise TypeError(
            "roots is a list of file:// URIs, or of mappings with `uri` and `name`, not "
            f"{type(roots).__name__}."
        )
    return {"roots": [_root(root) for root in roots]}


def _root(root: object) -> dict[str, Any]:
    entry = {"uri": root} if isinstance(root, str) else root
    if not isinstance(entry, Mapping) or not isinstance(entry.get("uri"), str):
        raise TypeError(
            "A root is a file:// URI, or a mapping with `uri` and optionally `name`, not "
            f"{type(root).__name__}."
        )
    if not entry["uri"].startswith("file://"):
        raise ValueError(
            f"Root {entry['uri']!r} is not a file:// URI; pathlib.Path(...).absolute().as_uri() "
            "converts a path to one."
        )
    return dict(entry)


def _plain(value: object) -> object:
    """Convert a pydantic model to plain values; return other values unchanged."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(by_alias=True, exclude_none=True, mode="json")
    return value


def _check_elicitation(result: dict[str, Any]) -> None:
    if result.get("action") not in _ACTIONS:
        raise UnusableAnswer(
            "on_elicitation returns {'action': …, 'content': …} whose action is "
            f"{', '.join(_ACTIONS)}"
        )
    content = result.get("content", {})
    if not isinstance(content, Mapping):
        raise UnusableAnswer(
            "the content that on_elicitation returns is a mapping of the form's fields, not "
            f"{type(content).__name__}"
        )


def _check_sampling(result: dict[str, Any]) -> None:
    content = result.get("content")
    items = content if isinstance(content, list) else [content]
    if (
        result.get("role") not in _ROLES
        or not isinstance(result.get("model"), str)
        or not all(isinstance(item, Mapping) and "type" in item for item in items)
    ):
        raise UnusableAnswer(
            "on_sampling returns {'role': 'assistant', 'content': {'type': 'text', 'text': …}, "
            "'model': …}"
        )


_CHECKS: Final = {
    ELICIT: _check_elicitation,
    SAMPLE: _check_sampling,
}


OnElicitation = Callable[[dict[str, Any]], object]
"""Receives the params of `elicitation/create`; returns an ElicitResult, or an awaitable of one."""

OnSampling = Callable[[dict[str, Any]], object]
"""Receives the params of `sampling/createMessage`; returns its result, or an awaitable."""

Roots = Sequence[str | Mapping[str, str]]
"""Directories and files that servers may access: `file://` URIs, or `{"uri": …, "name": …}`."""

_log = logging.getLogger("leaseway.sdk")


class ServerRequest:
    """A request of a server during a call; it is answered at most once.

    Args:
        ask: The request as the worker passed it on.
        send: Sends the answer; does nothing if the call has ended.

    Attributes:
        ask_id: Identifies the request on its stream.
        method: The MCP method.
    """

    def __init__(
        self, ask: execution_pb2.Ask, send: Callable[[execution_pb2.Answer], object]
    ) -> None:
        self.method = ask.method
        self._call_id = ask.call_id
        self.ask_id = ask.ask_id
        self._params = ask.params
        self._send = send

    def answer_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send the answer from an event loop, so that another thread may answer."""
        send = self._send
        self._send = lambda answer: loop.call_soon_threadsafe(send, answer)

    @property
    def params_json(self) -> bytes:
        """The MCP params as the worker passed them on."""
        return self._params or b"{}"

    def params(self) -> dict[str, Any]:
        """Return the MCP params.

        Raises:
            UnusableAnswer: They are not a JSON object.
        """
        try:
            value = json.loads(self.params_json)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise UnusableAnswer("the params of the request are not a JSON object")
        return value

    def answer(self, result: bytes) -> None:
        """Send the answer, an MCP result."""
        answer = execution_pb2.Answer(call_id=self._call_id, ask_id=self.ask_id, result=result)
        self._send(answer)

    def reject(self, why: str) -> None:
        """Send the reason why there is no answer, in a sentence for the server."""
        self._reject(why, b"")

    def pass_error(self, error: bytes) -> None:
        """Send the JSON-RPC error with which an MCP client has answered, a JSON object."""
        why = f"The client refused: {error[:_MAX_REFUSAL].decode(errors='replace')}"
        self._reject(why, error if len(error) <= MAX_ASK else b"")

    def _reject(self, why: str, rpc_error: bytes) -> None:
        answer = execution_pb2.Answer(
            call_id=self._call_id,
            ask_id=self.ask_id,
            error=status_from_fault(Fault(Reason.INPUT_REQUIRED, why)),
            rpc_error=rpc_error,
        )
        self._send(answer)


@dataclass(frozen=True)
class Handlers:
    """The caller's handlers of server requests.

    Attributes:
        on_elicitation: Asks a person, or None.
        on_sampling: Asks a model, or None.
        roots: What servers may access, or None.
    """

    on_elicitation: OnElicitation | None = None
    on_sampling: OnSampling | None = None
    roots: Roots | None = None

    def __bool__(self) -> bool:
        return bool(self.methods)

    @property
    def methods(self) -> tuple[str, ...]:
        """The MCP methods that have a handler, and what else it does."""
        found = tuple(
            method for method, handler in self._by_method().items() if handler is not None
        )
        return found if self.on_elicitation is None else (*found, ELICIT_URL)

    def _by_method(self) -> dict[str, OnElicitation | Roots | None]:
        return {ELICIT: self.on_elicitation, SAMPLE: self.on_sampling, ROOTS: self.roots}

    def with_defaults(self, defaults: Handlers | None) -> Handlers:
        """Return these handlers, completed from the defaults."""
        if defaults is None:
            return self
        return Handlers(
            defaults.on_elicitation if self.on_elicitation is None else self.on_elicitation,
            defaults.on_sampling if self.on_sampling is None else self.on_sampling,
            defaults.roots if self.roots is None else self.roots,
        )

    def check(self, *, may_be_async: bool) -> None:
        """Raise a TypeError or ValueError if a handler or the roots are invalid."""
        check_callback("on_elicitation", self.on_elicitation, may_be_async=may_be_async)
        check_callback("on_sampling", self.on_sampling, may_be_async=may_be_async)
        if self.roots is not None:
            roots_result(self.roots)

    async def answer(self, tool: str, request: ServerRequest) -> None:
        """Answer or reject a request; the handler may be async."""
        try:
            value = self._call_handler(request)
            if inspect.isawaitable(value):
                value = await value
            request.answer(encode_answer(request.method, value))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._reject(tool, request, error)  # something that the handler awaited was cancelled
        except Exception as error:  # noqa: BLE001 - a handler raises what it likes
            self._reject(tool, request, error)

    def answer_sync(self, tool: str, request: ServerRequest) -> None:
        """Answer or reject a request in this thread.

        Raises:
            TypeError: The handler turned out to be async, a mistake of the caller's program.
        """
        try:
            value = self._call_handler(request)
        except Exception as error:  # noqa: BLE001 - a handler raises what it likes
            self._reject(tool, request, error)
            return
        checked_return(_PARAMETERS[request.method], value)
        try:
            request.answer(encode_answer(request.method, value))
        except Exception as error:  # noqa: BLE001 - a model of the caller's may raise anything
            self._reject(tool, request, error)

    def _call_handler(self, request: ServerRequest) -> object:
        params = request.params()
        handler = self._by_method().get(request.method)
        if handler is None:
            raise UnusableAnswer(f"the caller does not answer {request.method}")
        return handler(params) if callable(handler) else roots_result(handler)

    @staticmethod
    def _reject(tool: str, request: ServerRequest, error: BaseException) -> None:
        # The text of other errors may hold secrets: it is logged here and not sent to the server.
        unusable = isinstance(error, UnusableAnswer)
        why = str(error) if unusable else f"the caller's handler failed ({type(error).__name__})"
        _log.warning(
            "A request of the server during the call of '%s' (%s) was rejected: %s.",
            tool,
            request.method,
            why,
            exc_info=None if unusable else error,
        )
        request.reject(f"There is no answer to {request.method}: {why}.")


class AnswerTasks:
    """The running handlers of one call, one task per request.

    Args:
        handlers: The caller's handlers.
        tool: The called tool, for messages.
    """

    def __init__(self, handlers: Handlers, tool: str) -> None:
        self._handlers = handlers
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # the reader task, which starts them, has another one
        self._tasks: RunningTasks[ServerRequest] = RunningTasks()

    def start(self, request: ServerRequest) -> None:
        """Answer a request in a task; reject it if too many are running."""
        if len(self._tasks) >= MAX_ASKS:
            request.reject(f"{MAX_ASKS} requests of this call wait for answers already.")
            return
        task = self._loop.create_task(
            self._handlers.answer(self._tool, request),
            name=f"answer {request.method}",
            context=self._context.copy(),
        )
        self._tasks.add(request, task)

    def withdraw(self, ask_id: int) -> None:
        """Cancel the handler of a request that its server withdrew."""
        for request, task in self._tasks.items():
            if request.ask_id == ask_id:
                task.cancel()

    def cancel(self) -> None:
        """Cancel all handlers: the call has ended."""
        for task in self._tasks.values():
            task.cancel()

    async def wait(self) -> None:
        """Wait until the cancelled handlers have returned."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())
