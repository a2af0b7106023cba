"""What a test has calls of a tool meet before it runs: delays, errors, being held."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Self

from leaseway.wire.errors import Fault

_WAIT_BOUND = 10.0


class Hold:
    """Calls of one tool that wait until the `with` block ends; see `FakeLeaseway.hold`."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        self._let_go = let_go
        self._arrived = threading.Condition()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def wait(self, calls: int = 1, timeout: float = _WAIT_BOUND) -> None:
        """Block until so many calls have arrived; in a coroutine use `asyncio.to_thread`.

        Raises:
            TimeoutError: They have not within `timeout` seconds.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._count >= calls, timeout):
                raise TimeoutError(f"{self._count} of {calls} calls arrived within {timeout:g} s.")

    def note(self) -> None:
        """Count a call that has arrived."""
        with self._arrived:
            self._count += 1
            self._arrived.notify_all()


class Behaviour:
    """What the next calls of each tool meet; lives in one event loop."""

    def __init__(self) -> None:
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._delays: defaultdict[str, deque[float]] = defaultdict(deque)
        self._holds: dict[str, tuple[Hold, asyncio.Event]] = {}

    def fail(self, tool: str, fault: Fault, times: int) -> None:
        """Fail the next calls of a tool."""
        self._faults[tool].extend([fault] * times)

    def delay(self, tool: str, seconds: float, times: int) -> None:
        """Delay the next calls of a tool."""
        self._delays[tool].extend([seconds] * times)

    def hold(self, tool: str, hold: Hold) -> None:
        """Hold all calls of a tool.

        Raises:
            ValueError: They are held already.
        """
        if tool in self._holds:
            raise ValueError(f"Calls of '{tool}' are held already.")
        self._holds[tool] = (hold, asyncio.Event())

    def let_go(self, tool: str) -> None:
        """Hold calls of a tool no longer."""
        held = self._holds.pop(tool, None)
        if held is not None:
            held[1].set()

    async def meet(self, tool: str) -> None:
        """Apply to one call what is meant for it.

        Raises:
            Fault: It is to fail.
        """
        fault = self._faults[tool].popleft() if self._faults[tool] else None
        delay = self._delays[tool].popleft() if self._delays[tool] else 0.0
        held = self._holds.get(tool)
        if held is not None:
            held[0].note()
            await held[1].wait()
        if delay:
            await asyncio.sleep(delay)
        if fault is not None:
            raise fault
