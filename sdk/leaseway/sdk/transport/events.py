"""Events of a call: progress, log messages and requests that its server sends before the result.

The exchange's reader adds events and never waits; the caller reads them at its own pace from a
bounded buffer, which keeps the newest events and counts the dropped ones.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from leaseway.sdk.transport.server_requests import AnswerTasks, ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASKS, MIB

_MAX_PROGRESS: Final = 64
_MAX_LOGS: Final = 256
_MAX_LOG_BYTES: Final = MIB


@dataclass(frozen=True)
class Progress:
    """Progress of a call, as its server reported it.

    Attributes:
        progress: The progress so far; it increases with every report.
        total: The progress at the end, or None if the server does not know.
        message: A description of the current step, or None.
    """

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class LogMessage:
    """A message that a server logged during a call.

    Attributes:
        level: `debug`, `info`, `notice`, `warning`, `error`, `critical`, `alert`, `emergency`.
        logger: The server's logger, or None.
        data: Any JSON value; most servers send a string.
    """

    level: str
    logger: str | None
    data: Any


@dataclass(kw_only=True, eq=False)
class CallEvents:
    """Which events a call requests, and their handlers; this base class ignores every event.

    Args:
        wants_progress: Whether progress is requested.
        log_level: The lowest requested level of log messages, or empty for none.
        answers: The MCP methods that the caller answers.
        inline_media: Whether images and sounds are sent in the result instead of as artifacts.

    Attributes:
        deadline: The call's deadline, in the loop's time; set at each try.
        passes_input: Whether `input_required` results are returned unchanged.
        input: Answers to such a result, as a JSON object, or empty.
        meta: Members for the request's `_meta`, as a JSON object, or empty.
        mcp_client: The MCP client that the caller speaks for, as in `Call`, or empty.
        lease_ttl: Seconds that a lease acquired by the call lives; 0 means the default.
        cancel_reason: What the server is told if the call's task is cancelled.
        subject_token: The token of whoever the call is for; empty means the session's.
    """

    wants_progress: bool = False
    log_level: str = ""
    answers: tuple[str, ...] = ()
    inline_media: bool = False

    # Set on an instance only if they differ, so that they are not parameters.
    passes_input = False
    input = b""
    meta = b""
    mcp_client = b""
    deadline = 0.0
    lease_ttl = 0.0
    cancel_reason = "The caller was cancelled."
    subject_token = ""

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Handle a progress report."""

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        """Handle a log message."""

    def handle_update(self, frame: execution_pb2.ResourceUpdate) -> None:
        """Handle the change of a resource; only subscriptions have these."""

    def handle_request(self, request: ServerRequest) -> None:
        """Answer or reject a server's request."""
        request.reject(f"This caller does not answer {request.method}.")

    def handle_withdrawal(self, ask_id: int) -> None:
        """Stop answering a request that its server withdrew."""

    def reset(self) -> None:
        """Forget the requests of a failed try; the call is tried again."""


class BufferedEvents(CallEvents):
    """Events of a call that wait for a consumer.

    Args:
        tasks: Answers requests as they arrive; None means that the consumer reads them.

    Attributes:
        dropped: Number of events that were dropped because the buffer was full.
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
        self._progress: deque[tuple[int, execution_pb2.Progress]] = deque()
        self._logs: deque[tuple[int, execution_pb2.LogMessage]] = deque()
        self._requests: deque[ServerRequest] = deque()
        self._log_bytes = 0
        self._number = 0
        self._ended = False
        self._wake = asyncio.Event()

    def handle_progress(self, frame: execution_pb2.Progress) -> None:
        """Add a progress report; drop the oldest if there are too many."""
        if len(self._progress) >= _MAX_PROGRESS:
            self._progress.popleft()
            self.dropped += 1
        self._progress.append((self._count(), frame))

    def handle_log(self, frame: execution_pb2.LogMessage) -> None:
        """Add a log message; drop the oldest if there are too many."""
        self._log_bytes += len(frame.data)
        self._logs.append((self._count(), frame))
        while len(self._logs) > _MAX_LOGS or self._log_bytes > _MAX_LOG_BYTES:
            self._log_bytes -= len(self._logs.popleft()[1].data)
            self.dropped += 1

    def handle_request(self, request: ServerRequest) -> None:
        """Answer a request, add it for the consumer, or reject it."""
        if request.method not in self.answers:
            request.reject(f"This caller does not answer {request.method}.")
        elif self._tasks is not None:
            self._tasks.start(request)
        elif len(self._requests) >= MAX_ASKS:
            request.reject(f"{MAX_ASKS} requests of this call wait for answers already.")
        else:
            self._requests.append(request)
            self._wake.set()

    def handle_withdrawal(self, ask_id: int) -> None:
        """Stop answering a request that its server withdrew."""
        if self._tasks is not None:
            self._tasks.withdraw(ask_id)
        for request in tuple(self._requests):
            if request.ask_id == ask_id:
                self._requests.remove(request)

    def reset(self) -> None:
        """Forget the requests of a failed try; the call is tried again."""
        self._requests.clear()
        if self._tasks is not None:
            self._tasks.cancel()

    def end(self) -> None:
        """Record that the call has ended: no event follows, and no request is answered."""
        self.reset()
        self._ended = True
        self._wake.set()

    async def wait_for_handlers(self) -> None:
        """Wait until no handler runs; called after `end`."""
        if self._tasks is not None:
            await self._tasks.wait()

    async def next(self) -> Progress | LogMessage | ServerRequest | None:
        """Wait for the next event in the order of arrival; None means that the call has ended.

        Requests are returned first, because their server waits.
        """
        while not self._progress and not self._logs and not self._requests:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        if self._requests:
            return self._requests.popleft()
        if self._logs and (not self._progress or self._logs[0][0] < self._progress[0][0]):
            log = self._logs.popleft()[1]
            self._log_bytes -= len(log.data)
            return LogMessage(log.level, log.logger or None, _parse(log.data))
        report = self._progress.popleft()[1]
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
        return data.decode(errors="replace")  # shown as it is
