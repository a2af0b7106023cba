"""The standard input and output of a process as a transport.

Messages are passed from the pipe to the receiver in one loop iteration, without a task. All
messages of one iteration are sent in one write. If the pipe is full, messages are queued here and
can be withdrawn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, Final

from leaseway.data_plane.background import LightEvent
from leaseway.data_plane.kinds.process.process import STOP_GRACE, ServerProcess, pipe_for_loop
from leaseway.data_plane.mcp.failures import server_lost
from leaseway.data_plane.mcp.protocol.messages.reading import MAX_SKIPPED, LineSplitter, LineTooLong
from leaseway.data_plane.mcp.protocol.transport import Receipt, Receiver, Transport
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

_MAX_WRITE: Final = 64 * bounds.KIB
"""Bytes of one write: the capacity of a pipe. Later messages can still be withdrawn."""

SHORT_GRACE: Final = 0.2
"""Seconds for a process to exit after a failed start or a broken connection."""

_EXIT_WAIT: Final = 0.1
"""Seconds to wait for the exit status and the last lines of stderr after the end of a pipe."""

_TURN: Final = 256
"""Lines that are handled in a row; before the next ones, others have their turn."""


class StdioTransport(Transport):
    """A process's standard input and output; `disconnect` stops the process."""

    stray_advice = "It should log to its standard error."

    transport_type = "stdio"

    def __init__(self, server: str, process: ServerProcess, stderr: StderrTail) -> None:
        self._server = server
        self._process = process
        self._stderr = stderr
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver
        self._lines: LineSplitter
        self._queue: dict[Receipt, bytes] = {}
        self._queued = 0
        self._flushing = False
        self._paused = False
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._late: deque[bytes] = deque()
        self._output_ended = LightEvent()
        self._ending: asyncio.Task[None] | None = None
        self._closing = False

    async def connect(self, receiver: Receiver) -> None:
        """Attach to the process's pipes."""
        self._receiver = receiver
        self._lines = LineSplitter(bounds.MAX_LINE, receiver.overlong, MAX_SKIPPED)
        process = self._process
        try:
            await process.open()
            self._writer, _ = await self._loop.connect_write_pipe(
                partial(_StdinProtocol, self), pipe_for_loop(process.stdin)
            )
            self._reader, _ = await self._loop.connect_read_pipe(
                partial(_StdoutProtocol, self), pipe_for_loop(process.stdout)
            )
        except BaseException:
            for pipe, transport in ((process.stdin, self._writer), (process.stdout, self._reader)):
                if transport is None:
                    pipe.close()
            raise
        self._process.exited.add_done_callback(lambda _: self.pipe_ended())

    async def disconnect(self, *, hurry: bool = False) -> None:
        """Close the pipes, on which most servers exit, and stop the process."""
        self._closing = True
        if self._ending is not None:
            self._ending.cancel()
        if self._writer is not None:
            self._writer.close()
        try:
            await self._process.stop(SHORT_GRACE if hurry else STOP_GRACE)
        finally:
            if self._reader is not None:
                self._reader.close()
            if self._writer is not None:
                self._writer.abort()  # drop its buffer: the process has exited

    # Writing.

    def waiting(self) -> int:
        """Return how many bytes are queued for the pipe."""
        if self._paused and self._writer is not None:
            return self._queued + self._writer.get_write_buffer_size()
        return self._queued

    @property
    def stuck(self) -> bool:
        return self._paused

    def send(self, message: bytes, receipt: Receipt) -> None:
        """Write a message in the next loop iteration, or when the pipe has room again."""
        self._queue[receipt] = message
        self._queued += len(message)
        if not self._flushing and not self._paused:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def withdraw(self, receipt: Receipt) -> bool:
        """Remove a queued message."""
        waiting = self._queue.pop(receipt, None)
        if waiting is None:
            return False
        self._queued -= len(waiting)
        return True

    def _flush(self) -> None:
        self._flushing = False
        while self._queue and not self._paused and self._writer is not None:
            if self._writer.is_closing():
                return
            self._writer.write(self._next_write())

    def _next_write(self) -> bytes:
        """Remove the messages of one write from the queue."""
        if self._queued <= _MAX_WRITE:
            lines, self._queue, self._queued = self._queue, {}, 0
        else:
            lines = self._first_lines()
        for receipt in lines:
            receipt.written = True
        return b"".join(lines.values())

    def _first_lines(self) -> dict[Receipt, bytes]:
        lines: dict[Receipt, bytes] = {}
        size = 0
        for receipt, line in self._queue.items():
            lines[receipt] = line
            size += len(line)
            if size >= _MAX_WRITE:
                break
        for receipt in lines:
            del self._queue[receipt]
        self._queued -= size
        return lines

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        """Continue writing: the pipe has room again."""
        self._paused = False
        self._flush()

    # Reading.

    def received(self, data: bytes) -> None:
        """Receive standard output."""
        try:
            lines = self._lines.feed(data)
        except LineTooLong:
            self._receiver.overlong(b"", b"", MAX_SKIPPED)
            return
        if len(lines) <= _TURN and not self._late:
            self._receiver.receive(lines)
            return
        is_handled = bool(self._late)
        self._late.extend(lines)
        if not is_handled:
            if self._reader is not None:
                self._reader.pause_reading()
            self._handle_late()

    def _handle_late(self) -> None:
        """Handle some lines of a flood; read on after the last one."""
        if self._closing:
            return
        turn = [self._late.popleft() for _ in range(min(_TURN, len(self._late)))]
        try:
            self._receiver.receive(turn)
        finally:  # whatever these lines were, the next ones are read
            if self._late:
                self._loop.call_soon(self._handle_late)
            elif self._reader is not None and not self._reader.is_closing():
                self._reader.resume_reading()

    def keep_stray(self, line: bytes) -> None:
        """Keep a line of standard output beside those of standard error."""
        self._stderr.add_line(line)

    # The end.

    def pipe_ended(self) -> None:
        """End the connection: the process has exited or closed a pipe."""
        if self._ending is None and not self._closing:
            self._receiver.ending(self._lost_fault())
            self._ending = self._loop.create_task(self._report_lost())

    def input_ended(self) -> None:
        """Handle the end of standard input."""
        self._writer = None
        self.pipe_ended()

    def output_begins(self, reader: asyncio.ReadTransport) -> None:
        """Know what reads standard output, before the first of it arrives."""
        self._reader = reader

    def output_ended(self) -> None:
        """Handle the end of standard output."""
        self._output_ended.set()
        self.pipe_ended()

    async def _report_lost(self) -> None:
        """Wait a moment for the exit status and stderr, then report the loss."""
        try:
            async with asyncio.timeout(_EXIT_WAIT):
                await asyncio.shield(self._process.exited)
                await self._process.stderr_ended.wait()
                await self._output_ended.wait()
        except TimeoutError:
            pass
        self._receiver.lost(self._lost_fault())

    def _lost_fault(self) -> Fault:
        status, ended = None, "closed its end of the connection"
        if self._process.exited.done():
            status, ended = self._process.exited.result(), self._process.describe_exit()
        last_words = self._stderr.last(lines=10, size=2048)
        return server_lost(self._server, ended, last_words, self._stderr.cause, status)


class _StdinProtocol(asyncio.BaseProtocol):
    def __init__(self, transport: StdioTransport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        self._transport.pause()

    def resume_writing(self) -> None:
        self._transport.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport.input_ended()


class _StdoutProtocol(asyncio.Protocol):
    def __init__(self, transport: StdioTransport) -> None:
        self.data_received = transport.received  # type: ignore[method-assign]
        self._transport = transport

    def connection_made(self, transport: Any) -> None:  # uvloop has types of its own
        self._transport.output_begins(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport.output_ended()
