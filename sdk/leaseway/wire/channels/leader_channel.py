"""A channel to whichever control plane leads, of several that are known.

Stubs are made on it once. A control plane that does not lead says who does (NOT_LEADER); the
channel goes there, and back to the addresses that it was given when that one is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from leaseway.wire.channels.endpoint import parse_endpoint
from leaseway.wire.channels.replaceable_channel import ReplaceableChannel

LEADER: Final = "leader"
"""The fact of a NOT_LEADER fault that holds the leader's address; empty where nobody leads yet."""

_GRACE: Final = 30.0
"""Seconds that RPCs of a channel that was left get to end by themselves."""


class LeaderChannel(ReplaceableChannel):
    """One channel at a time, and which one that is.

    Args:
        addresses: Of control planes; a name may stand for several of them.
        make: Makes a channel to an address.

    Attributes:
        address: Where RPCs go now.
    """

    def __init__(self, addresses: Sequence[str], make: Callable[[str], grpc.aio.Channel]) -> None:
        self._addresses = tuple(addresses)
        self._make = make
        self._next = 1
        self.address = self._addresses[0]
        super().__init__(make(self.address))

    def follow(self, leader: str) -> bool:
        """Go where a control plane said that the leader is; return whether that is elsewhere.

        Where it knows none, or names itself, the next of the given addresses is asked.
        """
        if leader and leader != self.address and _is_address(leader):
            self._switch(leader)
            return True
        return self.leave()

    def leave(self) -> bool:
        """Leave an address that does not answer; return whether there is another one."""
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        if address == self.address:
            return False
        self._switch(address)
        return True

    def _switch(self, address: str) -> None:
        self.address = address
        self._replace(self._make(address), _GRACE)


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return parse_endpoint(text) is not None
    return False
