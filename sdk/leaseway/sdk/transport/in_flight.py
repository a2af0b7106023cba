"""What an exchange knows of the calls that wait for their results, in a task or without one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from leaseway.sdk.transport.events import CallEvents
from leaseway.v1 import execution_pb2

RawResult = tuple[execution_pb2.Result, bytes]
"""A result frame, and its whole payload."""


class Waiter(Protocol):
    """What waits for the result of a call: a future, or what acts like one."""

    def done(self) -> bool:
        """Return whether it no longer waits."""

    def set_result(self, result: RawResult, /) -> None:
        """Take the result."""

    def set_exception(self, fault: BaseException, /) -> None:
        """Take the fault that ended the call."""


class InFlightCall(Protocol):
    """A call that waits for its result.

    Attributes:
        ticket: Withdraws it.
    """

    ticket: int

    @property
    def reply(self) -> Waiter:
        """What waits."""

    @property
    def what(self) -> str:
        """The tool, prompt or resource, for messages."""

    @property
    def events(self) -> CallEvents | None:
        """Handles the progress, log messages and server requests of the call."""

    @property
    def chunked(self) -> bool:
        """Whether its arguments are sent in chunks."""


class BeginningCall(InFlightCall, Protocol):
    """A call that begins without a task.

    Attributes:
        call_id: Its id in the exchange, which sets it.
    """

    call_id: int


@dataclass(slots=True, eq=False)
class AwaitedCall:
    """A call that waits for its result in a task."""

    reply: asyncio.Future[RawResult]
    what: str
    events: CallEvents | None
    chunked: bool
    ticket: int = 0
