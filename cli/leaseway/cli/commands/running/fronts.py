"""Fronts over HTTP from the command line's options: in a process of their own, or in a worker's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import (
    SECONDS,
    check_plane_tls,
    require_key_beyond_loopback,
    with_options,
)
from leaseway.cli.options.front import FrontReach
from leaseway.cli.options.identity import Credentials
from leaseway.wire.channels.endpoint import Endpoint, Endpoints
from leaseway.wire.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from leaseway.front.app import FrontOptions, McpListener

_IDLE = 1800.0


def session_options(command: Any) -> Any:
    """Add the options of whose tools a front serves, and for how long it keeps sessions."""
    return with_options(
        command,
        [
            click.option(
                "--tenant",
                default=DEFAULT_TENANT,
                show_default=True,
                help="The tenant whose tools MCP clients are served.",
            ),
            click.option(
                "--session-idle",
                type=SECONDS,
                default=_IDLE,
                show_default=True,
                help="Seconds after which an unused session of an MCP client ends and its leases "
                "are released.",
            ),
        ],
    )


def check_no_front(tenant: str, session_idle: float, reach: FrontReach) -> None:
    """Check that no option of a front is given, because there is none.

    Raises:
        click.UsageError: One is given.
    """
    arguments = reach.as_arguments()
    if tenant != DEFAULT_TENANT:
        arguments = ["--tenant"]
    if session_idle != _IDLE:
        arguments = ["--session-idle"]
    if arguments:
        raise click.UsageError(f"{arguments[0]} is for MCP clients: add --mcp HOST:PORT.")


@contextmanager
def front_at(
    listen: Endpoint,
    control_planes: Endpoints,
    tenant: str,
    session_idle: float,
    reach: FrontReach,
    credentials: Credentials,
) -> Iterator[tuple[FrontOptions, McpListener]]:
    """Yield the options of a front and its listener, which is open.

    Args:
        listen: Where it listens.
        control_planes: The control planes, of which one leads.
        tenant: The tenant of clients whose credential names none.
        session_idle: Seconds after which an unused session ends.
        reach: Who may reach it, and what it lists.
        credentials: The credentials that it accepts, and its own.

    Raises:
        click.UsageError: It would listen to other machines without a credential.
        CliFailure: It cannot listen.
    """
    check_plane_tls()
    has_credentials = credentials.keys is not None or credentials.identity is not None
    if has_credentials:
        credentials.require_for(listen)
        key = credentials.key
    else:
        key = require_key_beyond_loopback(listen)
    from leaseway.front.app import FrontOptions, McpListener
    from leaseway.front.calling.conversations import SessionOptions
    from leaseway.identity.authenticator import authenticator_for
    from leaseway.identity.principal import Role

    authenticator = credentials.authenticator if has_credentials else None
    if authenticator is not None and authenticator.is_open:
        authenticator = None  # the files contain no credential

    options = FrontOptions(
        control_planes=control_planes.reachable,
        tenant=tenant,
        key=key,
        origins=reach.origins,
        hosts=reach.hosts_at(listen),
        idle=session_idle,
        search=reach.tools == "search",
        media=reach.media,
        handles=reach.handles,
        found_by=SessionOptions(
            reach.sessions_from, reach.session_argument, reach.conversation_keys
        ),
        per_client=reach.sessions_per_client,
        public_url=reach.public_url,
        authenticator=authenticator,
        drain_timeout=reach.drain_timeout,
    )
    checker = authenticator or (authenticator_for(key) if key is not None else None)
    try:
        admit = checker.for_role(Role.CALLER) if checker is not None else None
        listener = McpListener(listen, admit)
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None
    with closing(listener):
        yield options, listener
