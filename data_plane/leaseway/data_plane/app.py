"""A worker process: connects the concrete classes, and owns the task group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from leaseway.data_plane.artifacts.storage import DirectoryStorage
from leaseway.data_plane.audit.backlog import Backlog
from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable
from leaseway.data_plane.audit.shipping import Shipper
from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.sinks.port import SinkError
from leaseway.data_plane.background import Background
from leaseway.data_plane.kinds.openers import Opener, open_kinds
from leaseway.data_plane.kinds.packages import load_halves
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.data_plane.oauth.caller_tokens import CallerTokens
from leaseway.data_plane.oauth.logins.links import LoginLinks
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.data_plane.oauth.tokens import Tokens
from leaseway.data_plane.references.files import protect
from leaseway.data_plane.references.vault import WorkerVault, sink_settings
from leaseway.data_plane.worker import Shutdown, Surroundings, Worker, WorkerOptions
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import identity_interceptors
from leaseway.telemetry.diagnostics import diagnostics_on_signal
from leaseway.telemetry.logs_otlp import OtlpAudit, otlp_audit
from leaseway.telemetry.setup import run_meter
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore
from leaseway.wire.channels.auth import check_listen
from leaseway.wire.channels.serving import bind, make_server, rpcs_ended
from leaseway.wire.daemon_threads import DaemonThreads
from leaseway.wire.timing.stop_signals import handle_stop_signals

_logger = logging.getLogger(__name__)
_STORAGE_GRACE: Final = 5.0
"""Seconds to wait at shutdown until the artifacts are removed."""
_SHIPPING_GRACE: Final = 10.0
"""Seconds to wait at shutdown until the audit's sink has acknowledged the last records."""


async def run(options: WorkerOptions, *, ready: Callable[[str], None]) -> int:
    """Run a worker until a signal or its control plane stops it; return the exit status.

    Args:
        options: The options.
        ready: Called with the bound HOST:PORT once the worker listens.

    Raises:
        ValueError: It would listen to other machines without a key.
        OSError: The address cannot be used.
    """
    authenticator = options.authenticator or authenticator_for(options.key)
    check_listen(options.listen, None if authenticator.is_open else authenticator)
    # Outside of the task group, so that a taken port is an OSError and not an exception group.
    server = make_server(interceptors=identity_interceptors(authenticator))
    bound = bind(server, options.listen)
    shutdown, callers = Shutdown(), CallerTokens()
    exported = otlp_audit(options.id) if options.audit is not None else None
    # Installed before there is a worker: an unhandled SIGUSR1 would end the process.
    with diagnostics_on_signal() as facts:
        vault = WorkerVault(options.vault)
        await asyncio.to_thread(vault.refresh)
        audit, shipper = _audit(options, exported, vault)
        protect(_own_files(options))
        folders: list[Callable[[], Iterable[str]]] = []
        await asyncio.to_thread(load_halves)
        async with (
            run_meter(options.metrics, "leaseway-worker", instance=options.id) as meter,
            artifact_storage(options.artifacts) as storage,
            _connections(
                options.id,
                vault,
                options.vault,
                callers,
                partial(_all_folders, folders),
                partial(_own_paths, options, storage),
                options.starter,
            ) as (open_instance, logins, links),
            asyncio.TaskGroup() as group,
        ):
            background, worker = Background(group), None
            try:
                background.supervise(authenticator.run, "follow changes of credentials")
                with _signals(shutdown):
                    surroundings = Surroundings(
                        open_instance=open_instance,
                        background=background,
                        shutdown=shutdown,
                        authenticator=authenticator,
                        logins=logins,
                        login_links=links,
                        vault=vault,
                        meter=meter,
                        storage=storage,
                        audit=audit,
                        shipper=shipper,
                        callers=callers,
                    )
                    worker = Worker(options, bound, surroundings)
                    facts.append(worker.state.counts)
                    folders.append(worker.server_folders)
                    authenticator.refusals.refused.connect(worker.records.record_refused_rpc)
                    background.spawn(
                        _load_mcp_after(worker.sync.caught_up, open_instance), "load MCP"
                    )
                    await worker.serve(server, shutdown, partial(ready, str(bound)))
                    await rpcs_ended()
            finally:
                authenticator.refusals.flush()
                if audit is not None:
                    audit.close()
                if shipper is not None:
                    with contextlib.suppress(TimeoutError, AuditUnavailable):
                        await asyncio.wait_for(shipper.finish(), _SHIPPING_GRACE)
                if worker is not None:
                    await worker.sync.leave()
                background.cancel_all()
                if shipper is not None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(shipper.aclose(), _SHIPPING_GRACE)
                if exported is not None:
                    await asyncio.to_thread(exported.close)
    return 0


def _own_paths(options: WorkerOptions, storage: DirectoryStorage) -> Iterator[Path]:
    """Yield the files and folders of Leaseway on this machine, whatever option named them."""
    yield from _own_files(options)
    yield from storage.all_folders()


def _all_folders(folders: list[Callable[[], Iterable[str]]]) -> Iterator[str]:
    for of_part in folders:
        yield from of_part()


def _own_files(options: WorkerOptions) -> Iterator[Path]:
    yield from options.own_paths
    if options.vault is not None:
        yield from (options.vault.path, options.vault.key_file, options.vault.logins)
    yield from (path for path in (options.audit, options.artifacts) if path is not None)


async def _load_mcp_after(caught_up: asyncio.Event, opener: Opener) -> None:
    await caught_up.wait()
    await opener.load()


def _audit(
    options: WorkerOptions, exported: OtlpAudit | None, vault: WorkerVault
) -> tuple[AuditLog | None, Shipper | None]:
    """Open the audit, and what ships it to a sink; None for each that is off.

    Raises:
        OSError: The audit cannot be written, or its sink not be opened.
    """
    if options.audit is None:
        return None, None
    sink, backlog = options.audit_sink, None
    try:
        opened = None
        if sink is not None:
            opened = open_sink(sink.address, sink_settings(os.environ, vault))
            backlog = Backlog(sink.space, sink.policy)
        audit = AuditLog(
            options.audit,
            options.id,
            secrets.token_hex(8),
            time.time,
            on_written=exported.send if exported is not None else None,
            backlog=backlog,
        )
    except (AuditUnavailable, SinkError) as error:
        raise OSError(str(error)) from None
    if opened is None or backlog is None:
        return audit, None
    return audit, Shipper(audit, opened, backlog)


@contextlib.asynccontextmanager
async def artifact_storage(
    base: Path | None, grace: float = _STORAGE_GRACE
) -> AsyncIterator[DirectoryStorage]:
    """Yield a storage for artifacts; they are removed afterwards, unless the disk hangs.

    Args:
        base: The parent folder, or None for the system's folder for temporary files.
        grace: Seconds to wait for their removal.
    """
    storage = await asyncio.to_thread(DirectoryStorage, base)
    try:
        yield storage
    finally:
        try:
            async with asyncio.timeout(grace):
                await DaemonThreads(1).run(storage.close)  # not queued behind work that hangs
        except TimeoutError:
            _logger.warning(
                "The artifacts in %s were not removed: the disk has not responded for %g s. The "
                "next worker with the same parent folder removes them.",
                storage.folder,
                grace,
            )


@contextlib.asynccontextmanager
async def _connections(
    worker_id: str,
    vault: WorkerVault,
    place: VaultPlace | None,
    callers: CallerTokens,
    server_folders: Callable[[], Iterable[str]],
    own_paths: Callable[[], Iterable[Path]],
    starter: int | None,
) -> AsyncIterator[tuple[Opener, Tokens, LoginLinks]]:
    """Yield a factory of instances, and the logins that they use.

    All processes of the instances have exited afterwards.
    """
    async with http_client() as http:
        store = LoginStore(place) if place is not None else None
        sealed, links = SealedTokens(store), LoginLinks(store, worker_id)
        tokens = Tokens(sealed, granted=sealed.granted, callers=callers, links=links)
        host = Host(
            environment=os.environ,
            http=http,
            vault=vault,
            tokens=tokens,
            server_folders=server_folders,
            own_paths=own_paths,
            starter=starter,
        )
        async with open_kinds(host) as kinds:
            try:
                yield Opener(worker_id, host, kinds), tokens, links
            finally:
                sealed.stop()
                await tokens.aclose()


@contextlib.contextmanager
def _signals(shutdown: Shutdown) -> Iterator[None]:
    remove = handle_stop_signals(shutdown.request)
    try:
        yield
    finally:
        remove()
