"""Lets calls on leases wait until the control plane has confirmed them (design.md#leases)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leaseway.data_plane.core.leases.contact import MAX_WAIT, PlaneContact
from leaseway.wire.errors import Fault, Reason

_PER_SECOND: Final = 1_000_000


class LeaseConfirmation:
    """Follows the contact to the control plane; the client of its stream alone writes it.

    Args:
        clock: Seconds, monotonic.

    Attributes:
        clock: As given.
        until: Until when leases may be served, on that clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._contact = PlaneContact()
        self.until = self._contact.until
        self._changed = asyncio.Event()

    def handle_welcome(self, patience: float) -> None:
        """Record that a stream has begun, and the patience of its control plane in seconds."""
        self._use(self._contact.welcomed(patience, self.clock()))

    def next_number(self) -> int:
        """Return the number of a pulse that is sent now."""
        return max(1, int(self.clock() * _PER_SECOND))

    def handle_answer(self, number: int) -> None:
        """Record the answer to the pulse with a number."""
        self._use(self._contact.answered(number / _PER_SECOND, self.clock()))

    def handle_miss(self, planes: int) -> None:
        """Record that an attempt to join one of so many control planes has found no leader."""
        self._use(self._contact.missed(self.clock(), planes))

    def handle_refusal(self) -> None:
        """Record that a control plane has refused this worker."""
        self._use(self._contact.refused())

    def is_silent(self) -> bool:
        """Return whether the control plane has answered no pulse of the stream for its patience."""
        return self._contact.is_silent(self.clock())

    async def wait(self) -> None:
        """Wait until leases may be served, for at most 5 s.

        Raises:
            Fault: SYNCING: the control plane refuses this worker.
        """
        if self.clock() < self.until:
            return
        try:
            async with asyncio.timeout(MAX_WAIT):
                while self.clock() >= self.until:
                    await self._changed.wait()
        except TimeoutError:
            self._use(self._contact.waited(self.clock()))
            if self._contact.is_refused:
                raise Fault(
                    Reason.SYNCING,
                    "The control plane refuses this worker, and may have given its leases to other"
                    " workers. The worker's log says why it is refused.",
                    retry_delay=1.0,
                ) from None

    def _use(self, contact: PlaneContact) -> None:
        self._contact, self.until = contact, contact.until
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
