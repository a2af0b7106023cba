"""MCP over stdio: invalid handshakes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.front.test_bounds import FakeMethods

from leaseway.front.stdio import StdioFront


class FakeHandshake:
    """Passes lines to the front."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.connected = asyncio.Event()

    def connect(self, on_line: Callable[[bytes | None], None]) -> None:
        self.on_line = on_line
        self.connected.set()


@pytest.mark.parametrize("params", [b"", b',"params":[]', b',"params":7'])
async def test_initialize_without_a_params_object_is_an_error(params: bytes) -> None:
    source, target = os.pipe()
    methods: Any = FakeMethods()
    handshake: Any = FakeHandshake(target)
    front = StdioFront(methods, "default", "", handshake)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(front.serve())
        await handshake.connected.wait()
        for line in (b'{"id":1,"method":"initialize"%b}' % params, None):
            await asyncio.to_thread(handshake.on_line, line)
    os.close(target)
    with os.fdopen(source) as responses:
        assert json.loads(responses.readline())["error"]["code"] == -32602
