"""What every long-running process does."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest
from tests.conftest import BOUND

from leaseway.cli.commands.running.processes import LoopErrors


class Listener(socket.socket):
    """A listening socket of a process that has no files left to open."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_connections_that_cannot_be_accepted_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    errors, asked = LoopErrors(), asyncio.Event()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        errors(loop, context)
        errors(loop, context)  # so does asyncio, up to a hundred times
        asked.set()

    listener = Listener()
    listener.bind(("127.0.0.1", 0))
    loop.set_exception_handler(handle)
    try:
        async with await asyncio.start_server(lambda _reader, _writer: None, sock=listener):
            with socket.create_connection(listener.getsockname(), BOUND):
                await asyncio.wait_for(asked.wait(), BOUND)
    finally:
        loop.set_exception_handler(None)
    (line,) = caplog.messages
    assert line.startswith("Connections wait, because none can be accepted. Too many open files")
    assert "ulimit -n" in line


async def test_other_errors_of_the_loop_are_logged_each(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    errors = LoopErrors()
    for _ in range(2):
        errors(loop, {"message": "A task failed.", "exception": OSError(errno.EMFILE, "")})
    assert caplog.messages == ["A task failed."] * 2
