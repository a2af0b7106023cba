"""Attaches to a pod's server over the Kubernetes API.

The API's websocket multiplexes channels: the first byte of each message is its channel (0 standard
input, 1 standard output, 2 standard error, 3 the exit status).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp

from leaseway.data_plane.kinds.container.manifest import Manifest
from leaseway.data_plane.kinds.container.pods import PodFailure, Pods
from leaseway.data_plane.mcp.failures import not_started, server_lost
from leaseway.data_plane.mcp.protocol.messages.reading import MAX_SKIPPED, LineSplitter, LineTooLong
from leaseway.data_plane.mcp.protocol.transport import OverlongMessageError, PullTransport
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

_STDIN: Final = b"\x00"
_CHUNK: Final = 64 * bounds.KIB
_REMOVE_TIMEOUT: Final = 2.0
"""Seconds that `disconnect` waits for the pod's removal, which continues in the background."""


class PodTransport(PullTransport):
    """One instance's pod.

    Args:
        manifests: The objects to create, in order, each with its plural.
        stderr: Receives the server's standard error; before, why the pod does not run yet.
        timeout: Seconds until the server must be attached to.
    """

    transport_type = "stdio"

    def __init__(
        self,
        server: str,
        pods: Pods,
        name: str,
        manifests: Sequence[tuple[str, Manifest]],
        stderr: StderrTail,
        timeout: float,
    ) -> None:
        self._server = server
        self._pods = pods
        self._name = name
        self._manifests = manifests
        self._stderr = stderr
        self._timeout = timeout
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._lines = LineSplitter(bounds.MAX_LINE, self._skipped, MAX_SKIPPED)
        self._received: deque[bytes | OverlongMessageError] = deque()
        self._ending = asyncio.Lock()
        self._lost: Fault | None = None

    async def connect(self) -> None:
        """Create the pod, wait until its server runs, and attach to it.

        Raises:
            Fault: SERVER_NOT_READY with the API's reason, or with the step that timed out.
        """
        pending = ""
        try:
            async with asyncio.timeout(self._timeout):
                async for step in self._steps():
                    pending = step
        except TimeoutError:
            text = f"{pending}, {self._timeout:.3g} s after its start."
            raise not_started(self._server, "START_FAILED", text) from None
        except PodFailure as failure:
            raise not_started(self._server, "START_FAILED", f"{failure}.") from None

    async def _steps(self) -> AsyncIterator[str]:
        """Start the server; yield before each step the error for a timeout in it."""
        for plural, manifest in self._manifests:
            yield f"the Kubernetes API did not answer POST {plural}"
            async for cause in self._pods.create(plural, manifest):
                yield cause
        yield f"the pod {self._name} was created, but a watch returned no event of it"
        async for cause in self._pods.until_running(self._name):
            self._stderr.feed(f"pod {self._name}: {cause}\n".encode())
            yield f"the pod {self._name} does not run: {cause}"
        yield f"the pod {self._name} runs, but it could not be attached to"
        self._stderr.clear()  # what it waited for says nothing about its end
        self._socket = await self._pods.attach(self._name)

    async def disconnect(self) -> None:
        """Close standard input and remove the pod."""
        removal = self._pods.remove(self._name)
        if self._socket is not None:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_REMOVE_TIMEOUT / 2):
                    await self._socket.close()
        await asyncio.wait([removal], timeout=_REMOVE_TIMEOUT)

    async def send(self, message: bytes) -> None:
        assert self._socket is not None
        try:
            for start in range(0, len(message), _CHUNK):
                await self._socket.send_bytes(_STDIN + message[start : start + _CHUNK])
        except (aiohttp.ClientError, OSError):
            raise await self._end() from None

    async def receive(self) -> bytes:
        while not self._received:
            await self._read()
        received = self._received.popleft()
        if isinstance(received, OverlongMessageError):
            raise received
        return received

    async def _read(self) -> None:
        assert self._socket is not None
        frame = await self._socket.receive()
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise await self._end()
        channel, data = frame.data[:1], frame.data[1:]
        match channel[0] if channel else 1:
            case 1:
                try:
                    self._received.extend(self._lines.feed(data))
                except LineTooLong:
                    self._skipped(b"", b"", MAX_SKIPPED)
            case 2:
                self._stderr.feed(data)
            case 3:
                message = _exit_message(data)
                if message:
                    self._stderr.add_line(f"pod {self._name}: {message}".encode())
                raise await self._end()
            case _:
                pass

    def _skipped(self, head: bytes, tail: bytes, size: int) -> None:
        self._received.append(OverlongMessageError(head, tail, size))

    async def _end(self) -> Fault:
        """Return why the connection has ended; the API knows more than the websocket."""
        async with self._ending:
            if self._lost is None:
                text, status = await self._pods.how_ended(self._name)
                last_words = self._stderr.last(lines=10, size=2048)
                cause = self._stderr.cause
                self._lost = server_lost(self._server, text, last_words, cause, status)
        return self._lost


def _exit_message(data: bytes) -> str:
    """Return the API's message about the server's exit, if there is one."""
    try:
        return str(json.loads(data).get("message") or "")[:500]
    except (ValueError, AttributeError):
        return ""
