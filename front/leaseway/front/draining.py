"""The end of a front: it accepts no new requests, and those in flight get time to finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from leaseway.wire.bounds import SHUTDOWN_TIMEOUT
from leaseway.wire.timing.stop_signals import handle_stop_signals

RETRY_AFTER: Final = 1
"""Seconds after which a refused request may find another front, or this one restarted."""
DRAINING: Final = "This front is shutting down and accepts no new requests; try again."

_CHECK_INTERVAL: Final = 0.05

_log = logging.getLogger("leaseway.front")


class Drain:
    """Whether and how a front ends.

    Args:
        timeout: Seconds that requests in flight get.

    Attributes:
        started: Set at the first signal.
    """

    def __init__(self, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        self.started = asyncio.Event()
        self._timeout = timeout
        self._skipped = asyncio.Event()

    def request(self, _reason: str = "") -> None:
        """Start to drain; a second request does not wait for the requests in flight."""
        if self.started.is_set():
            self._skipped.set()
        self.started.set()

    def handle_signals(self) -> None:
        """Drain when a signal stops this process, from now on."""
        handle_stop_signals(self.request)

    async def wait_for_requests(self, in_flight: Callable[[], int]) -> None:
        """Wait until no request is in flight, the time is over, or a second signal."""
        if in_flight():
            _log.info(
                "The front is shutting down; %d requests have up to %g s to finish.",
                in_flight(),
                self._timeout,
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                while in_flight() and not self._skipped.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_CHECK_INTERVAL):
                            await self._skipped.wait()
        if unfinished := in_flight():
            _log.warning("%d requests were cut off by the end of the front.", unfinished)
