"""`leaseway up`: a control plane and its workers as child processes of one command."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

from leaseway.cli.commands.operating.status import say_how_many_are_up, wait_until_ready
from leaseway.cli.commands.running.child_processes import Child
from leaseway.cli.errors import USAGE, CliFailure
from leaseway.cli.options.artifacts import ArtifactOptions, artifact_options
from leaseway.cli.options.common import (
    ENDPOINT,
    Connection,
    LogOptions,
    audit_option,
    console_option,
    examples,
    log_options,
    metrics_option,
)
from leaseway.cli.options.config import (
    ConfiguredCommand,
    config_option,
    prefix_option,
    startable_sources,
)
from leaseway.cli.options.connection import connect
from leaseway.cli.options.front import FrontReach, front_options
from leaseway.cli.options.identity import Credentials, identity_options
from leaseway.cli.options.vault import vault_words
from leaseway.cli.output.tables import say
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint, parse_endpoint
from leaseway.wire.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

_LAST_PORT: Final = 65_535
_LOOK_AGAIN: Final = 2.0  # seconds between two looks at which servers are up

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Options:
    config: tuple[str, ...]
    prefix: str
    workers: int
    listen: Endpoint
    advertise: str
    trace_file: Path | None
    metrics: Endpoint | None
    console: Endpoint | None
    capacity: int
    vault: list[str]
    artifacts: ArtifactOptions
    mcp: Endpoint | None
    reach: FrontReach
    credentials: Credentials
    audit: Path | None
    log: LogOptions


@click.command(
    cls=ConfiguredCommand,
    epilog=examples(
        "leaseway up",
        "leaseway up --config mcp.json --workers 2 --trace-file trace.jsonl",
    ),
)
@config_option
@prefix_option
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
    help="Where the control plane listens; workers take free ports of the same host.",
)
@click.option("--advertise", metavar="HOST", help="The host that callers reach workers at.")
@click.option(
    "--capacity",
    type=click.IntRange(0, 100_000),
    default=bounds.MAX_LEASES,
    show_default=True,
    help="The most leases of each worker.",
)
@click.option(
    "--trace-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Collect the spans of all processes in this file, one JSON object a line.",
)
@click.option(
    "--mcp",
    type=ENDPOINT,
    help="Serve MCP clients at http://HOST:PORT/mcp, too; port 0 takes any free port.",
)
@front_options
@metrics_option
@console_option
@vault_words
@artifact_options
@identity_options
@audit_option
@log_options
def up(
    config: tuple[str, ...],
    prefix: str,
    workers: int,
    listen: Endpoint,
    advertise: str | None,
    capacity: int,
    trace_file: Path | None,
    metrics: Endpoint | None,
    console: Endpoint | None,
    vault: list[str],
    artifacts: ArtifactOptions,
    mcp: Endpoint | None,
    reach: FrontReach,
    credentials: Credentials,
    audit: Path | None,
    log: LogOptions,
) -> int:
    """Run a control plane and workers until Ctrl-C.

    Prints `ready ADDRESS` once every server's first probe has ended. With --metrics the control
    plane serves its metrics at that port and each worker at one of the next; `metrics URL NAME`
    says so for each. With --artifacts-http the first worker serves artifacts at that port and the
    others at the next; `artifacts URL NAME` says so. With --mcp a front serves MCP clients;
    `mcp URL front` says so. With --console the control plane serves a page for operators;
    `console URL` says where.
    """
    credentials.require_for(listen)
    if mcp is not None:
        credentials.require_for(mcp)
    elif given := reach.as_arguments():
        raise click.UsageError(f"{given[0]} is about MCP clients: add --mcp HOST:PORT.")
    _check_ports("--metrics", metrics, workers, credentials)
    _check_ports("--artifacts-http", artifacts.http, workers - 1, credentials)
    credentials.share_keys()
    startable_sources(config)
    if listen.is_wildcard and not advertise:
        raise click.UsageError(
            f"Workers that listen on all addresses ({listen.host}) must say at which one callers "
            f"reach them: add --advertise HOST."
        )
    log.configure("up")
    options = _Options(
        config,
        prefix,
        workers,
        listen,
        advertise or "",
        trace_file,
        metrics,
        console,
        capacity,
        vault,
        artifacts,
        mcp,
        reach,
        credentials,
        audit,
        log,
    )
    return asyncio.run(_Up(options).run())


def _check_ports(option: str, first: Endpoint | None, more: int, credentials: Credentials) -> None:
    if first is None:
        return
    credentials.require_for(first)
    if first.port and first.port + more > _LAST_PORT:
        raise click.UsageError(
            f"{option} {first} leaves no ports for {more} workers: they take the ones after "
            f"it, up to {_LAST_PORT}. Choose a smaller port."
        )


class _Up:
    """Owns the children, the trace collector and the signals of one `up`."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._environment: dict[str, str] = {}
        self._starts: Counter[str] = Counter()
        self._control_plane = Child(
            "control plane", self._control_plane_arguments, self._environment
        )
        self._workers = [
            Child(
                f"worker worker-{number}",
                partial(self._worker_arguments, number),
                self._environment,
            )
            for number in range(1, options.workers + 1)
        ]
        self._fronts = (
            [Child("front", self._front_arguments, self._environment)]
            if options.mcp is not None
            else []
        )

    async def run(self) -> int:
        """Run until a signal or a failure that no restart mends; leave no process behind."""
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
        except* CliFailure as failures:
            raise failures.exceptions[0] from None

    async def _report_ready(self) -> None:
        from leaseway.sdk import LeasewayError

        address = parse_endpoint(self._control_plane.address)
        connection = Connection(address.reachable, DEFAULT_TENANT, self._options.log)
        told: set[tuple[str, ...]] = set()
        try:
            async with connect(connection) as client:
                status = await wait_until_ready(
                    client, lambda _status: _tell_problems(client, told)
                )
                say(f"ready {address}")
                self._announce_pages()
                say_how_many_are_up(status)
                await _announce_recoveries(client)
        except LeasewayError as error:
            raise CliFailure(str(error)) from None

    def _announce_pages(self) -> None:
        if "console" in self._control_plane.pages:
            say(f"console {self._control_plane.pages['console']}")
        for noun in ("metrics", "artifacts"):
            for child in (self._control_plane, *self._workers):
                if noun in child.pages:
                    name = child.name.removeprefix("worker ").replace(" ", "-")
                    say(f"{noun} {child.pages[noun]} {name}")
        for front in self._fronts:
            say(f"mcp http://{front.address}/mcp {front.name}")

    def _control_plane_arguments(self) -> list[str]:
        # A restarted control plane must be where its workers and callers know it.
        listen = self._control_plane.address or str(self._options.listen)
        return [
            "control-plane",
            *(word for path in self._options.config for word in ("--config", path)),
            *("--prefix", self._options.prefix),
            *("--listen", listen),
            *("--expect-workers", str(self._options.workers)),
            *self._metrics_arguments(0, self._control_plane),
            *_page_arguments(
                "--console", self._options.console, 0, self._control_plane.pages.get("console", "")
            ),
            *self._options.credentials.as_arguments(),
            "--exit-with-stdin",
            *self._options.log.as_arguments(),
        ]

    def _worker_arguments(self, number: int) -> list[str]:
        worker_id = f"worker-{number}"
        host, advertise = self._options.listen.host, self._options.advertise
        self._starts[worker_id] += 1
        starts = self._starts[worker_id]
        # The control plane refuses another run of an id until the first has been gone for 10 s,
        # since it might still live. This one is known to be dead, so its successor need not wait.
        name = worker_id if starts == 1 else f"{worker_id}-{starts}"
        return [
            "worker",
            *("--control-plane", str(parse_endpoint(self._control_plane.address).reachable)),
            *("--listen", str(Endpoint(host, 0))),
            *(("--advertise", str(Endpoint(advertise, 0))) if advertise else ()),
            *("--id", name),
            *("--capacity", str(self._options.capacity)),
            *self._metrics_arguments(number, self._workers[number - 1]),
            *self._artifacts_arguments(number),
            *self._options.vault,
            *(("--audit", str(self._options.audit)) if self._options.audit else ()),
            *self._options.credentials.as_arguments(),
            "--exit-with-stdin",
            *self._options.log.as_arguments(),
        ]

    def _front_arguments(self) -> list[str]:
        # A restarted front must be where its clients know it.
        listen = self._fronts[0].address or str(self._options.mcp)
        return [
            "mcp-front",
            *("--control-plane", str(parse_endpoint(self._control_plane.address).reachable)),
            *("--listen", listen),
            *self._options.reach.as_arguments(),
            *self._options.credentials.as_arguments(),
            "--exit-with-stdin",
            *self._options.log.as_arguments(),
        ]

    def _metrics_arguments(self, number: int, child: Child) -> list[str]:
        served = child.pages.get("metrics", "")
        return _page_arguments("--metrics", self._options.metrics, number, served)

    def _artifacts_arguments(self, number: int) -> list[str]:
        served = self._workers[number - 1].pages.get("artifacts", "")
        options = self._options.artifacts
        pages = _page_arguments("--artifacts-http", options.http, number - 1, served)
        return [*options.as_arguments(), *pages]

    async def _collect_traces(self, stack: AsyncExitStack, path: Path) -> None:
        from leaseway.telemetry.trace_file import SPAN_HEADER, TraceCollector, otlp_environment

        token = secrets.token_urlsafe(24)

        try:
            collector = await stack.enter_async_context(TraceCollector(path, token=token))
        except OSError as error:
            raise CliFailure(
                f"The trace file {path} cannot be written: {error.strerror}.", USAGE
            ) from None
        self._environment.update(otlp_environment(collector.endpoint, token))
        say(
            f"leaseway: Spans go to {path}. Your own process adds its spans with "
            f"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_ENDPOINT=http://{collector.endpoint} "
            f"OTEL_EXPORTER_OTLP_HEADERS={SPAN_HEADER}={token}",
            err=True,
        )

    async def _stop(self) -> None:
        # Callers first, then workers: while they finish their calls, the control plane can answer.
        await asyncio.gather(*(front.stop() for front in self._fronts))
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        await self._control_plane.stop()

    @asynccontextmanager
    async def _signals(self) -> AsyncIterator[asyncio.Event]:
        """Give an event that the first SIGINT or SIGTERM sets; the second one kills."""
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def on_signal() -> None:
            if stopped.is_set():
                _logger.warning("Told twice to stop: everything is killed.")
                for child in (*self._fronts, *self._workers, self._control_plane):
                    child.kill()
            stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        try:
            yield stopped
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def _tell_problems(client: AsyncClient, told: set[tuple[str, ...]]) -> None:
    """Print each open problem on stderr, once."""
    for problem in reversed(await client.problems()):
        identity = (problem.scope, problem.server_id, problem.message)
        if identity not in told:
            told.add(identity)
            said = f"leaseway: {problem.severity}: {problem.message}"
            say(said, err=True)


async def _announce_recoveries(client: AsyncClient) -> None:
    """Say on stderr which servers that were not up have come up, until cancelled."""
    from leaseway.sdk import LeasewayError

    down: set[str] = set()
    while True:
        try:
            states = {server.id: server.state for server in await client.servers()}
        except LeasewayError:  # its log says why; it is started again
            states = dict.fromkeys(down, "")
        up = {each for each, state in states.items() if state in ("ready", "degraded")}
        for server_id in sorted(down & up):
            say(f"leaseway: server {server_id} is up", err=True)
        down = states.keys() - up
        await asyncio.sleep(_LOOK_AGAIN)


def _page_arguments(option: str, first: Endpoint | None, number: int, served: str) -> list[str]:
    """Return where a child serves pages: at the number-th port from the first; 0 is any port.

    A successor serves where pages are known to be, also where the system chose the port.
    """
    if served:
        return [option, urlsplit(served).netloc]
    if first is None:
        return []
    port = first.port + number if first.port else 0
    return [option, str(Endpoint(first.host, port))]
