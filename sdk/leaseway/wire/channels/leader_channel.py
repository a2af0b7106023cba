"""A channel to the leader among several control planes.

Stubs are created on it once. A control plane that does not lead returns the leader's address
(NOT_LEADER), to which the channel switches. If the leader is lost, the channel returns to the
addresses that it was given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import grpc

from leaseway.wire.channels.endpoint import parse_endpoint
from leaseway.wire.channels.replaceable_channel import ReplaceableChannel

LEADER: Final = "leader"
"""The metadata of a NOT_LEADER fault with the leader's address; empty without a leader."""

_GRACE: Final = 30.0
"""Seconds for the RPCs of a replaced channel to complete."""


class LeaderChannel(ReplaceableChannel):
    """A channel that switches between control planes.

    Args:
        addresses: The control planes; one name may resolve to several.
        connect: Creates a channel to an address.

    Attributes:
        address: The address of the current channel.
    """

    def __init__(
        self, addresses: Sequence[str], connect: Callable[[str], grpc.aio.Channel]
    ) -> None:
        self._addresses = tuple(addresses)
        self._connect = connect
        self._next = 1
        self.address = self._addresses[0]
        super().__init__(connect(self.address))

    def follow(self, leader: str) -> bool:
        """Switch to the leader that a control plane named; return whether the address changed.

        If it knows no leader, or names itself, switch to the next of the given addresses.
        """
        if leader and leader != self.address and _is_address(leader):
            self._switch(leader)
            return True
        return self.switch_to_next()

    def switch_to_next(self) -> bool:
        """Switch to the next of the given addresses; return whether the address changed."""
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        if address == self.address:
            return False
        self._switch(address)
        return True

    def _switch(self, address: str) -> None:
        self.address = address
        self._replace(self._connect(address), _GRACE)


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return parse_endpoint(text) is not None
    return False
