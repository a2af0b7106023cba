"""What a worker sends during calls besides their results, brought to the calls that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from leaseway.sdk.asks import Question
from leaseway.sdk.events import CallEvents
from leaseway.v1 import execution_pb2
from leaseway.wire.frames import frame, frame_tag
from leaseway.wire.outbox import Outbox

__all__ = ["SideFrames"]

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
                events.take_progress(report)
        for log in message.logs:
            events = self._events(log.call_id)
            if events is not None:
                events.take_log(log)
        for update in message.updates:
            events = self._events(update.call_id)
            if events is not None:
                events.take_update(update)
        for ask in message.asks:
            if ask.call_id in self._pending:
                self._take_ask(ask)
        for withdrawal in message.withdrawals:
            events = self._events(withdrawal.call_id)
            if events is not None:
                events.withdraw_question(withdrawal.ask_id)

    def _events(self, call_id: int) -> CallEvents | None:
        call = self._pending.get(call_id)
        return call.events if call is not None else None

    def _take_ask(self, ask: execution_pb2.Ask) -> None:
        question = Question(ask, self._answer)
        events = self._events(ask.call_id)
        if events is None:
            question.refuse("This caller answers nothing.")
        else:
            events.take_question(question)

    def _answer(self, answer: execution_pb2.Answer) -> None:
        """Send an answer, unless its call has ended."""
        if answer.call_id not in self._pending:
            return
        self._outbox.put(frame(_ANSWERS, answer))
