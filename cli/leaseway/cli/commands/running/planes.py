"""`leaseway control-plane` and `leaseway worker`: each runs one process until a signal."""

from __future__ import annotations

import os
import re
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.commands.running.fronts import check_no_front, front_at, session_options
from leaseway.cli.commands.running.processes import (
    control_planes_option,
    exit_with_stdin_option,
    gc_disabled,
    listening_at,
    ready_printer,
    run_process,
    uvloop_factory,
)
from leaseway.cli.options.artifacts import ArtifactOptions, artifact_options
from leaseway.cli.options.audit import AuditOptions, audit_options
from leaseway.cli.options.common import (
    ENDPOINT,
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
    sources_of,
)
from leaseway.cli.options.console import ConsoleOptions, console_options
from leaseway.cli.options.front import FrontReach, front_options
from leaseway.cli.options.identity import Credentials, identity_options
from leaseway.cli.options.store import StoreOptions, store_options
from leaseway.cli.options.vault import vault_option
from leaseway.vault.key import VaultPlace
from leaseway.wire import bounds
from leaseway.wire.channels import ancestors
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, Endpoint, Endpoints

if TYPE_CHECKING:
    from leaseway.control_plane.console.server import ConsoleListener
    from leaseway.control_plane.sync.seal import Seal
    from leaseway.identity.authenticator import RoleCheck

_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ID: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")


def _check_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _ID.fullmatch(value):
        raise click.BadParameter("write 1 to 128 letters, digits, '_', '.', ':', '@' or '-'.")
    return value


def _check_lease(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[str, str] | None:
    if value is None:
        return None
    namespace, slash, name = value.partition("/")
    if not slash or not _DNS.fullmatch(namespace) or not _DNS.fullmatch(name):
        raise click.BadParameter("write NAMESPACE/NAME, each of a-z, 0-9 and '-'.")
    return namespace, name


@click.command(
    cls=ConfiguredCommand,
    epilog=examples("leaseway control-plane --config mcp.yaml --listen 127.0.0.1:7600"),
)
@config_options
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
    help="Number of workers to wait for before it is ready.",
)
@store_options
@identity_options
@click.option(
    "--leader-lease",
    callback=_check_lease,
    metavar="NAMESPACE/NAME",
    help="Lead only while this process holds this Lease of the Kubernetes API.",
)
@click.option(
    "--leader-lease-duration",
    type=click.IntRange(2, 60),
    default=3,
    show_default=True,
    help="Seconds without a renewal after which another control plane may lead.",
)
@click.option(
    "--advertise",
    type=ENDPOINT,
    help="Where others reach this control plane while it leads, if not at --listen.",
)
@metrics_option
@console_options
@exit_with_stdin_option
@log_options
def control_plane(  # noqa: PLR0913 - each is an option of the command
    config: ConfigOptions,
    listen: Endpoint,
    expect_workers: int,
    store: StoreOptions,
    credentials: Credentials,
    leader_lease: tuple[str, str] | None,
    leader_lease_duration: int,
    advertise: Endpoint | None,
    metrics: Endpoint | None,
    console: ConsoleOptions,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Run a control plane.

    It watches the configuration, lets workers probe servers, and places leases. It prints
    `ready ADDRESS` when it listens, then `metrics URL` and `console URL` if it serves them.
    """
    check_plane_tls()
    credentials.require_for(listen)
    with gc_disabled():
        from leaseway.control_plane.app import ControlPlaneOptions, LeaderLease, run
        from leaseway.identity.principal import SEES_ALL
        from leaseway.telemetry.prometheus_http import MetricsListener

    sources = sources_of(config.words, config.prefix)
    with (
        listening_at(MetricsListener, metrics, credentials, *SEES_ALL) as metrics_listener,
        listening_at(
            partial(_open_console, console.url), console.listen, credentials, *SEES_ALL
        ) as console_listener,
    ):
        options = ControlPlaneOptions(
            config=sources,
            listen=listen,
            key=credentials.key,
            authenticator=credentials.authenticator,
            expect_workers=expect_workers,
            metrics=metrics_listener,
            console=console_listener,
            seal=_find_seal(),
            lease=None
            if leader_lease is None
            else LeaderLease(*leader_lease, leader_lease_duration, advertise),
            data=store.data,
            store=store.dsn,
        )
        return run_process(
            "control-plane",
            "",
            log,
            partial(run, options, ready=ready_printer(metrics_listener, console_listener)),
            exit_with_stdin,
        )


@click.command()
@control_planes_option
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
    help="Where callers reach this worker, if not at --listen; port 0 means the port of --listen.",
)
@click.option(
    "--id",
    "worker_id",
    callback=_check_id,
    help="The worker's name, stable over restarts; else the host name.",
)
@click.option(
    "--capacity",
    type=click.IntRange(0, 100_000),
    default=bounds.MAX_LEASES,
    show_default=True,
    help="The maximum number of leases.",
)
@click.option(
    "--concurrent-starts",
    type=click.IntRange(1, 100_000),
    help="How many processes of servers may start at the same time; further ones wait for their"
    f" turn. Else {bounds.STARTS_PER_CORE} for each processor that the worker may use.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="A label of the worker; repeatable.",
)
@click.option(
    "--servers",
    "servers",
    multiple=True,
    metavar="PATTERN",
    help="Servers that the worker may run: an id, or a pattern with *; repeatable. Else all servers"
    " whose worker_labels it has.",
)
@click.option(
    "--mcp",
    type=ENDPOINT,
    help="Also serve MCP clients at http://HOST:PORT/mcp; calls of this worker's servers need no"
    " connection then. Port 0 takes any free port.",
)
@session_options
@front_options
@vault_option
@artifact_options
@click.option(
    "--recent-calls",
    type=click.IntRange(0, 100_000),
    default=1_000,
    show_default=True,
    help="How many calls, and how many failed calls, to keep for `trace`; 0 keeps none.",
)
@identity_options
@audit_options
@metrics_option
@click.option(
    "--own-path",
    "own_paths",
    type=click.Path(path_type=Path),
    multiple=True,
    hidden=True,
    help="A file of another process of `up`, which no sandboxed server may see.",
)
@click.option(
    "--starter",
    type=int,
    hidden=True,
    help="The process id of the `up` that runs it, whose processes may share its cgroup.",
)
@exit_with_stdin_option
@log_options
def worker(  # noqa: PLR0913 - each is an option of the command
    control_planes: Endpoints,
    listen: Endpoint,
    advertise: Endpoint | None,
    worker_id: str | None,
    capacity: int,
    concurrent_starts: int | None,
    labels: tuple[str, ...],
    servers: tuple[str, ...],
    mcp: Endpoint | None,
    tenant: str,
    session_idle: float,
    reach: FrontReach,
    vault: VaultPlace,
    artifacts: ArtifactOptions,
    credentials: Credentials,
    recent_calls: int,
    audit: AuditOptions,
    metrics: Endpoint | None,
    own_paths: tuple[Path, ...],
    starter: int | None,
    exit_with_stdin: bool,
    log: LogOptions,
) -> int:
    """Run a worker.

    It runs MCP servers and executes calls. It prints `ready ADDRESS` when it listens, then
    `metrics URL`, `artifacts URL` and `mcp URL` if it serves them.
    """
    check_plane_tls()
    credentials.require_for(listen)
    if mcp is None:
        check_no_front(tenant, session_idle, reach)
    for address in control_planes:
        os.environ.update(ancestors.extended(os.environ, ancestors.of_address(address.reachable)))
    with gc_disabled():
        from leaseway.data_plane.app import run
        from leaseway.data_plane.audit.backlog import Policy
        from leaseway.data_plane.core.artifacts.index import ArtifactLimits
        from leaseway.data_plane.worker import AuditSink, WorkerOptions
        from leaseway.identity.principal import SEES_ALL, Role
        from leaseway.telemetry.http_listener import ArtifactsListener
        from leaseway.telemetry.prometheus_http import MetricsListener

    with (
        listening_at(MetricsListener, metrics, credentials, *SEES_ALL) as metrics_listener,
        listening_at(
            ArtifactsListener, artifacts.http, credentials, Role.CALLER
        ) as artifacts_listener,
        ExitStack() as fronts,
    ):
        front, mcp_listener = None, None
        if mcp is not None:
            from leaseway.front.app import WorkerFront

            how, mcp_listener = fronts.enter_context(
                front_at(mcp, control_planes, tenant, session_idle, reach, credentials)
            )
            front = WorkerFront(how, mcp_listener)
        options = WorkerOptions(
            control_planes=control_planes,
            listen=listen,
            advertise=advertise,
            id=worker_id or socket.gethostname(),
            capacity=capacity,
            concurrent_starts=concurrent_starts,
            key=credentials.key,
            worker_key=credentials.worker_key,
            authenticator=credentials.authenticator,
            labels=_labels(labels),
            servers=servers,
            vault=vault,
            metrics=metrics_listener,
            artifacts=artifacts.folder,
            retention=ArtifactLimits(artifacts.age, artifacts.space),
            artifacts_http=artifacts_listener,
            recent_calls=recent_calls,
            audit=audit.folder,
            audit_sink=(
                AuditSink(audit.sink, Policy(audit.policy), audit.space)
                if audit.sink is not None
                else None
            ),
            own_paths=(*own_paths, *credentials.files, *log.files),
            starter=starter,
            front=front,
        )
        return run_process(
            "worker",
            options.id,
            log,
            partial(
                run,
                options,
                ready=ready_printer(metrics_listener, artifacts_listener, mcp_listener),
            ),
            exit_with_stdin,
            loop_factory=uvloop_factory(),
        )


def _find_seal() -> Seal:
    """Return the seal, which signs the state that workers return after a restart.

    Raises:
        click.UsageError: Its key is too short.
    """
    from leaseway.control_plane.sync.seal import find_seal

    try:
        return find_seal(os.environ, Path.home() / ".leaseway" / "seal.key")
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _open_console(url: str, endpoint: Endpoint, admit: RoleCheck | None) -> ConsoleListener:
    from leaseway.control_plane.console.server import ConsoleListener

    return ConsoleListener(endpoint, admit, url)


def _labels(words: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--label {word} is not KEY=VALUE.")
        labels[key] = value
    return labels
