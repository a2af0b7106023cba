"""Questions to the control plane whether a person has approved a call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

_TIMEOUT: Final = 5.0
"""Seconds without an answer after a question was sent, and without a stream to send it on."""
_MAX_TIMEOUT: Final = 15.0
"""Seconds for all of that together: an election takes some 4 s, and may need a second leader."""


@dataclass(frozen=True, slots=True)
class _Open:
    """A question without an answer, and until when it waits for one on the loop's clock."""

    question: sync_pb2.ApprovalQuestion
    waiting: asyncio.Timeout
    latest: float
    answer: asyncio.Future[sync_pb2.ApprovalAnswer] = field(default_factory=asyncio.Future)

    def extend(self, now: float) -> None:
        if not self.waiting.expired():
            self.waiting.reschedule(min(now + _TIMEOUT, self.latest))


class ApprovalQuestions:
    """Asks the control plane, and matches its answers with the questions.

    A question that was not answered when its stream ended is asked again on the next one, which may
    lead to a new leader. That one answers as the first would have (`use_id`).

    Args:
        outgoing: Sends the questions.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._open: dict[int, _Open] = {}
        self._last = 0

    async def ask(self, question: sync_pb2.ApprovalQuestion) -> sync_pb2.ApprovalAnswer:
        """Ask the control plane whether a person approves a call.

        Without a stream only a call that is about to run waits for one: others fail at once.

        Raises:
            Fault: CONTROL_PLANE_UNAVAILABLE: it does not answer.
        """
        if not self._outgoing.is_open and not question.use:
            raise self._unanswered()
        self._last = question.id = self._last + 1
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(now + _TIMEOUT) as waiting:
                asked = self._open[question.id] = _Open(question, waiting, now + _MAX_TIMEOUT)
                self._outgoing.send(_message(question))
                return await asked.answer
        except TimeoutError:
            raise self._unanswered() from None
        finally:
            del self._open[question.id]

    def handle_stream(self) -> None:
        """Ask the open questions again, on a new stream."""
        now = asyncio.get_running_loop().time()
        for asked in self._open.values():
            asked.extend(now)
        self._outgoing.send_all(_message(asked.question) for asked in self._open.values())

    def handle_loss(self) -> None:
        """Give the open questions time for a new stream."""
        now = asyncio.get_running_loop().time()
        for asked in self._open.values():
            asked.extend(now)

    def handle_answer(self, answer: sync_pb2.ApprovalAnswer) -> None:
        """Resolve the question of an answer; ignore it if nothing waits for it any more."""
        asked = self._open.get(answer.id)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(answer)

    def _unanswered(self) -> Fault:
        return Fault(
            Reason.CONTROL_PLANE_UNAVAILABLE,
            "This call needs a person's approval, and the control plane at "
            f"{self._outgoing.address}, which stores approvals, does not answer this worker. Try "
            "again later.",
            retry_delay=1.0,
        )


def _message(question: sync_pb2.ApprovalQuestion) -> sync_pb2.SyncRequest:
    return sync_pb2.SyncRequest(approval_question=question)
