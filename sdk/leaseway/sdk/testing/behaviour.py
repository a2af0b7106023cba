"""What a test injects into the next calls of a fake tool: errors, delays, holds."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Self

from leaseway.wire.errors import Fault

_WAIT_TIMEOUT = 10.0


class Hold:
    """A `with` block during which the calls of one tool wait; made by `FakeLeaseway.hold`."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._arrived = threading.Condition()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release()

    def wait(self, calls: int = 1, timeout: float = _WAIT_TIMEOUT) -> None:
        """Block until calls have arrived. In a coroutine, use `asyncio.to_thread(hold.wait)`.

        Args:
            calls: How many calls to wait for, counted since the hold began.
            timeout: Seconds to wait.

        Raises:
            TimeoutError: Fewer calls arrived within `timeout` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._count >= calls, timeout):
                raise TimeoutError(f"{self._count} of {calls} calls arrived within {timeout:g} s.")

    def note(self) -> None:
        """Count a call that has arrived. The fake calls this; tests need not."""
        with self._arrived:
            self._count += 1
            self._arrived.notify_all()


class Behaviour:
    """The injected errors, delays and holds by exposed tool name. Not thread-safe."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._delays: defaultdict[str, deque[float]] = defaultdict(deque)
        self._holds: dict[str, tuple[Hold, asyncio.Event]] = {}

    def fail(self, tool: str, fault: Fault, times: int) -> None:
        """Make the next calls of a tool fail."""
        self._faults[tool].extend([fault] * times)

    def delay(self, tool: str, seconds: float, times: int) -> None:
        """Delay the next calls of a tool."""
        self._delays[tool].extend([seconds] * times)

    def hold(self, tool: str, hold: Hold) -> None:
        """Make all calls of a tool wait until `release`.

        Raises:
            ValueError: They already wait.
        """
        if tool in self._holds:
            raise ValueError(f"Calls of '{tool}' are held already.")
        self._holds[tool] = (hold, asyncio.Event())

    def release(self, tool: str) -> None:
        """End the hold of a tool, if there is one."""
        held = self._holds.pop(tool, None)
        if held is not None:
            held[1].set()

    async def apply(self, tool: str) -> None:
        """Apply the injected behaviour to one call.

        Raises:
            Fault: An error was injected.
        """
        fault = self._faults[tool].popleft() if self._faults[tool] else None
        delay = self._delays[tool].popleft() if self._delays[tool] else 0.0
        held = self._holds.get(tool)
        if held is not None:
            hold, released = held
            hold.note()
            await released.wait()
        if delay:
            await asyncio.sleep(delay)
        if fault is not None:
            raise fault
