"""`leaseway mcp-front` and `leaseway mcp`: tools, prompts and resources for MCP clients."""

from __future__ import annotations

import os
import sys
from contextlib import closing

import click

from leaseway.cli.commands.planes import exit_with_stdin_option, serve, uvloop_factory
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import (
    ENDPOINT,
    SECONDS,
    Connection,
    LogOptions,
    client_options,
    examples,
    log_options,
    require_key_beyond_loopback,
    shared_key,
)
from leaseway.wire.endpoint import DEFAULT_ADDRESS, Endpoint
from leaseway.wire.names import DEFAULT_TENANT


@click.command(
    "mcp-front",
    epilog=examples(
        "leaseway mcp-front --control-plane 127.0.0.1:7600 --listen 127.0.0.1:7680",
        "LEASEWAY_KEY=... leaseway mcp-front --listen 0.0.0.0:7680 --allow-host mcp.example.com",
    ),
)
@click.option(
    "--control-plane",
    type=ENDPOINT,
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="The Leaseway whose tools it serves.",
)
@click.option(
    "--listen",
    type=ENDPOINT,
    default="127.0.0.1:7680",
    show_default=True,
    help="Where MCP clients reach it; port 0 takes any free port.",
)
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose tools it serves.")
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="An origin of web pages that may ask, beside those of this machine.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name that clients reach it by, beside those of this machine.",
)
@click.option(
    "--session-idle",
    type=SECONDS,
    default=1800,
    show_default=True,
    help="Seconds after which a session that nobody uses ends, and its leases with it.",
)
@exit_with_stdin_option
@log_options
def mcp_front(
    control_plane: Endpoint,
    listen: Endpoint,
    tenant: str,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    session_idle: float,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Serve MCP clients over HTTP.

    They find tools, prompts and resources at http://HOST:PORT/mcp.

    Prints `ready HOST:PORT` once it listens. /mcp/SERVER serves one server alone.
    """
    key = require_key_beyond_loopback(listen)
    from leaseway.front.app import FrontOptions, McpListener, run_http
    from leaseway.identity.authenticator import authenticator_for
    from leaseway.identity.principal import Role

    options = FrontOptions(control_plane.reachable, tenant, key, origins, hosts, idle=session_idle)
    try:
        admit = authenticator_for(key).for_role(Role.CALLER) if key is not None else None
        listener = McpListener(listen, admit)
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None

    def ready(address: str) -> None:
        click.echo(f"ready {address}")
        sys.stdout.flush()

    with closing(listener):
        return serve(
            "mcp-front",
            "",
            log,
            lambda: run_http(options, listener, ready),
            exit_with_stdin,
            loop_factory=uvloop_factory(),
        )


@click.command(
    epilog=examples("leaseway mcp", "leaseway mcp --address 127.0.0.1:7600 --server files"),
)
@click.option("--server", default="", help="Serve this server alone.")
@client_options
def mcp(server: str, connection: Connection) -> int:
    """Serve one MCP client over stdin and stdout.

    Its tools, prompts and resources are those of a Leaseway that runs.

    Stdout carries the protocol alone; log lines go to stderr.
    """
    from leaseway.front.app import FrontOptions, run_stdio

    options = FrontOptions(connection.address.reachable, connection.tenant, shared_key())
    # Whatever else this process prints must not come between the messages.
    output = os.dup(1)
    os.dup2(2, 1)
    return serve("mcp", "", connection.log, lambda: run_stdio(options, server, output), False)
