"""The standard input and output of a pod's server, attached to over the Kubernetes API.

The API's websocket carries channels: the first byte of each message says which (0 is standard
input, 1 output, 2 error, 3 how it ended).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import aiohttp

from leaseway.data_plane.mcp.pods.api import PodFailure, Pods
from leaseway.data_plane.mcp.pods.manifest import Manifest
from leaseway.data_plane.mcp.protocol.messages.lines import LineSplitter
from leaseway.data_plane.mcp.protocol.transport import PullTransport
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_STDIN: Final = b"\x00"
_PIECE: Final = 64 * bounds.KIB
_REMOVAL: Final = 2.0
"""Seconds that the end of an instance waits for its pod's removal, which goes on meanwhile."""


class PodTransport(PullTransport):
    """One instance's pod.

    Args:
        server: The server's id, for messages.
        pods: The worker's pods.
        name: The pod's name.
        manifests: What is made for it, in order, each with its plural.
        on_output: Takes what the server writes to its standard error, and why it does not run yet.
        patience: How many seconds it may take until the server is attached to.
    """

    def __init__(
        self,
        server: str,
        pods: Pods,
        name: str,
        manifests: Sequence[tuple[str, Manifest]],
        on_output: Callable[[bytes], None],
        patience: float,
    ) -> None:
        self._server = server
        self._pods = pods
        self._name = name
        self._manifests = manifests
        self._on_output = on_output
        self._patience = patience
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._lines = LineSplitter(bounds.MAX_LINE, self._skipped, 8 * bounds.MAX_LINE)
        self._messages: deque[bytes] = deque()
        self._too_long = 0

    @property
    def transport_type(self) -> str:
        return "stdio"

    async def connect(self) -> None:
        """Make the pod, wait until its server runs, and attach to it.

        Raises:
            Fault: SERVER_NOT_READY with the reason that the API gives, or what it waited for.
        """
        waits_for = ""
        try:
            async with asyncio.timeout(self._patience):
                async for step in self._steps():
                    waits_for = step
        except TimeoutError:
            why = f"{waits_for}, {self._patience:.3g} s after its start"
            raise self._not_started(why) from None
        except PodFailure as failure:
            raise self._not_started(str(failure)) from None

    async def _steps(self) -> AsyncIterator[str]:
        """Bring the server up; yield before each step what it waits for."""
        for plural, manifest in self._manifests:
            yield f"the Kubernetes API did not answer POST {plural}"
            await self._pods.create(plural, manifest)
        yield f"the pod {self._name} was made, but a watch told nothing of it"
        async for why in self._pods.until_running(self._name):
            self._on_output(f"pod {self._name}: {why}\n".encode())
            yield f"the pod {self._name} does not run: {why}"
        yield f"the pod {self._name} runs, but it could not be attached to"
        self._socket = await self._pods.attach(self._name)

    def _not_started(self, why: str) -> Fault:
        return Fault(
            Reason.SERVER_NOT_READY,
            f"The server {self._server} could not be started: {why}.",
            metadata={"server": self._server, "problem": "START_FAILED"},
        )

    async def disconnect(self) -> None:
        """Close its standard input and remove the pod."""
        removal = self._pods.remove(self._name)
        if self._socket is not None:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_REMOVAL / 2):
                    await self._socket.close()
        await asyncio.wait([removal], timeout=_REMOVAL)

    async def send(self, message: bytes) -> None:
        assert self._socket is not None
        for start in range(0, len(message), _PIECE):
            await self._socket.send_bytes(_STDIN + message[start : start + _PIECE])

    async def receive(self) -> bytes:
        while not self._messages:
            await self._read()
        return self._messages.popleft()

    async def _read(self) -> None:
        assert self._socket is not None
        found = await self._socket.receive()
        if found.type is not aiohttp.WSMsgType.BINARY:
            raise EOFError
        channel, data = found.data[:1], found.data[1:]
        match channel[0] if channel else 1:
            case 1:
                self._messages.extend(self._lines.feed(data))
                if self._too_long:
                    raise ValueError(
                        f"it wrote a line of {self._too_long} bytes, which is too long"
                    )
            case 2:
                self._on_output(data)
            case 3:
                self._on_output(f"pod {self._name}: {_ending(data)}\n".encode())
                raise EOFError
            case _:
                pass

    def _skipped(self, head: bytes, tail: bytes, size: int) -> None:
        self._too_long = size


def _ending(data: bytes) -> str:
    """Return how the API says that the server ended."""
    try:
        status = json.loads(data)
        return str(status.get("message") or "its server ended")[:500]
    except (ValueError, AttributeError):
        return "its server ended"
