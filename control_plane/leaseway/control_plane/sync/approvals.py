"""Answers workers' questions whether a person has approved a call."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.convert import question_from_proto
from leaseway.control_plane.sync.toolsets import MalformedMessage
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.durations import duration

_logger = logging.getLogger(__name__)
MAX_USE_ID: Final = 64
_MAX_OPEN: Final = 1_024
"""Questions that wait for the store. Further ones get no answer, so that their calls fail."""


class ApprovalAnswers:
    """Answers each question in a task of its own, as the store may take its time.

    Args:
        plane: Its approvals are asked for, and its streams get the answers.
    """

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._open: set[asyncio.Task[None]] = set()

    def handle(self, worker_id: str, asked: sync_pb2.ApprovalQuestion) -> None:
        """Start to answer a question.

        Raises:
            MalformedMessage: It names its call at too great a length.
        """
        if len(asked.use_id) > MAX_USE_ID:
            raise MalformedMessage(f"A call is named in at most {MAX_USE_ID} characters.")
        if len(self._open) >= _MAX_OPEN:
            return
        task = asyncio.create_task(self._answer(worker_id, asked))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _answer(self, worker_id: str, asked: sync_pb2.ApprovalQuestion) -> None:
        plane = self._plane
        answer = sync_pb2.ApprovalAnswer(id=asked.id)
        question = question_from_proto(asked, worker_id)
        try:
            given = await plane.approvals.ask(question, use=asked.use, use_id=asked.use_id)
        except Fault as fault:
            if fault.reason is not Reason.STORE_UNAVAILABLE or not asked.use_id:
                return  # the worker asks the next leader; an older one gives up by itself
            answer.state = "unavailable"
        except Exception:
            _logger.exception("A question about an approval failed here.")
            return
        else:
            answer.state = given.verdict
            if (approval := given.record) is not None:
                answer.approval_id, answer.decided_by = approval.id, approval.decided_by
                left = approval.ends - plane.clock().mono
                answer.expires_in.CopyFrom(duration(max(0.0, left)))
        stream = plane.streams.get(worker_id)
        if stream is not None:
            stream.send(sync_pb2.SyncResponse(approval_answer=answer))
