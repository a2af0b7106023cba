"""`leaseway mcp-front` and `leaseway mcp`: tools, prompts and resources for MCP clients."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.running.child_processes import Child
from leaseway.cli.commands.running.planes import exit_with_stdin_option, serve, uvloop_factory
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
from leaseway.cli.options.config import ConfiguredCommand, existing_sources, prefix_option
from leaseway.cli.options.front import (
    FrontReach,
    front_options,
    handles_option,
    media_option,
    tools_option,
)
from leaseway.cli.options.identity import Credentials, identity_options
from leaseway.cli.options.vault import vault_words
from leaseway.cli.output.tables import say
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint, parse_endpoint
from leaseway.wire.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from leaseway.front.calling.media import MediaMode

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


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
    "--session-idle",
    type=SECONDS,
    default=1800,
    show_default=True,
    help="Seconds after which a session that nobody uses ends, and its leases with it.",
)
@front_options
@identity_options
@exit_with_stdin_option
@log_options
def mcp_front(
    control_plane: Endpoint,
    listen: Endpoint,
    tenant: str,
    session_idle: float,
    reach: FrontReach,
    credentials: Credentials,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Serve MCP clients over HTTP.

    They find tools, prompts and resources at http://HOST:PORT/mcp.

    Prints `ready HOST:PORT` once it listens. /mcp/SERVER serves one server alone. With --keys or
    --identity each client sends a credential of its own, and is served as its tenant; the planes
    take the same ones.
    """
    own = credentials.keys is not None or credentials.identity is not None
    if own:
        credentials.require_for(listen)
        key = credentials.key
    else:
        key = require_key_beyond_loopback(listen)
    from leaseway.front.app import FrontOptions, McpListener, run_http
    from leaseway.identity.authenticator import authenticator_for
    from leaseway.identity.principal import Role

    authenticator = credentials.authenticator if own else None
    if authenticator is not None and authenticator.is_open:
        authenticator = None  # the files name no credential, so that nobody is known by one

    options = FrontOptions(
        control_plane.reachable,
        tenant,
        key,
        reach.origins,
        reach.hosts_at(listen),
        idle=session_idle,
        search=reach.search,
        media=reach.media,
        handles=reach.handles,
        public_url=reach.public_url,
        authenticator=authenticator,
    )
    checks = authenticator or (authenticator_for(key) if key is not None else None)
    try:
        admit = checks.for_role(Role.CALLER) if checks is not None else None
        listener = McpListener(listen, admit)
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None

    def ready(address: str) -> None:
        say(f"ready {address}")
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
    help="Run these servers itself, in a Leaseway that ends with it; repeatable.",
)
@prefix_option
@click.option("--server", default="", help="Serve this server alone.")
@tools_option
@media_option
@handles_option
@vault_words
@client_options
def mcp(
    config: tuple[str, ...],
    prefix: str,
    server: str,
    tools: str,
    media: MediaMode,
    handles: bool,
    vault: list[str],
    connection: Connection,
) -> int:
    """Serve one MCP client over stdin and stdout.

    Its tools, prompts and resources are those of a Leaseway that runs, at --address, or with
    --config of one that this command starts and ends.

    Stdout carries the protocol alone; log lines go to stderr.
    """
    for number in _STOPS:
        signal.signal(number, _end_at_once)
    if config:
        existing_sources(config)
    # Whatever else this process prints must not come between the messages.
    output = os.dup(1)
    os.dup2(2, 1)
    from leaseway.front.handshake import HandshakeResponder

    handshake = HandshakeResponder(0, output)  # what comes next takes longer than some clients wait
    key = shared_key()
    own = _Planes(config, prefix, vault, connection.log) if config else None

    async def run() -> int:
        from leaseway.front.app import FrontOptions, run_stdio

        async with AsyncExitStack() as stack:
            address = connection.address.reachable
            if own is not None:
                address = await stack.enter_async_context(own.running())
            options = FrontOptions(
                address,
                connection.tenant,
                key,
                search=tools == "search",
                media=media,
                handles=handles,
                shows_problems=own is not None,
            )
            return await run_stdio(options, server, handshake)

    return serve("mcp", "", connection.log, lambda: _ended_by_signals(run()), False)


def _end_at_once(_number: int, _frame: object) -> None:
    """End while nothing is there yet that would have to be ended."""
    raise SystemExit(0)


async def _ended_by_signals(serving: Coroutine[Any, Any, int]) -> int:
    """Run what heeds signals only once it serves; one that comes before ends it, too."""
    task = asyncio.create_task(serving)
    loop = asyncio.get_running_loop()
    for number in _STOPS:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
        return 0


class _Planes:
    """A control plane and a worker that end with this process.

    Args:
        config: The words of `--config`.
        prefix: That of `--prefix`.
        vault: The options that name the vault.
        log: Where their log lines go.
    """

    def __init__(
        self, config: tuple[str, ...], prefix: str, vault: list[str], log: LogOptions
    ) -> None:
        self._config = config
        self._prefix = prefix
        self._vault = vault
        self._log = log
        self._control_plane = Child("control plane", self._control_plane_arguments, {})
        self._worker = Child("worker", self._worker_arguments, {})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Endpoint]:
        """Run them; gives the control plane's address."""
        children = (self._control_plane, self._worker)
        watching: list[asyncio.Task[None]] = []
        try:
            for child in children:
                await child.start()
            watching = [asyncio.create_task(child.supervise()) for child in children]
            yield parse_endpoint(self._control_plane.address)
        finally:
            for child in reversed(children):
                await child.stop()
            await asyncio.gather(*watching, return_exceptions=True)

    def _control_plane_arguments(self) -> list[str]:
        return [
            "control-plane",
            *(word for path in self._config for word in ("--config", path)),
            *("--prefix", self._prefix),
            *("--listen", self._control_plane.address or "127.0.0.1:0"),
            *("--expect-workers", "1"),
            "--exit-with-stdin",
            *self._log.as_arguments(),
        ]

    def _worker_arguments(self) -> list[str]:
        return [
            "worker",
            *("--control-plane", self._control_plane.address),
            *("--id", f"worker-{secrets.token_hex(4)}"),
            *self._vault,
            "--exit-with-stdin",
            *self._log.as_arguments(),
        ]
