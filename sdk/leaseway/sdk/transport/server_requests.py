"""What servers ask during a call: the caller's handlers, and the questions that they answer.

A question is answered by the handler of its method. The asynchronous client runs each in a task
of its own that ends with the call; the synchronous one in the thread that waits for the call.
Whatever goes wrong in a handler is the answer to its question, and the call goes on.

Answers to what servers ask, brought into MCP's shape. Pure.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

from leaseway.sdk.validation import check_callback
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE
from leaseway.wire.status import status_from_fault

_ACTIONS: Final = ("accept", "decline", "cancel")
_ROLES: Final = ("user", "assistant")


class UnusableAnswer(Exception):
    """Why a question has no answer: the end of a sentence, without a full stop."""


def encode_answer(method: str, value: object) -> bytes:
    """Return what a handler returned as an MCP result in JSON.

    Args:
        method: What was asked.
        value: A mapping, or a pydantic model.

    Raises:
        UnusableAnswer: It has not the shape that the method wants, or JSON cannot hold it.
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
            f"JSON cannot hold what the handler returned ({type(error).__name__})"
        ) from None
    if len(encoded) > MAX_ASK:
        raise UnusableAnswer(
            f"what the handler returned takes {len(encoded)} bytes as JSON, of at most {MAX_ASK}"
        )
    check = _CHECKS.get(method)
    if check is not None:
        check(json.loads(encoded))
    return encoded


def roots_result(roots: object) -> dict[str, Any]:
    """Return roots as the MCP result of `roots/list`.

    Raises:
        TypeError: They are no sequence of URIs or of mappings that hold one.
        ValueError: One is no `file://` URI.
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
            "A root is a file:// URI, or a mapping with `uri` and perhaps `name`, not "
            f"{type(root).__name__}."
        )
    if not entry["uri"].startswith("file://"):
        raise ValueError(
            f"Root {entry['uri']!r} is no file:// URI; pathlib.Path(...).absolute().as_uri() "
            "makes one of a path."
        )
    return dict(entry)


def _plain(value: object) -> object:
    """Return what a pydantic model stands for; anything else as it is."""
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
"""Given the params of `elicitation/create`; returns an ElicitResult, or something to await."""

OnSampling = Callable[[dict[str, Any]], object]
"""Given the params of `sampling/createMessage`; returns a CreateMessageResult, or awaits one."""

Roots = Sequence[str | Mapping[str, str]]
"""Directories and files that servers may work on: `file://` URIs, or `{"uri": …, "name": …}`."""

_log = logging.getLogger("leaseway.sdk")


class ServerRequest:
    """What a server asks, and the way back.

    Args:
        ask: The question as the worker passed it on.
        send: Takes the answer; does nothing once the call has ended.

    Attributes:
        ask_id: Names it on its stream.
        method: The MCP method.
    """

    def __init__(
        self,
        ask: execution_pb2.Ask,
        send: Callable[[execution_pb2.Answer], None],
    ) -> None:
        self.method = ask.method
        self._call_id = ask.call_id
        self.ask_id = ask.ask_id
        self._params = ask.params
        self._send = send

    def answer_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send an answer that another thread gave, in the loop."""
        send = self._send

        def send_there(answer: execution_pb2.Answer) -> None:
            loop.call_soon_threadsafe(send, answer)

        self._send = send_there

    @property
    def params_json(self) -> bytes:
        """The MCP params as the worker passed them on."""
        return self._params or b"{}"

    def params(self) -> dict[str, Any]:
        """Return the MCP params.

        Raises:
            UnusableAnswer: They are no JSON object.
        """
        try:
            value = json.loads(self._params or b"{}")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise UnusableAnswer("what the server asked is no JSON object")
        return value

    def answer(self, result: bytes) -> None:
        """Send the answer, an MCP result."""
        answer = execution_pb2.Answer(call_id=self._call_id, ask_id=self.ask_id, result=result)
        self._send(answer)

    def refuse(self, why: str) -> None:
        """Say why there is no answer, in a sentence for the server."""
        status = status_from_fault(Fault(Reason.INPUT_REQUIRED, why))
        self._send(execution_pb2.Answer(call_id=self._call_id, ask_id=self.ask_id, error=status))


@dataclass(frozen=True)
class Handlers:
    """Who answers what servers ask during a call.

    Attributes:
        on_elicitation: Asks a person, or None.
        on_sampling: Asks a model, or None.
        roots: What servers may work on, or None.
    """

    on_elicitation: OnElicitation | None = None
    on_sampling: OnSampling | None = None
    roots: Roots | None = None

    def __bool__(self) -> bool:
        return bool(self.methods)

    @property
    def methods(self) -> tuple[str, ...]:
        """The MCP methods that are answered."""
        answered = (
            (ELICIT, self.on_elicitation),
            (SAMPLE, self.on_sampling),
            (ROOTS, self.roots),
        )
        return tuple(method for method, handler in answered if handler is not None)

    def over(self, defaults: Handlers | None) -> Handlers:
        """Return these, and the defaults where there is none."""
        if defaults is None:
            return self
        return Handlers(
            defaults.on_elicitation if self.on_elicitation is None else self.on_elicitation,
            defaults.on_sampling if self.on_sampling is None else self.on_sampling,
            defaults.roots if self.roots is None else self.roots,
        )

    def check(self, *, may_be_async: bool) -> None:
        """Raise a TypeError or ValueError where they cannot be what was meant."""
        check_callback("on_elicitation", self.on_elicitation, may_be_async=may_be_async)
        check_callback("on_sampling", self.on_sampling, may_be_async=may_be_async)
        if self.roots is not None:
            roots_result(self.roots)

    async def answer(self, tool: str, question: ServerRequest) -> None:
        """Answer a question, or say why not; the handler may be async."""
        try:
            value = self._ask(question)
            if inspect.isawaitable(value):
                value = await value
            question.answer(encode_answer(question.method, value))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._fail(tool, question, error)  # of something that the handler waited for
        except Exception as error:
            self._fail(tool, question, error)

    def answer_here(self, tool: str, question: ServerRequest) -> None:
        """Answer a question in this thread, or say why not."""
        try:
            value = self._ask(question)
            if isinstance(value, Coroutine):
                value.close()
                raise UnusableAnswer(
                    "a handler of the synchronous client cannot be async; use AsyncClient"
                )
            question.answer(encode_answer(question.method, value))
        except Exception as error:
            self._fail(tool, question, error)

    def _ask(self, question: ServerRequest) -> object:
        params = question.params()
        if question.method == ELICIT and self.on_elicitation is not None:
            return self.on_elicitation(params)
        if question.method == SAMPLE and self.on_sampling is not None:
            return self.on_sampling(params)
        if question.method == ROOTS and self.roots is not None:
            return roots_result(self.roots)
        raise UnusableAnswer(f"the caller does not answer {question.method}")

    @staticmethod
    def _fail(tool: str, question: ServerRequest, error: BaseException) -> None:
        # The text of another error may hold anything; the log of this program may show it, the
        # server is not told.
        wrong = isinstance(error, UnusableAnswer)
        why = str(error) if wrong else f"the caller's handler failed ({type(error).__name__})"
        _log.warning(
            "What its server asked during the call of '%s' (%s) was not answered: %s. It was told "
            "so.",
            tool,
            question.method,
            why,
            exc_info=None if wrong else error,
        )
        question.refuse(f"There is no answer to {question.method}: {why}.")


class AnswerTasks:
    """The handlers of one call at work, each question in a task of its own.

    Args:
        handlers: Who answers.
        tool: What is called, for messages.
    """

    def __init__(self, handlers: Handlers, tool: str) -> None:
        self._handlers = handlers
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # the reader, which begins them, has none of the caller's
        self._tasks: dict[ServerRequest, asyncio.Task[None]] = {}

    def begin(self, question: ServerRequest) -> None:
        """Answer a question; one too many is refused."""
        if len(self._tasks) >= MAX_ASKS:
            question.refuse(f"{MAX_ASKS} questions of this call wait for answers already.")
            return
        task = self._loop.create_task(
            self._handlers.answer(self._tool, question),
            name=f"answer {question.method}",
            context=self._context.copy(),
        )
        self._tasks[question] = task
        task.add_done_callback(lambda _: self._tasks.pop(question, None))

    def withdraw(self, ask_id: int) -> None:
        """Stop answering a question that its server has withdrawn."""
        for question, task in self._tasks.items():
            if question.ask_id == ask_id:
                task.cancel()

    def cancel(self) -> None:
        """Stop answering: the call has ended."""
        for task in self._tasks.values():
            task.cancel()

    async def ended(self) -> None:
        """Wait until the cancelled handlers have returned."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())
