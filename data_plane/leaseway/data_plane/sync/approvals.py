"""Questions to the control plane whether a person has approved a call."""

from __future__ import annotations

import asyncio
from typing import Final

from leaseway.data_plane.sync.outgoing import Outgoing
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

_TIMEOUT: Final = 5.0


class ApprovalQuestions:
    """Asks the control plane, and matches its answers with the questions.

    Args:
        outgoing: Sends the questions.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._open: dict[int, asyncio.Future[sync_pb2.ApprovalAnswer]] = {}
        self._last = 0

    async def ask(self, question: sync_pb2.ApprovalQuestion) -> sync_pb2.ApprovalAnswer:
        """Ask the control plane whether a person approves a call.

        Raises:
            Fault: CONTROL_PLANE_UNAVAILABLE: it does not answer.
        """
        self._last = question.id = self._last + 1
        answer: asyncio.Future[sync_pb2.ApprovalAnswer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = answer
        try:
            if self._outgoing.is_open:
                self._outgoing.send(sync_pb2.SyncRequest(approval_question=question))
                async with asyncio.timeout(_TIMEOUT):
                    return await answer
        except TimeoutError:
            pass
        finally:
            del self._open[question.id]
        raise Fault(
            Reason.CONTROL_PLANE_UNAVAILABLE,
            "This call needs a person's approval, and the control plane at "
            f"{self._outgoing.address}, which stores approvals, does not answer this worker. Try "
            "again later.",
            retry_delay=1.0,
        )

    def handle_answer(self, answer: sync_pb2.ApprovalAnswer) -> None:
        """Resolve the question of an answer; ignore it if nothing waits for it any more."""
        question = self._open.get(answer.id)
        if question is not None and not question.done():
            question.set_result(answer)
