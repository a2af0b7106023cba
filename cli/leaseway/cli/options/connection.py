"""Connecting a command to a running system."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from leaseway.cli.errors import FAILED, UNREACHABLE, CliFailure
from leaseway.cli.options.common import ConnectionOptions, check_client_tls, shared_key

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

T = TypeVar("T")

_FLUSH: Final = 1.0  # seconds that a finished command waits for the export of its telemetry


def connect(
    connection: ConnectionOptions, agent: str = "leaseway-cli", user: str = ""
) -> AsyncClient:
    """Return a command's client. Tests replace this function."""
    from leaseway.sdk import AsyncClient

    check_client_tls()
    shared_key()  # raises what is wrong with it; the client also follows its file
    return AsyncClient(str(connection.address), tenant=connection.tenant, agent=agent, user=user)


def with_client(
    connection: ConnectionOptions,
    function: Callable[[AsyncClient], Awaitable[T]],
    *,
    agent: str = "leaseway-cli",
    user: str = "",
) -> T:
    """Run a function with a client of the control plane, and return its result.

    Args:
        connection: Which control plane to connect to.
        function: Makes the requests.
        agent: The agent that the client names.
        user: The user that it names, or empty.

    Raises:
        CliFailure: The control plane is unreachable (exit status 3) or returned an error (1).
    """
    from leaseway.sdk import ControlPlaneUnavailable, LeasewayError
    from leaseway.sdk.calls.recovery import WAITS
    from leaseway.telemetry.tracing import configure_telemetry
    from leaseway.wire.advice import Reader, advice_for

    connection.log.configure("cli", default_level="warning")
    if connection.log.level is None:
        logging.getLogger(WAITS).setLevel(logging.INFO)  # a silent wait looks like a fault
    telemetry = configure_telemetry("leaseway-cli")

    async def run() -> T:
        async with connect(connection, agent, user) as client:
            return await function(client)

    try:
        return asyncio.run(run())
    except LeasewayError as error:
        advice = advice_for(Reader.TERMINAL, error.metadata)
        status = UNREACHABLE if isinstance(error, ControlPlaneUnavailable) else FAILED
        raise CliFailure(f"{error}{advice}", status) from None
    finally:
        telemetry.shutdown(_FLUSH)
