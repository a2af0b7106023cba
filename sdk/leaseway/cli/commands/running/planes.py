"""`leaseway control-plane` and `leaseway worker`: one process each, until they are told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.artifacts import ArtifactOptions, artifact_options
from leaseway.cli.options.common import (
    ENDPOINT,
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
    sources_of,
)
from leaseway.cli.options.identity import Credentials, identity_options
from leaseway.cli.options.vault import vault_option
from leaseway.cli.output.tables import say
from leaseway.vault.key import VaultPlace
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint

if TYPE_CHECKING:
    from leaseway.control_plane.console.server import ConsoleListener
    from leaseway.control_plane.sync.seal import Seal
    from leaseway.identity.principal import Role
    from leaseway.telemetry.http_listener import Admit, ArtifactsListener, HttpListener
    from leaseway.telemetry.prometheus_http import MetricsListener

Runner = Callable[[], Coroutine[Any, Any, int]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
ListenerT = TypeVar("ListenerT", bound="HttpListener")
_COLLECTIONS = (10_000, 20, 50)
"""How many objects more make Python look for cycles, and how often it looks at older ones.

A call makes few cycles and many objects: at Python's own 700, one part in twenty of a process's
time goes into looking.
"""
_LOADED_AFTER = 5.0
"""Seconds after which what speaks MCP is loaded, to which a collection would give 35 ms."""
_SETTLED_AFTER = 10.0
"""Seconds after which the configuration and the first instances are there to stay."""
_FILE_THREADS = 8
"""How many files are read, names looked up and pages written at once, at most."""

_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ID: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")


def _checked_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _ID.fullmatch(value):
        raise click.BadParameter("write 1 to 128 letters, digits, '_', '.', ':', '@' or '-'.")
    return value


def _checked_lease(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[str, str] | None:
    if value is None:
        return None
    namespace, slash, name = value.partition("/")
    if not slash or not _DNS.fullmatch(namespace) or not _DNS.fullmatch(name):
        raise click.BadParameter("write NAMESPACE/NAME, each of a-z, 0-9 and '-'.")
    return namespace, name


exit_with_stdin_option = click.option(
    "--exit-with-stdin",
    is_flag=True,
    hidden=True,
    help="Stop when stdin closes: how `up` takes its children along when it is killed.",
)


@click.command(
    cls=ConfiguredCommand,
    epilog=examples("leaseway control-plane --config mcp.yaml --listen 127.0.0.1:7600"),
)
@config_option
@prefix_option
@click.option(
    "--listen",
    type=ENDPOINT,
    default=DEFAULT_ADDRESS,
    show_default=True,
    help="Where workers, services and commands reach it; port 0 takes any free port.",
)
@click.option(
    "--expect-workers",
    type=click.IntRange(0, 10_000),
    default=0,
    help="Workers to wait for before calling itself ready.",
)
@identity_options
@click.option(
    "--leader-lease",
    callback=_checked_lease,
    metavar="NAMESPACE/NAME",
    help="Lead only while this process holds that Lease of the Kubernetes API.",
)
@click.option(
    "--leader-lease-duration",
    type=click.IntRange(2, 60),
    default=3,
    show_default=True,
    help="Seconds that a leader may be silent before another takes over.",
)
@click.option(
    "--advertise",
    type=ENDPOINT,
    help="Where others reach this one while it leads, if not at --listen.",
)
@metrics_option
@console_option
@exit_with_stdin_option
@log_options
def control_plane(
    config: tuple[str, ...],
    prefix: str,
    listen: Endpoint,
    expect_workers: int,
    credentials: Credentials,
    leader_lease: tuple[str, str] | None,
    leader_lease_duration: int,
    advertise: Endpoint | None,
    metrics: Endpoint | None,
    console: Endpoint | None,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Run a control plane.

    It watches the configuration, has workers probe servers, and places leases. Prints
    `ready ADDRESS` once it listens, then `metrics URL` and `console URL` where these are served.
    """
    credentials.require_for(listen)
    with _without_collections():
        from leaseway.control_plane.app import ControlPlaneOptions, LeaderLease, run

    sources = sources_of(config, prefix)
    alone = len(sources) == 1 and sources[0].kind == "native"
    with (
        _metrics_listener(metrics, credentials) as listener,
        _console_listener(console, credentials) as page,
    ):
        options = ControlPlaneOptions(
            config=sources[0].path if alone else sources,
            listen=listen,
            key=credentials.key,
            authenticator=credentials.authenticator,
            expect_workers=expect_workers,
            metrics=listener,
            console=page,
            seal=_seal(),
            lease=None
            if leader_lease is None
            else LeaderLease(*leader_lease, leader_lease_duration, advertise),
        )
        return serve(
            "control-plane",
            "",
            log,
            lambda: run(options, ready=_announcer(listener, page)),
            exit_with_stdin,
        )


@click.command()
@click.option(
    "--control-plane",
    "control_planes",
    type=ENDPOINT,
    multiple=True,
    default=(DEFAULT_ADDRESS,),
    show_default=True,
    help="The control plane to join; repeatable where one of several leads.",
)
@click.option(
    "--listen",
    type=ENDPOINT,
    default="127.0.0.1:0",
    show_default=True,
    help="Where callers reach it; port 0 takes any free port.",
)
@click.option(
    "--advertise",
    type=ENDPOINT,
    help="Where callers reach this worker, if not at --listen; port 0 is the port it got.",
)
@click.option(
    "--id",
    "worker_id",
    callback=_checked_id,
    help="The worker's name, stable over restarts; else the host's.",
)
@click.option(
    "--capacity",
    type=click.IntRange(0, 100_000),
    default=bounds.MAX_LEASES,
    show_default=True,
    help="The most leases that it takes.",
)
@click.option(
    "--label", "labels", multiple=True, metavar="KEY=VALUE", help="What it says of itself."
)
@click.option(
    "--servers",
    "servers",
    multiple=True,
    metavar="PATTERN",
    help="The servers that it may run, as an id or with *, repeatable; else any whose"
    " worker_labels it has.",
)
@vault_option
@artifact_options
@click.option(
    "--recent-calls",
    type=click.IntRange(0, 100_000),
    default=1_000,
    show_default=True,
    help="How many calls, and how many failed ones, it remembers for `trace`; 0: none.",
)
@identity_options
@audit_option
@metrics_option
@exit_with_stdin_option
@log_options
def worker(
    control_planes: tuple[Endpoint, ...],
    listen: Endpoint,
    advertise: Endpoint | None,
    worker_id: str | None,
    capacity: int,
    labels: tuple[str, ...],
    servers: tuple[str, ...],
    vault: VaultPlace,
    artifacts: ArtifactOptions,
    credentials: Credentials,
    recent_calls: int,
    audit: Path | None,
    metrics: Endpoint | None,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Run a worker.

    It holds MCP servers and executes calls. Prints `ready ADDRESS` once it listens, then
    `metrics URL` where metrics and `artifacts URL` where artifacts are served.
    """
    credentials.require_for(listen)
    with _without_collections():
        from leaseway.data_plane.app import run
        from leaseway.data_plane.core.artifacts.index import ArtifactLimits
        from leaseway.data_plane.worker import WorkerOptions

    with (
        _metrics_listener(metrics, credentials) as listener,
        _artifacts_listener(artifacts.http, credentials) as pictures,
    ):
        options = WorkerOptions(
            control_plane=control_planes[0],
            standbys=control_planes[1:],
            listen=listen,
            advertise=advertise,
            id=worker_id or socket.gethostname(),
            capacity=capacity,
            key=credentials.key,
            worker_key=credentials.worker_key,
            authenticator=credentials.authenticator,
            labels=_labels(labels),
            servers=servers,
            vault=vault,
            metrics=listener,
            artifacts=artifacts.folder,
            retention=ArtifactLimits(artifacts.age, artifacts.space),
            artifacts_http=pictures,
            recent_calls=recent_calls,
            audit=audit,
        )
        return serve(
            "worker",
            options.id,
            log,
            lambda: run(options, ready=_announcer(listener, pictures)),
            exit_with_stdin,
            loop_factory=uvloop_factory(),
        )


def _seal() -> Seal:
    """Return what signs the state that workers bring back.

    Raises:
        click.UsageError: Its key is too short.
    """
    from leaseway.control_plane.sync.seal import find_seal

    try:
        return find_seal(os.environ, Path.home() / ".leaseway" / "seal.key")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def serve(
    kind: str,
    instance: str,
    log: LogOptions,
    runner: Runner,
    exit_with_stdin: bool,
    loop_factory: LoopFactory | None = None,
) -> int:
    """Run one process of a Leaseway, with its logging and tracing, until it ends."""
    from leaseway.telemetry.tracing import configure_telemetry

    log.configure(f"{kind} {instance}".strip())
    telemetry = configure_telemetry(f"leaseway-{kind}", instance=instance)
    if exit_with_stdin:
        threading.Thread(target=_stop_at_end_of_stdin, name="stdin", daemon=True).start()
    try:
        gc.set_threshold(*_COLLECTIONS)
        gc.freeze()
        with asyncio.Runner(loop_factory=loop_factory) as loop:
            loop.get_loop().set_default_executor(_file_threads())
            # First the modules alone, garbage and all, so that the collection after them is short.
            loop.get_loop().call_later(_LOADED_AFTER, gc.freeze)
            loop.get_loop().call_later(_SETTLED_AFTER, _spare_collections)
            return loop.run(runner())
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None
    finally:
        telemetry.shutdown()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Import without garbage collections: modules stay, and looking costs a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _spare_collections() -> None:
    """Have collections leave out what is there by now."""
    gc.collect(1)
    gc.freeze()


def _file_threads() -> ThreadPoolExecutor:
    """Return the threads for what may block, all of them started.

    The loop's own pool grows as it happens to be used, so that nobody who counts a process's
    threads could tell that growth from a leak.
    """
    threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="files")
    all_run = threading.Barrier(_FILE_THREADS)
    for _ in range(_FILE_THREADS):
        threads.submit(all_run.wait)  # none is idle before the last one runs
    return threads


@contextmanager
def _metrics_listener(
    endpoint: Endpoint | None, credentials: Credentials
) -> Iterator[MetricsListener | None]:
    if endpoint is None:
        yield None
        return
    from leaseway.identity.principal import SEES_ALL
    from leaseway.telemetry.prometheus_http import MetricsListener

    with _listening(MetricsListener, endpoint, credentials, *SEES_ALL) as listener:
        yield listener


@contextmanager
def _console_listener(
    endpoint: Endpoint | None, credentials: Credentials
) -> Iterator[ConsoleListener | None]:
    if endpoint is None:
        yield None
        return
    from leaseway.control_plane.console.server import ConsoleListener
    from leaseway.identity.principal import SEES_ALL

    with _listening(ConsoleListener, endpoint, credentials, *SEES_ALL) as listener:
        yield listener


@contextmanager
def _artifacts_listener(
    endpoint: Endpoint | None, credentials: Credentials
) -> Iterator[ArtifactsListener | None]:
    if endpoint is None:
        yield None
        return
    from leaseway.identity.principal import Role
    from leaseway.telemetry.http_listener import ArtifactsListener

    with _listening(ArtifactsListener, endpoint, credentials, Role.CALLER) as listener:
        yield listener


@contextmanager
def _listening(
    kind: Callable[[Endpoint, Admit | None], ListenerT],
    endpoint: Endpoint,
    credentials: Credentials,
    *roles: Role,
) -> Iterator[ListenerT]:
    credentials.require_for(endpoint)
    authenticator = credentials.authenticator
    try:
        listener = kind(endpoint, None if authenticator.is_open else authenticator.for_role(*roles))
    except OSError as error:
        raise CliFailure(str(error), FAILED) from None
    with closing(listener):
        yield listener


def _announcer(*listeners: HttpListener | None) -> Callable[[str], None]:
    def announce(address: str) -> None:
        say(f"ready {address}")
        for listener in listeners:
            if listener is not None:
                say(f"{listener.noun} {listener.url}")
        sys.stdout.flush()

    return announce


def _stop_at_end_of_stdin() -> None:
    """Send this process SIGTERM when whoever holds the other end of stdin is gone.

    A thread, because it must also work while the loop is busy or has not begun.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _labels(words: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--label {word} is not KEY=VALUE.")
        labels[key] = value
    return labels


def uvloop_factory() -> LoopFactory | None:
    """Return uvloop's loop where it is installed: a worker's calls cost a tenth less with it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
