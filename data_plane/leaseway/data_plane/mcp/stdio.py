"""MCP over the pipes of a process.

Answers go from the pipe to the caller's callback in one loop turn, without a task; everything
written in one turn goes out as one write. When the pipe is full, lines wait here, up to a bound.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final

from leaseway.data_plane.mcp.codec import decode, encode_notification
from leaseway.data_plane.mcp.lines import LineSplitter, LineTooLong, reply_key
from leaseway.data_plane.mcp.peer import Peer
from leaseway.data_plane.mcp.pending import Pending, ToolCall, no_result, too_large
from leaseway.data_plane.mcp.process import PATIENCE, ServerProcess
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire import bounds
from leaseway.wire.fault import Fault, Reason

__all__ = ["StdioConnection"]

_logger = logging.getLogger(__name__)
MAX_QUEUED: Final = 2 * bounds.MAX_ARGUMENTS
"""Bytes that wait for a full pipe; beyond it calls are refused."""

_WRITE: Final = 64 * bounds.KIB
"""Bytes of one write: what a pipe holds. What waits behind it can still be taken back."""

MAX_SKIPPED: Final = 8 * bounds.MAX_LINE
"""Bytes of a too long line that are read to find its end."""

LITTLE_PATIENCE: Final = 0.2
"""Seconds that a process which failed to start or broke the protocol has to end by itself."""

_LAST_WORDS: Final = 0.1
"""Seconds that an exit status and the last lines of stderr may come after the end of a pipe."""


class StdioConnection(Peer):
    """One MCP connection to a process.

    Args:
        server: The server's id, for messages.
        process: The process; `aclose` stops it.
        stderr: Its last lines, quoted when it dies.
        on_tools_changed: Called when the server says that its tools changed.

    Attributes:
        garbage_lines: Lines on its standard output that were no JSON-RPC.
    """

    kind = "stdio"

    def __init__(
        self,
        server: str,
        process: ServerProcess,
        stderr: StderrTail,
        on_tools_changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(server, on_tools_changed)
        self._process = process
        self._stderr = stderr
        self._loop = asyncio.get_running_loop()
        self._lines = LineSplitter(bounds.MAX_LINE, self._too_long, MAX_SKIPPED)
        self._queue: dict[object, bytes] = {}
        self._queued = 0
        self._flushing = False
        self._paused = False
        self._note_keys = itertools.count(-1, -1)
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._output_ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._untold = 0
        self.garbage_lines = 0

    async def open(self) -> None:
        """Attach to the process's pipes."""
        process = self._process
        try:
            await process.open()
            self._writer, _ = await self._loop.connect_write_pipe(
                lambda: _Writer(self), process.stdin
            )
            self._reader, _ = await self._loop.connect_read_pipe(
                lambda: _Reader(self), process.stdout
            )
        except BaseException:
            for pipe, transport in ((process.stdin, self._writer), (process.stdout, self._reader)):
                if transport is None:
                    pipe.close()
            raise
        self._process.exited.add_done_callback(lambda _: self.pipe_ended())

    async def aclose(self, *, hurry: bool = False) -> None:
        """Close the pipes, on which most servers end, and stop the process. Idempotent."""
        hurry = hurry or self.fault is not None
        self._end(self.fault)
        if self._ending is not None:
            self._ending.cancel()
        if self._writer is not None:
            self._writer.close()
        try:
            await self._process.stop(LITTLE_PATIENCE if hurry else PATIENCE)
        finally:
            if self._reader is not None:
                self._reader.close()
            if self._writer is not None:
                self._writer.abort()  # what it still holds, nobody will read

    # Writing.

    def _refusal(self, size: int) -> Fault | None:
        if self.closed.is_set() or self._ending is not None:
            return self._ended_fault("no")
        waiting = self._waiting()
        if waiting and waiting + size > MAX_QUEUED:
            return Fault(
                Reason.OVERLOADED,
                f"The server {self.server} does not read its input: {waiting} bytes wait for "
                "it. Try again later or on another worker.",
                metadata={"server": self.server},
                retry_delay=1.0,
            )
        return None

    def _waiting(self) -> int:
        """Return how many bytes wait here for the pipe."""
        if self._paused and self._writer is not None:
            return self._queued + self._writer.get_write_buffer_size()
        return self._queued

    def _is_stuck(self) -> bool:
        return self._paused

    def _send(self, key: object, line: bytes, headers: Mapping[str, str], entry: Pending) -> None:
        self._put(key, line)

    def _answer(self, line: bytes) -> None:
        self._put_note(line)

    async def _notify(self, line: bytes, headers: Mapping[str, str] | None) -> None:
        self._put_note(line)

    def _abandon(self, key: object, entry: Pending, reason: str, tell: bool) -> None:
        waiting = self._queue.pop(key, None)
        if waiting is not None:
            self._queued -= len(waiting)
        elif tell and entry.written and not self.closed.is_set():
            params = {"requestId": key, "reason": reason}
            self._put_note(encode_notification("notifications/cancelled", params))

    def _put_note(self, line: bytes) -> None:
        """Send what has no answer, if there is room for it."""
        if self._waiting() + len(line) <= MAX_QUEUED:
            self._put(next(self._note_keys), line)
            return
        self._untold += 1
        if self._untold == 1:
            _logger.warning(
                "The server %s does not read its input: answers and notifications for it are "
                "dropped while more than %s bytes wait.",
                self.server,
                MAX_QUEUED,
            )

    def _put(self, key: object, line: bytes) -> None:
        if self.closed.is_set():
            return
        self._queue[key] = line
        self._queued += len(line)
        if not self._flushing and not self._paused:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._queue and not self._paused and self._writer is not None:
            if self._writer.is_closing():
                return
            self._writer.write(self._next_write())

    def _next_write(self) -> bytes:
        """Take from the queue what goes out as one write."""
        if self._queued <= _WRITE:
            lines, self._queue, self._queued = self._queue, {}, 0
        else:
            lines = self._first_lines()
        for key in lines:
            entry: Pending | None = self._calls.get(key) or self._requests.get(key)
            if entry is not None:
                entry.written = True
        return b"".join(lines.values())

    def _first_lines(self) -> dict[object, bytes]:
        lines: dict[object, bytes] = {}
        size = 0
        for key, line in self._queue.items():
            lines[key] = line
            size += len(line)
            if size >= _WRITE:
                break
        for key in lines:
            del self._queue[key]
        self._queued -= size
        return lines

    def pause(self) -> None:
        """The pipe is full."""
        self._paused = True

    def resume(self) -> None:
        """The pipe has room again."""
        self._paused = False
        self._flush()

    # Reading.

    def received(self, data: bytes) -> None:
        """Take what the server wrote."""
        self.signs.hear(self._next_id)
        try:
            lines = self._lines.feed(data)
        except LineTooLong:
            self._end(self._oversize())
            return
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"{"):
            # A server that logs here may flood us: what can't be a message is not parsed.
            line = line.lstrip()
            if not line.startswith(b"{"):
                if line:
                    self._garbage()
                return
        try:
            message = decode(line)
        except ValueError:
            self._unreadable(line)
            return
        if message.method is not None:
            self._inbox.take(message, self._only_call())
        elif message.is_response:
            self._settle(message)
        else:
            self._garbage()

    def _only_call(self) -> ToolCall | None:
        # A pipe does not say which call a log message belongs to; with one call it is plain.
        return next(iter(self._calls.values())) if len(self._calls) == 1 else None

    def _unreadable(self, line: bytes) -> None:
        """Fail the request that a broken line answers, where it says so."""
        entry = self._waiting_for(reply_key(line[:1024], line[-1024:]))
        if entry is not None:
            entry.fail(no_result(self.server))
        elif line.strip():
            self._garbage()

    def _too_long(self, head: bytes, tail: bytes, size: int) -> None:
        """Fail the request that a skipped line answers; a line that does not say so may be all."""
        key = reply_key(head, tail)
        entry = self._waiting_for(key)
        if entry is not None:
            entry.fail(too_large(self.server, size))
        elif key is not None:
            self._drop_reply(key)
        else:
            self._end(self._oversize())

    def _waiting_for(self, key: int | str | None) -> Pending | None:
        if key is None:
            return None
        return self._forget(key) or self._requests.pop(key, None)

    def _garbage(self) -> None:
        self.garbage_lines += 1
        if self.garbage_lines == 1:
            _logger.warning(
                "The server %s writes lines to its standard output that are no JSON-RPC messages; "
                "they are ignored. It should log to its standard error.",
                self.server,
            )

    def _oversize(self) -> Fault:
        return Fault(
            Reason.SERVER_LOST,
            f"The server {self.server} wrote a line of more than {bounds.MAX_LINE} bytes "
            f"({bounds.MAX_LINE // bounds.MIB} MiB, the bound for one message) that does not say "
            "which request it answers; its connection was closed. Ask its tools for less at a "
            "time.",
            metadata={"server": self.server, "limit": str(bounds.MAX_LINE)},
        )

    # The end.

    def _end(self, fault: Fault | None) -> None:
        super()._end(fault)
        # Whoever waited has been told that these never started; so they must never be written.
        self._queue.clear()
        self._queued = 0

    def pipe_ended(self) -> None:
        """The process has ended or closed a pipe: nothing more will come."""
        if self._ending is None and not self.closed.is_set():
            self.fault = self._lost_fault()
            self._ending = self._loop.create_task(self._wind_up())

    def input_ended(self) -> None:
        """Nothing can be written any more."""
        self._writer = None
        self.pipe_ended()

    def output_ended(self) -> None:
        """Its standard output has been read to the end."""
        self._output_ended.set()
        self.pipe_ended()

    async def _wind_up(self) -> None:
        """Wait a moment for the exit status and last words, then tell everyone."""
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await asyncio.shield(self._process.exited)
                await self._process.stderr_ended.wait()
                await self._output_ended.wait()
        except TimeoutError:
            pass
        self._end(self._lost_fault())

    def _lost_fault(self) -> Fault:
        metadata = {"server": self.server}
        ended = "closed its end of the connection"
        if self._process.exited.done():
            status = self._process.exited.result()
            metadata["exit_status"] = str(status)
            ended = self._process.describe_exit()
        last_words = self._stderr.last(lines=10, size=2048)
        if last_words:
            metadata["stderr"] = last_words
        text = f"The server {self.server} {ended}"
        text += f"; it wrote last: {last_words.splitlines()[-1][:300]}" if last_words else "."
        return Fault(Reason.SERVER_LOST, text, metadata=metadata)


class _Writer(asyncio.BaseProtocol):
    def __init__(self, connection: StdioConnection) -> None:
        self._connection = connection

    def pause_writing(self) -> None:
        self._connection.pause()

    def resume_writing(self) -> None:
        self._connection.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.input_ended()


class _Reader(asyncio.Protocol):
    def __init__(self, connection: StdioConnection) -> None:
        self.data_received = connection.received  # type: ignore[method-assign]
        self._connection = connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.output_ended()
