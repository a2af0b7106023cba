"""`leaseway up`: runs a control plane and workers as child processes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from leaseway.cli.commands.operating.status import print_servers_down, wait_until_ready
from leaseway.cli.commands.running.child_commands import (
    control_plane_command,
    front_command,
    worker_command,
)
from leaseway.cli.commands.running.child_processes import (
    CONTROL_PLANE_ONLY,
    STOP_TIMEOUT,
    WORKER_ONLY,
    Child,
)
from leaseway.cli.errors import USAGE, CliFailure
from leaseway.cli.options.artifacts import ArtifactOptions, artifact_options
from leaseway.cli.options.audit import AuditOptions, audit_options
from leaseway.cli.options.common import (
    ENDPOINT,
    ConnectionOptions,
    LogOptions,
    check_plane_tls,
    examples,
    log_options,
    metrics_option,
)
from leaseway.cli.options.config import (
    ConfigOptions,
    ConfiguredCommand,
    config_options,
    startable_sources,
)
from leaseway.cli.options.connection import connect
from leaseway.cli.options.console import ConsoleOptions, console_options
from leaseway.cli.options.front import FrontReach, front_options
from leaseway.cli.options.identity import Credentials, identity_options
from leaseway.cli.options.store import StoreOptions, store_options
from leaseway.cli.options.vault import vault_arguments_option
from leaseway.cli.output.tables import say
from leaseway.telemetry.logs import unwaiting
from leaseway.wire import bounds
from leaseway.wire.channels import ancestors
from leaseway.wire.channels.auth import WORKER_KEY_VARIABLE
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint, Endpoints, parse_endpoint
from leaseway.wire.timing.stop_signals import handle_stop_signals

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

_LAST_PORT: Final = 65_535
_POLL: Final = 2.0  # seconds between polls of the servers' states
_FRONT_GRACE: Final = 5.0  # seconds that a front may take after its requests

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Options:
    config: ConfigOptions
    workers: int
    listen: Endpoint
    advertise: str | None
    trace_file: Path | None
    metrics: Endpoint | None
    console: ConsoleOptions
    capacity: int
    vault: list[str]
    artifacts: ArtifactOptions
    mcp: Endpoint | None
    reach: FrontReach
    store: StoreOptions
    credentials: Credentials
    audit: AuditOptions
    log: LogOptions


@click.command(
    cls=ConfiguredCommand,
    epilog=examples(
        "leaseway up",
        "leaseway up --config mcp.json --workers 2 --trace-file trace.jsonl",
    ),
)
@config_options
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many workers to start.",
)
@click.option(
    "--listen",
    type=ENDPOINT,
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Where the control plane listens; workers use free ports of the same host.",
)
@click.option("--advertise", metavar="HOST", help="The host at which callers reach the workers.")
@click.option(
    "--capacity",
    type=click.IntRange(0, 100_000),
    default=bounds.MAX_LEASES,
    show_default=True,
    help="The maximum number of leases of each worker.",
)
@click.option(
    "--trace-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the spans of all processes to this file, one JSON object per line.",
)
@click.option(
    "--mcp",
    type=ENDPOINT,
    help="Also serve MCP clients at http://HOST:PORT/mcp, in the worker's process if it is the only"
    " one. Port 0 takes any free port.",
)
@front_options
@metrics_option
@console_options
@vault_arguments_option
@artifact_options
@store_options
@identity_options
@audit_options
@log_options
def up(**given: Any) -> int:
    """Run a control plane and workers until Ctrl-C.

    Prints `ready ADDRESS` when every server's first probe has ended. With --metrics the control
    plane serves metrics at that port, and the workers at the following ports; with --artifacts-http
    the workers serve artifacts from that port on. With --mcp MCP clients are served: by the worker,
    or by a front of its own if there are several workers. With --console the control plane serves a
    web page for operators. After `ready` it prints a line for each: `metrics URL NAME`,
    `artifacts URL NAME`, `mcp URL NAME`, `console URL`.
    """
    options = _Options(**given)
    _check(options)
    options.credentials.share_keys()
    sys.stderr = unwaiting(sys.stderr)
    options.log.configure("up")
    return asyncio.run(_Up(options).run())


def _check(options: _Options) -> None:
    credentials, workers, listen = options.credentials, options.workers, options.listen
    check_plane_tls()
    credentials.require_for(listen)
    if options.mcp is not None:
        credentials.require_for(options.mcp)
    elif arguments := options.reach.as_arguments():
        raise click.UsageError(f"{arguments[0]} is for MCP clients: add --mcp HOST:PORT.")
    _check_ports("--metrics", options.metrics, workers, credentials)
    _check_ports("--artifacts-http", options.artifacts.http, workers - 1, credentials)
    if ancestors.contains(os.environ, _own_token(options)):
        raise CliFailure(
            "This `leaseway up` was started by a Leaseway that runs the same servers: it would"
            " start itself for ever. Remove its entry from the configuration."
        )
    if listen.is_wildcard and not options.advertise:
        raise click.UsageError(
            f"The workers listen on all addresses ({listen.host}): add --advertise HOST, the host "
            "at which callers reach them."
        )


def _own_token(options: _Options) -> str:
    return ancestors.of_files(source.path for source in startable_sources(options.config.words))


def _check_ports(option: str, first: Endpoint | None, more: int, credentials: Credentials) -> None:
    if first is None:
        return
    credentials.require_for(first)
    if first.port and first.port + more > _LAST_PORT:
        raise click.UsageError(
            f"{option} {first} leaves no ports for {more} workers, which use the following ports "
            f"up to {_LAST_PORT}. Choose a smaller port."
        )


class _Up:
    """A running `up`: its children, trace collector and signal handlers."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        own = _own_token(options)
        self._environment = ancestors.extended(os.environ, own)
        self._starts: Counter[str] = Counter()
        of_control_plane = CONTROL_PLANE_ONLY | options.store.variables
        self._control_plane = Child(
            "control plane",
            self._control_plane_arguments,
            self._environment,
            withheld=WORKER_ONLY,
        )
        self._workers = [
            Child(
                f"worker worker-{number}",
                partial(self._worker_arguments, number),
                self._environment,
                withheld=of_control_plane,
            )
            for number in range(1, options.workers + 1)
        ]
        # With several workers, none of them is nearer to a client than the others.
        self._has_front = options.mcp is not None and options.workers > 1
        self._fronts = (
            [
                Child(
                    "front",
                    self._front_arguments,
                    self._environment,
                    withheld=of_control_plane | WORKER_ONLY | {WORKER_KEY_VARIABLE},
                )
            ]
            if self._has_front
            else []
        )

    async def run(self) -> int:
        """Run until a signal, or a failure that a restart cannot fix; then stop all children."""
        async with AsyncExitStack() as stack:
            stopped = await stack.enter_async_context(self._signals())
            if self._options.trace_file is not None:
                await self._collect_traces(stack, self._options.trace_file)
            stack.push_async_callback(self._stop)
            serving = asyncio.create_task(self._serve())
            waiting = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
            finally:
                waiting.cancel()
                serving.cancel()
                await asyncio.gather(serving, waiting, return_exceptions=True)
        return 0

    async def _serve(self) -> None:
        await self._control_plane.start()
        try:
            async with asyncio.TaskGroup() as group:
                for child in (*self._workers, *self._fronts):
                    group.create_task(child.start())
            async with asyncio.TaskGroup() as group:
                for child in (self._control_plane, *self._workers, *self._fronts):
                    group.create_task(child.supervise())
                group.create_task(self._report_ready())
        except ExceptionGroup as failures:  # what `except*` raises is a group again
            failed = failures.subgroup(CliFailure)
            if failed is None:
                raise
            raise failed.exceptions[0] from None

    async def _report_ready(self) -> None:
        from leaseway.sdk import LeasewayError

        address = parse_endpoint(self._control_plane.address)
        connection = ConnectionOptions(Endpoints(address.reachable), "", self._options.log)
        printed: set[tuple[str, ...]] = set()
        try:
            async with connect(connection) as client:
                status = await wait_until_ready(
                    client, lambda _status: _print_problems(client, printed)
                )
                say(f"ready {address}")
                self._print_pages()
                print_servers_down(status)
                await _print_recoveries(client)
        except LeasewayError as error:
            raise CliFailure(str(error)) from None

    def _print_pages(self) -> None:
        if "console" in self._control_plane.pages:
            say(f"console {self._control_plane.pages['console']}")
        for noun in ("metrics", "artifacts", "mcp"):
            for child in (self._control_plane, *self._workers):
                if noun in child.pages:
                    name = child.name.removeprefix("worker ").replace(" ", "-")
                    say(f"{noun} {child.pages[noun]} {name}")
        for front in self._fronts:
            say(f"mcp http://{front.address}/mcp {front.name}")

    def _control_plane_arguments(self) -> list[str]:
        options = self._options
        console = self._control_plane.pages.get("console", "")
        return control_plane_command(
            options.config,
            self._control_plane.address or str(options.listen),
            options.workers,
            options.log,
            *self._metrics_arguments(0, self._control_plane),
            *_page_arguments("--console", options.console.listen, 0, console),
            *options.console.as_arguments(),
            *options.store.as_arguments(),
            *options.credentials.as_arguments(),
        )

    def _worker_arguments(self, number: int) -> list[str]:
        options = self._options
        worker_id = f"worker-{number}"
        self._starts[worker_id] += 1
        starts = self._starts[worker_id]
        advertise, trace_file = options.advertise, options.trace_file
        return worker_command(
            parse_endpoint(self._control_plane.address),
            # The control plane refuses a second process with the same id until it knows that the
            # first has ended. Here it has: a new id needs no such proof.
            worker_id if starts == 1 else f"{worker_id}-{starts}",
            options.vault,
            options.log,
            *("--listen", str(Endpoint(options.listen.host, 0))),
            *(("--advertise", str(Endpoint(advertise, 0))) if advertise else ()),
            *("--capacity", str(options.capacity)),
            *self._metrics_arguments(number, self._workers[number - 1]),
            *self._artifacts_arguments(number),
            *self._mcp_arguments(number),
            *options.audit.as_arguments(),
            *(("--own-path", str(trace_file)) if trace_file else ()),
            *options.store.own_paths,
            *options.credentials.as_arguments(),
        )

    def _front_arguments(self) -> list[str]:
        options = self._options
        return front_command(
            parse_endpoint(self._control_plane.address),
            self._fronts[0].address or str(options.mcp),
            options.log,
            *options.reach.as_arguments(),
            *options.credentials.as_arguments(),
        )

    def _metrics_arguments(self, number: int, child: Child) -> list[str]:
        served = child.pages.get("metrics", "")
        return _page_arguments("--metrics", self._options.metrics, number, served)

    def _artifacts_arguments(self, number: int) -> list[str]:
        served = self._workers[number - 1].pages.get("artifacts", "")
        options = self._options.artifacts
        pages = _page_arguments("--artifacts-http", options.http, number - 1, served)
        return [*options.as_arguments(), *pages]

    def _mcp_arguments(self, number: int) -> list[str]:
        if self._has_front or self._options.mcp is None:
            return []
        served = self._workers[number - 1].pages.get("mcp", "")
        pages = _page_arguments("--mcp", self._options.mcp, 0, served)
        return [*pages, *self._options.reach.as_arguments()]

    async def _collect_traces(self, stack: AsyncExitStack, path: Path) -> None:
        from leaseway.telemetry.trace_file import SPAN_HEADER, TraceCollector, otlp_environment

        token = secrets.token_urlsafe(24)

        try:
            collector = await stack.enter_async_context(TraceCollector(path, token=token))
        except OSError as error:
            raise CliFailure(
                f"Can't write the trace file {path}: {error.strerror}.", USAGE
            ) from None
        self._environment.update(otlp_environment(collector.endpoint, token))
        say(
            f"leaseway: Spans are written to {path}. To add the spans of your own process, run it "
            "under opentelemetry-instrument, or set up OpenTelemetry in it, with "
            f"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector.endpoint} "
            f"OTEL_EXPORTER_OTLP_HEADERS={SPAN_HEADER}={token}",
            err=True,
        )

    async def _stop(self) -> None:
        # Fronts first, then workers, which still need the control plane to finish their calls.
        drain_timeout = self._options.reach.drain_timeout
        await asyncio.gather(*(front.stop(drain_timeout + _FRONT_GRACE) for front in self._fronts))
        # A worker that serves MCP clients first finishes their requests, then its calls.
        own_front = 0.0 if self._has_front or self._options.mcp is None else drain_timeout
        await asyncio.gather(*(worker.stop(STOP_TIMEOUT + own_front) for worker in self._workers))
        await self._control_plane.stop()

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[asyncio.Event]:
        """Yield an event that a signal to stop sets. A second signal kills all children."""
        stopped = asyncio.Event()

        def on_signal(_reason: str) -> None:
            if stopped.is_set():
                _logger.warning("Second signal: killing all processes.")
                for child in (*self._fronts, *self._workers, self._control_plane):
                    child.kill()
            stopped.set()

        remove = handle_stop_signals(on_signal)
        try:
            yield stopped
        finally:
            remove()


async def _print_problems(client: AsyncClient, printed: set[tuple[str, ...]]) -> None:
    """Print each open problem on stderr, once."""
    for problem in reversed(await client.problems()):
        identity = (problem.scope, problem.server_id, problem.message)
        if identity not in printed:
            printed.add(identity)
            say(f"leaseway: {problem.severity}: {problem.message}", err=True)


async def _print_recoveries(client: AsyncClient) -> None:
    """Print to stderr which servers have come up again, until cancelled."""
    from leaseway.sdk import LeasewayError

    down: set[str] = set()
    while True:
        try:
            servers = await client.servers(all_tenants=True)
            states = {server.id: server.state.is_up for server in servers}
        except LeasewayError:  # it is restarted, and logs the reason
            states = dict.fromkeys(down, False)
        up = {server_id for server_id, is_up in states.items() if is_up}
        for server_id in sorted(down & up):
            say(f"leaseway: server {server_id} is up", err=True)
        down = states.keys() - up
        await asyncio.sleep(_POLL)


def _page_arguments(option: str, first: Endpoint | None, number: int, served: str) -> list[str]:
    """Return a child's option for pages: the first port plus `number`; port 0 means any free port.

    A restarted child serves at the same URL again (`served`), also if the port was chosen freely.
    """
    if served:
        return [option, urlsplit(served).netloc]
    if first is None:
        return []
    port = first.port + number if first.port else 0
    return [option, str(Endpoint(first.host, port))]
