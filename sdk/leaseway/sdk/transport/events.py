"""What a server says during a call: progress, log messages and questions, kept until taken.

The exchange's reader puts frames in and never waits; whoever made the call takes them out at its
own pace. In between is a bound: of too many, the newest are kept and the others counted.

What a worker sends during calls besides their results, brought to the calls that it is for.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leaseway.sdk.transport.server_requests import AnswerTasks, ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASKS, MIB
from leaseway.wire.messages.frames import frame, frame_tag
from leaseway.wire.messages.outbox import Outbox

_MOST_REPORTS: Final = 64
_MOST_LOGS: Final = 256
_MOST_LOG_BYTES: Final = MIB


@dataclass(frozen=True)
class Progress:
    """How far a call is, as its server reported it.

    Attributes:
        progress: How far; it rises from report to report.
        total: How far it will go, or None where the server does not know.
        message: What it is doing, or None.
    """

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class LogMessage:
    """What a server logged during a call.

    Attributes:
        level: `debug`, `info`, `notice`, `warning`, `error`, `critical`, `alert`, `emergency`.
        logger: The server's logger, or None.
        data: Any JSON value; most servers send a string.
    """

    level: str
    logger: str | None
    data: Any


class CallEvents:
    """What a call asks for beside its result; what comes is not kept.

    Args:
        wants_progress: Whether progress is asked for.
        log_level: The least level of log messages asked for, or empty for none.
        answers: The MCP methods that the caller answers.
        inline_media: Whether images and sounds are wanted in place.

    Attributes:
        deadline: When the call is given up, in the loop's time; set with each try.
        passes_input: Whether `input_required` results are taken as they are.
        input: The answers to one of them, as a JSON object; empty without.
        meta: What the request's `_meta` is to have, as a JSON object; empty without.
        lease_ttl: Seconds that a lease lives which the call acquires; 0 means as usual.
    """

    passes_input = False
    input = b""
    meta = b""
    deadline = 0.0
    lease_ttl = 0.0

    def __init__(
        self,
        *,
        wants_progress: bool = False,
        log_level: str = "",
        answers: tuple[str, ...] = (),
        inline_media: bool = False,
    ) -> None:
        self.wants_progress = wants_progress
        self.log_level = log_level
        self.answers = answers
        self.inline_media = inline_media

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Receive a report."""

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        """Receive a log message."""

    def handle_update(self, frame: execution_pb2.ResourceUpdate) -> None:
        """Receive a change of a resource; calls of tools have none."""

    def handle_request(self, question: ServerRequest) -> None:
        """Answer a question."""
        question.refuse(f"This caller does not answer {question.method}.")

    def handle_withdrawal(self, ask_id: int) -> None:
        """Stop answering a question that its server has withdrawn."""

    def reset(self) -> None:
        """Forget what the failed try of a call asked; another try follows."""


class BufferedEvents(CallEvents):
    """What has come of it, and waits for a consumer.

    Args:
        wants_progress: As for `CallEvents`.
        log_level: As for `CallEvents`.
        answers: As for `CallEvents`.
        tasks: Answers questions as they come; None means that the consumer takes them.
        inline_media: As for `CallEvents`.

    Attributes:
        dropped: Events that had to make room for newer ones.
    """

    def __init__(
        self,
        *,
        wants_progress: bool = False,
        log_level: str = "",
        answers: tuple[str, ...] = (),
        tasks: AnswerTasks | None = None,
        inline_media: bool = False,
    ) -> None:
        super().__init__(
            wants_progress=wants_progress,
            log_level=log_level,
            answers=answers,
            inline_media=inline_media,
        )
        self.dropped = 0
        self._tasks = tasks
        self._reports: deque[tuple[int, execution_pb2.Progress]] = deque()
        self._logs: deque[tuple[int, execution_pb2.LogMessage]] = deque()
        self._questions: deque[ServerRequest] = deque()
        self._log_bytes = 0
        self._number = 0
        self._ended = False
        self._wake = asyncio.Event()

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Keep a report; the oldest one goes where there are too many."""
        if len(self._reports) >= _MOST_REPORTS:
            self._reports.popleft()
            self.dropped += 1
        self._reports.append((self._count(), frame))

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        """Keep a log message; the oldest ones go where there are too many."""
        self._log_bytes += len(frame.data)
        self._logs.append((self._count(), frame))
        while len(self._logs) > _MOST_LOGS or self._log_bytes > _MOST_LOG_BYTES:
            self._log_bytes -= len(self._logs.popleft()[1].data)
            self.dropped += 1

    def handle_request(self, question: ServerRequest) -> None:
        """Answer a question; one that nobody here answers is refused."""
        if question.method not in self.answers:
            question.refuse(f"This caller does not answer {question.method}.")
        elif self._tasks is not None:
            self._tasks.begin(question)
        elif len(self._questions) >= MAX_ASKS:
            question.refuse(f"{MAX_ASKS} questions of this call wait for answers already.")
        else:
            self._questions.append(question)
            self._wake.set()

    def handle_withdrawal(self, ask_id: int) -> None:
        """Stop answering a question that its server has withdrawn."""
        if self._tasks is not None:
            self._tasks.withdraw(ask_id)
        for question in tuple(self._questions):
            if question.ask_id == ask_id:
                self._questions.remove(question)

    def reset(self) -> None:
        """Forget what the failed try of a call asked; another try follows."""
        self._questions.clear()
        if self._tasks is not None:
            self._tasks.cancel()

    def end(self) -> None:
        """Note that the call has ended: what is kept is all there is, and nothing is answered."""
        self.reset()
        self._ended = True
        self._wake.set()

    async def settled(self) -> None:
        """Wait until no handler runs any more; after `end`."""
        if self._tasks is not None:
            await self._tasks.ended()

    async def next(self) -> Progress | LogMessage | ServerRequest | None:
        """Wait for the next event in the order they came; None means that the call has ended.

        Questions come first, for their server waits.
        """
        while not self._reports and not self._logs and not self._questions:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        if self._questions:
            return self._questions.popleft()
        if self._logs and (not self._reports or self._logs[0][0] < self._reports[0][0]):
            log = self._logs.popleft()[1]
            self._log_bytes -= len(log.data)
            return LogMessage(log.level, log.logger or None, _parse(log.data))
        report = self._reports.popleft()[1]
        total = report.total if report.HasField("total") else None
        return Progress(report.progress, total, report.message or None)

    def _count(self) -> int:
        self._wake.set()
        self._number += 1
        return self._number


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")  # better shown as it is than not at all


_ANSWERS: Final = frame_tag(execution_pb2.ExchangeRequest, "answers")


class _Call(Protocol):
    @property
    def events(self) -> CallEvents | None: ...


class SideFrames:
    """Takes the frames of one exchange that end no call; they are for calls in flight only.

    Args:
        pending: The calls in flight, by call id.
        outbox: Sends answers.
    """

    def __init__(self, pending: Mapping[int, _Call], outbox: Outbox) -> None:
        self._pending = pending
        self._outbox = outbox

    def take(self, message: execution_pb2.ExchangeResponse) -> None:
        """Pass on progress, log messages, changes of resources and questions."""
        for report in message.progress:
            events = self._events(report.call_id)
            if events is not None:
                events.handle_progress(report)
        for log in message.logs:
            events = self._events(log.call_id)
            if events is not None:
                events.handle_log(log)
        for update in message.updates:
            events = self._events(update.call_id)
            if events is not None:
                events.handle_update(update)
        for ask in message.asks:
            if ask.call_id in self._pending:
                self._take_ask(ask)
        for withdrawal in message.withdrawals:
            events = self._events(withdrawal.call_id)
            if events is not None:
                events.handle_withdrawal(withdrawal.ask_id)

    def _events(self, call_id: int) -> CallEvents | None:
        call = self._pending.get(call_id)
        return call.events if call is not None else None

    def _take_ask(self, ask: execution_pb2.Ask) -> None:
        question = ServerRequest(ask, self._answer)
        events = self._events(ask.call_id)
        if events is None:
            question.refuse("This caller answers nothing.")
        else:
            events.handle_request(question)

    def _answer(self, answer: execution_pb2.Answer) -> None:
        """Send an answer, unless its call has ended."""
        if answer.call_id not in self._pending:
            return
        self._outbox.put(frame(_ANSWERS, answer))
