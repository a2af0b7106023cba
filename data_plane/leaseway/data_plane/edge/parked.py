"""Unary calls that wait for their callers' answers between two requests (DESIGN §6)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.struct_pb2 import Struct

from leaseway.data_plane.edge.collector import Collector
from leaseway.wire.fault import Fault, Reason

__all__ = ["MAX_PARKED", "PATIENCE", "Parking"]

MAX_PARKED: Final = 64
"""Calls that may wait on a worker."""

PATIENCE: Final = 60.0
"""Seconds that a call waits."""


@dataclass(frozen=True)
class _Parked:
    tenant: str
    collector: Collector
    expiry: asyncio.TimerHandle


class Parking:
    """Where unary calls wait.

    Args:
        worker_id: This worker.
        incarnation: Its run.
        patience: Seconds that a call waits.
    """

    def __init__(self, worker_id: str, incarnation: str, patience: float = PATIENCE) -> None:
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._patience = patience
        self._parked: dict[str, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, collector: Collector) -> str:
        """Have a call wait for its caller; return the state that continues it, once.

        Raises:
            Fault: OVERLOADED: too many wait.
        """
        if len(self._parked) >= MAX_PARKED:
            raise Fault(
                Reason.OVERLOADED,
                f"{MAX_PARKED} calls wait for their callers' answers on worker "
                f"{self._worker_id}; try again later, or call over an exchange.",
                "yes",
                retry_delay=1.0,
            )
        state = f"{self._incarnation}.{secrets.token_urlsafe(24)}"
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(self._patience, self._expire, state)
        self._parked[state] = _Parked(collector.tenant, collector, expiry)
        collector.is_parked = True
        return state

    def resume(self, state: str, tenant: str, answers: Mapping[str, Struct]) -> Collector:
        """Return the call that waits under a state, with its caller's answers given.

        Raises:
            Fault: INVALID_REQUEST: none does, for this tenant; or an answer is to no question of
                it, and then it waits on.
        """
        if state.partition(".")[0] != self._incarnation:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"This request_state is not of this run of worker {self._worker_id}: a call is "
                "continued on the worker that asked, and ends with it.",
            )
        parked = self._parked.get(state)
        if parked is None or parked.tenant != tenant:
            raise Fault(
                Reason.INVALID_REQUEST,
                "No call waits under this request_state: it was continued already, or its "
                f"{self._patience:g} s have passed.",
            )
        parked.collector.answer(answers)
        parked.collector.is_parked = False
        parked.expiry.cancel()
        del self._parked[state]
        return parked.collector

    def _expire(self, state: str) -> None:
        collector = self._parked.pop(state).collector
        collector.is_parked = False
        collector.leave(f"its caller did not answer for {self._patience:g} s")
