"""`leaseway mcp-front` and `leaseway mcp`: tools, prompts and resources for MCP clients."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.running.child_commands import control_plane_command, worker_command
from leaseway.cli.commands.running.child_processes import (
    CONTROL_PLANE_ONLY,
    WORKER_ONLY,
    Child,
)
from leaseway.cli.commands.running.fronts import front_at, session_options
from leaseway.cli.commands.running.processes import (
    control_planes_option,
    exit_with_stdin_option,
    ready_printer,
    run_process,
    uvloop_factory,
)
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import (
    ENDPOINT,
    ConnectionOptions,
    LogOptions,
    check_client_tls,
    client_options,
    examples,
    log_options,
    shared_key,
)
from leaseway.cli.options.config import (
    ConfigOptions,
    ConfiguredCommand,
    existing_sources,
    prefix_option,
)
from leaseway.cli.options.front import (
    FrontReach,
    conversation_keys_option,
    drain_timeout_option,
    front_options,
    handles_option,
    media_option,
    session_argument_option,
    sessions_from_option,
    tools_option,
)
from leaseway.cli.options.identity import IDENTITY_VARIABLES, Credentials, identity_options
from leaseway.cli.options.store import STORE_VARIABLES
from leaseway.cli.options.vault import vault_arguments_option
from leaseway.wire.channels import ancestors
from leaseway.wire.channels.endpoint import Endpoint, Endpoints, parse_endpoint
from leaseway.wire.timing.stop_signals import handle_stop_signals, stop_signals

if TYPE_CHECKING:
    from leaseway.front.calling.media import MediaMode

_HOLD: Final = 8.0
"""Seconds that the handshake waits at most until it is known which servers do not run: most clients
give up after 10 s or more."""
_SHORT_HOLD: Final = 3.0
"""The same without servers of its own, until it is known what the servers say about themselves."""


@click.command(
    "mcp-front",
    epilog=examples(
        "leaseway mcp-front --control-plane 127.0.0.1:7600 --listen 127.0.0.1:7680",
        "LEASEWAY_KEY=... leaseway mcp-front --listen 0.0.0.0:7680 --allow-host mcp.example.com",
    ),
)
@control_planes_option
@click.option(
    "--listen",
    type=ENDPOINT,
    default="127.0.0.1:7680",
    show_default=True,
    help="Where the front listens; port 0 takes any free port.",
)
@session_options
@front_options
@identity_options
@exit_with_stdin_option
@log_options
def mcp_front(
    control_planes: Endpoints,
    listen: Endpoint,
    tenant: str,
    session_idle: float,
    reach: FrontReach,
    credentials: Credentials,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Serve MCP clients over HTTP.

    Tools, prompts and resources are at http://HOST:PORT/mcp, those of one server at /mcp/SERVER.

    It prints `ready HOST:PORT` when it listens. With --keys or --identity, each client sends its
    own credential, which also decides its tenant; the planes must accept the same credentials.
    """
    with front_at(listen, control_planes, tenant, session_idle, reach, credentials) as front:
        options, listener = front
        from leaseway.front.app import run_http

        return run_process(
            "mcp-front",
            "",
            log,
            partial(run_http, options, listener, ready_printer()),
            exit_with_stdin,
            loop_factory=uvloop_factory(),
        )


@click.command(
    cls=ConfiguredCommand,
    epilog=examples(
        "leaseway mcp",
        "leaseway mcp --address 127.0.0.1:7600 --server files",
        "leaseway mcp --config .minds/mcp.yaml",
    ),
)
@click.option(
    "--config",
    "config",
    multiple=True,
    metavar="[LAYER=]PATH",
    help="Run the servers of this configuration until the client exits; repeatable.",
)
@prefix_option
@click.option("--server", default="", help="Serve only this server.")
@tools_option
@media_option
@handles_option
@sessions_from_option
@session_argument_option
@conversation_keys_option
@drain_timeout_option
@vault_arguments_option
@client_options
def mcp(  # noqa: PLR0913 - each is an option of the command
    config: tuple[str, ...],
    prefix: str,
    server: str,
    tools: str,
    media: MediaMode,
    handles: bool,
    sessions_from: tuple[str, ...],
    session_argument: str,
    conversation_keys: tuple[str, ...],
    drain_timeout: float,
    vault: list[str],
    connection: ConnectionOptions,
) -> int:
    """Serve one MCP client over stdin and stdout.

    It serves the tools, prompts and resources of the system at --address. With --config it starts
    a control plane and a worker of its own instead, and stops them at the end.

    Stdout carries only the protocol; log lines are written to stderr.
    """
    for number in stop_signals():
        signal.signal(number, _exit_at_once)
    within: dict[str, str] = {}
    if config:
        sources = existing_sources(config)
        within = ancestors.extended(
            os.environ, _new_token(ancestors.of_files(source.path for source in sources))
        )
    else:
        for control_plane in connection.address.reachable:
            _new_token(ancestors.of_address(control_plane))
    # Redirect other output of this process to stderr: stdout carries only MCP messages.
    output = os.dup(1)
    os.dup2(2, 1)
    from leaseway.front.stdio_handshake import STARTING, HandshakeResponder

    # It answers without the slow imports below, if they take too long.
    hold, instructions = (_HOLD, STARTING) if config else (_SHORT_HOLD, "")
    handshake = HandshakeResponder(0, output, hold, instructions)
    check_client_tls()
    planes = None
    if config:
        Credentials(None, None).share_keys(private=True)
        planes = _running_planes(ConfigOptions(config, prefix), vault, connection.log, within)
    key = shared_key()

    async def run() -> int:
        from leaseway.front.app import FrontOptions, run_stdio
        from leaseway.front.calling.conversations import SessionOptions

        async with AsyncExitStack() as stack:
            control_planes = connection.address.reachable
            if planes is not None:
                control_planes = Endpoints(await stack.enter_async_context(planes))
            options = FrontOptions(
                control_planes,
                connection.tenant,
                key,
                search=tools == "search",
                media=media,
                handles=handles,
                found_by=SessionOptions(sessions_from, session_argument, conversation_keys),
                shows_problems=planes is not None,
                drain_timeout=drain_timeout,
            )
            return await run_stdio(options, server, handshake)

    return run_process("mcp", "", connection.log, lambda: _cancelled_by_signals(run()), False)


def _new_token(token: str) -> str:
    """Return a token, unless this process runs below the Leaseway that it stands for.

    Raises:
        CliFailure: It does.
    """
    if ancestors.contains(os.environ, token):
        raise CliFailure(
            "This `leaseway mcp` was started by a Leaseway that runs the same servers, or is the"
            f" {ancestors.MAX_DEPTH + 1}th one within another: it would start itself for ever."
            " Remove its entry from the configuration of that Leaseway.",
            FAILED,
        )
    return token


def _exit_at_once(_number: int, _frame: object) -> None:
    """Handle a signal that arrives before anything is started."""
    raise SystemExit(0)


async def _cancelled_by_signals(run: Coroutine[Any, Any, int]) -> int:
    """Run a coroutine and cancel it at a signal, until it installs its own handlers."""
    task = asyncio.create_task(run)
    handle_stop_signals(task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
        return 0


@asynccontextmanager
async def _running_planes(
    config: ConfigOptions, vault: list[str], log: LogOptions, within: Mapping[str, str]
) -> AsyncIterator[Endpoint]:
    """Run a control plane and a worker as children; yields the control plane's address.

    Args:
        vault: The worker's vault options.
        within: The mark of processes below this one.
    """

    def control_plane_arguments() -> list[str]:
        return control_plane_command(config, control_plane.address or "127.0.0.1:0", 1, log)

    def worker_arguments() -> list[str]:
        worker_id = f"worker-{secrets.token_hex(4)}"
        return worker_command(parse_endpoint(control_plane.address), worker_id, vault, log)

    # They accept no one else, and the store is that of other planes.
    others = STORE_VARIABLES | IDENTITY_VARIABLES
    control_plane = Child(
        "control plane", control_plane_arguments, within, withheld=WORKER_ONLY | others
    )
    worker = Child("worker", worker_arguments, within, withheld=CONTROL_PLANE_ONLY | others)
    supervisors: list[asyncio.Task[None]] = []
    try:
        for child in (control_plane, worker):
            await child.start()
            supervisors.append(asyncio.create_task(child.supervise()))
        yield parse_endpoint(control_plane.address)
    finally:
        for child in (worker, control_plane):
            await child.stop()
        await asyncio.gather(*supervisors, return_exceptions=True)
