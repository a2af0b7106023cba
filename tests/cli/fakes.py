"""What clients that stand in for the SDK's have in common."""

from __future__ import annotations

from typing import Self, TypeVar

import pytest

from leaseway.cli.options import connection as connection_module
from leaseway.cli.options.common import Connection


class FakeClient:
    """Can be entered and left.

    Attributes:
        made_for: What a command wanted to connect to, once one did.
        agent: Who it said that it is.
        closed: Whether it was left.
    """

    made_for: Connection | None = None
    agent = ""
    closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


ClientT = TypeVar("ClientT", bound=FakeClient)


def stand_in(monkeypatch: pytest.MonkeyPatch, client: ClientT) -> ClientT:
    """Have commands ask a client in place of their own, and return it."""

    def connect(connection: Connection, agent: str = "") -> ClientT:
        client.made_for, client.agent = connection, agent
        return client

    monkeypatch.setattr(connection_module, "connect", connect)
    return client
