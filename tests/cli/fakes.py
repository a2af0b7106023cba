"""Base of fake clients, and their installation."""

from __future__ import annotations

from typing import Self, TypeVar

import pytest

from leaseway.cli.options import connection as connection_module
from leaseway.cli.options.common import ConnectionOptions


class FakeClient:
    """A fake of the SDK's client.

    Attributes:
        made_for: The connection options of the command that opened it.
        agent: The agent that the command named.
        user: The user that it named, or empty.
        closed: Whether the command closed it.
    """

    made_for: ConnectionOptions | None = None
    agent = ""
    user = ""
    closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


ClientT = TypeVar("ClientT", bound=FakeClient)


def install_client(monkeypatch: pytest.MonkeyPatch, client: ClientT) -> ClientT:
    """Make commands use a fake client, and return it."""

    def connect(connection: ConnectionOptions, agent: str = "", user: str = "") -> ClientT:
        client.made_for, client.agent, client.user = connection, agent, user
        return client

    monkeypatch.setattr(connection_module, "connect", connect)
    return client
