"""Asking a running system: one client for one command, and what its errors mean here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from leaseway.cli.errors import FAILED, UNREACHABLE, CliFailure
from leaseway.cli.options.common import Connection, shared_key

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

T = TypeVar("T")

_FLUSH: Final = 2.0  # seconds that a finished command waits for its own spans to leave


def connect(connection: Connection, agent: str = "leaseway-cli") -> AsyncClient:
    """Return the client that a command asks with; tests put their own in its place."""
    from leaseway.sdk import AsyncClient

    return AsyncClient(
        str(connection.address), tenant=connection.tenant, agent=agent, key=shared_key()
    )


def ask(
    connection: Connection,
    question: Callable[[AsyncClient], Awaitable[T]],
    *,
    agent: str = "leaseway-cli",
    keep_leases: bool = False,
) -> T:
    """Run one conversation with a control plane and return what it gave.

    Args:
        connection: Whom to ask.
        question: What to ask.
        agent: Who asks.
        keep_leases: Whether leases that the conversation acquired stay until their time to live
            has passed; else they are released at its end.

    Raises:
        CliFailure: It could not be reached (exit status 3) or refused (1).
    """
    from leaseway.sdk import ControlPlaneUnavailable, LeasewayError
    from leaseway.telemetry.tracing import configure_telemetry

    connection.log.configure("cli", default_level="warning")
    telemetry = configure_telemetry("leaseway-cli")

    async def converse() -> T:
        client = connect(connection, agent)
        if keep_leases:
            # Closing would release them: this client only goes silent, as one that crashed.
            return await question(client)
        async with client:
            return await question(client)

    try:
        return asyncio.run(converse())
    except ControlPlaneUnavailable as error:
        raise CliFailure(str(error), UNREACHABLE) from None
    except LeasewayError as error:
        raise CliFailure(str(error), FAILED) from None
    finally:
        telemetry.shutdown(_FLUSH)
