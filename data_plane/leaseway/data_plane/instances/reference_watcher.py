"""Follows changes of the vault, referenced files and modules (design.md#reload, local generations).

A changed value is tried first: one new instance starts with it, and a new local generation takes
over only after that start succeeds. Until then the old generation serves with its values. The
control plane sees only the problems.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from leaseway.data_plane.background import DISK_TIMEOUT, DiskScanner
from leaseway.data_plane.core.ports import InstanceRequest
from leaseway.data_plane.core.problems import WorkerProblem, sentence
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.kinds.values import unread_fault
from leaseway.data_plane.kinds.watched import code_files
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.file_stamp import FileStamp, file_stamp

_MISSING: Final = "MISSING_REFERENCE"
_FAILED: Final = "CHANGED_VALUE_FAILED"
_MAX_UNSTARTED: Final = 1024
"""Servers without an instance that are watched; the others are retried when their backoff ends."""
_HANGING: Final[FileStamp] = (-1,)
"""The stamp of a file that does not respond."""

_logger = logging.getLogger(__name__)

Stamps = tuple[str, tuple[FileStamp, ...]]
"""The launch hash, and the stamps of all files that the references are read from."""


@dataclass(frozen=True)
class WatchTiming:
    """Intervals of the watcher, in seconds.

    Attributes:
        poll: Between checks. Mounted and network files send no events, so they are polled.
        debounce: Without a change before changed files are read: a writer may not be finished.
        max_debounce: The same if the files keep changing.
        file_timeout: For one file that does not respond, before the others are checked.
    """

    poll: float = 1.0
    debounce: float = 0.1
    max_debounce: float = 0.5
    file_timeout: float = DISK_TIMEOUT


@dataclass(frozen=True)
class _Resolution:
    """What the references of a variant resolved to, at these stamps."""

    stamps: Stamps
    outcome: ResolvedValues | Fault


@dataclass(frozen=True)
class _Unstarted:
    """A server that is not served, as its probe failed.

    Attributes:
        spec: The server.
        values: What it was started with, or None if a reference was missing.
    """

    spec: ServerSpec
    values: ResolvedValues | None


@dataclass
class _Trial:
    """The start of an instance with changed values, repeated with backoff."""

    values: ResolvedValues
    failures: int = 0
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None


class ReferenceWatcher:
    """Replaces generations whose references resolve to changed values.

    Args:
        pool: The served generations.
        on_replaced: Called when a generation with changed values has taken over.
        vault: Read again when it changes.
        resolve: Resolves the references of a server, or raises a Fault that names the missing ones.
        timing: The intervals.
    """

    def __init__(
        self,
        pool: Pool,
        on_replaced: Callable[[], None],
        vault: WorkerVault,
        resolve: Callable[[ServerSpec], ResolvedValues],
        timing: WatchTiming = WatchTiming(),
    ) -> None:
        self._pool = pool
        self._context = pool.context
        self._on_replaced = on_replaced
        self._vault = vault
        self._resolve = resolve
        self._timing = timing
        self._resolutions: dict[VariantKey, _Resolution] = {}
        self._trials: dict[VariantKey, _Trial] = {}
        self._unstarted: dict[VariantKey, _Unstarted] = {}
        self._context.events.probe_failed.connect(self._add_unstarted)
        self._slots = asyncio.Semaphore(bounds.MAX_PROBES)
        self._scanner = DiskScanner(timing.file_timeout)
        self._stopped = False

    async def run(self) -> None:
        """Check again and again, until `stop`."""
        while not self._stopped:
            await self.check()
            await asyncio.sleep(self._timing.poll)

    def stop(self) -> None:
        """Start no further instances: the worker is shutting down."""
        self._stopped = True
        for key in tuple(self._trials):
            self._cancel_trial(key)

    async def check(self) -> None:
        """Resolve changed references, and start new instances for changed values."""
        served = {
            generation.key: generation.variant.spec for generation in self._pool.current_generations
        }
        for key in self._unstarted.keys() & served.keys():
            del self._unstarted[key]
        watched = served | {key: failed.spec for key, failed in self._unstarted.items()}
        specs = {key: spec for key, spec in watched.items() if _can_change(spec)}
        for key in (self._resolutions.keys() | self._trials.keys()) - specs.keys():
            self._resolutions.pop(key, None)
            self._cancel_trial(key)
        stamps = await self._read_stamps(specs)
        if any(
            key in self._resolutions and self._resolutions[key].stamps != stamp
            for key, stamp in stamps.items()
        ):
            stamps = await self._debounce(specs, stamps)
        fresh = await self._resolve_changed(specs, stamps)
        self._report_vault()
        self._update_unstarted(fresh)
        for generation in tuple(self._pool.current_generations):
            resolution = fresh.get(generation.key)
            if resolution is not None and resolution.stamps[0] == generation.launch_hash:
                self._update_resolution(generation, resolution)
            self._reconcile(generation)

    async def _read_stamps(
        self, specs: Mapping[VariantKey, ServerSpec]
    ) -> dict[VariantKey, Stamps]:
        sources = {key: _sources(spec) + self._modules(key) for key, spec in specs.items()}
        found = await self._scanner.map(self._stamps_of, dict.fromkeys(chain(*sources.values())))
        return {
            key: (
                specs[key].launch_hash,
                tuple(stamp for source in wanted for stamp in found.get(source, (_HANGING,))),
            )
            for key, wanted in sources.items()
        }

    def _modules(self, key: VariantKey) -> list[Path | None]:
        """Return the files that a server's module imported when it was last read."""
        resolution = self._resolutions.get(key)
        values = resolution.outcome if resolution is not None else None
        return [*values.modules] if isinstance(values, ResolvedValues) else []

    def _stamps_of(self, source: Path | None) -> tuple[FileStamp, ...]:
        return self._vault.stamps if source is None else (file_stamp(source),)

    async def _debounce(
        self, specs: Mapping[VariantKey, ServerSpec], stamps: dict[VariantKey, Stamps]
    ) -> dict[VariantKey, Stamps]:
        """Return the stamps once they have not changed for a moment."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timing.max_debounce
        while loop.time() < until:
            before = stamps
            await asyncio.sleep(self._timing.debounce)
            stamps = await self._read_stamps(specs)
            if stamps == before:
                break
        return stamps

    async def _resolve_changed(
        self, specs: Mapping[VariantKey, ServerSpec], stamps: Mapping[VariantKey, Stamps]
    ) -> dict[VariantKey, _Resolution]:
        refreshed = await self._scanner.map(lambda _: self._vault.refresh(), ["the vault"])
        # While the vault is still being read, servers that use it wait for the next check.
        # Otherwise its old secrets would be recorded as those of its new stamps.
        changed = {
            (key, stamp): specs[key]
            for key, stamp in stamps.items()
            if key not in self._resolutions or self._resolutions[key].stamps != stamp
            if refreshed or not _uses_vault(specs[key])
        }
        outcomes = await self._scanner.map(
            lambda change: self._resolve_or_fault(changed[change]), changed
        )
        cause = f"was not read within {self._timing.file_timeout:g} s: check its disk"
        fresh = {}
        for (key, stamp), spec in changed.items():
            outcome = outcomes.get((key, stamp))
            if outcome is None:  # read again when it responds, or is replaced
                fresh[key] = _Resolution((stamp[0], (_HANGING,)), unread_fault(spec, None, cause))
            else:
                fresh[key] = _Resolution(stamp, outcome)
        return fresh

    def _resolve_or_fault(self, spec: ServerSpec) -> ResolvedValues | Fault:
        try:
            return self._resolve(spec)
        except Fault as fault:
            return fault

    def _report_vault(self) -> None:
        error = self._vault.error
        problem = WorkerProblem("worker", "VAULT_UNREADABLE", str(error or ""))
        self._context.reports.set_problem(problem, error is not None)

    def _add_unstarted(self, spec: ServerSpec, values: ResolvedValues | None) -> None:
        if not _can_change(spec):
            return
        if len(self._unstarted) < _MAX_UNSTARTED or spec.key in self._unstarted:
            self._unstarted[spec.key] = _Unstarted(spec, values)
            # Resolve it once more in any case: it may have changed since the probe failed.
            if self._pool.find(spec.key) is None:
                self._resolutions.pop(spec.key, None)

    def _update_unstarted(self, fresh: Mapping[VariantKey, _Resolution]) -> None:
        """Report servers with other values than their probes had, so that they are probed."""
        for key in fresh.keys() & self._unstarted.keys():
            resolution = self._resolutions[key] = fresh[key]
            failed, values = self._unstarted[key], resolution.outcome
            if resolution.stamps[0] != failed.spec.launch_hash or isinstance(values, Fault):
                continue
            if failed.values is None:
                text = f"All references of server {key} resolve now; it is started at once."
                problem = WorkerProblem("server", _MISSING, text, key)
            elif values.differs(failed.values):
                text = (
                    f"A secret, a file or the module of server {key} has changed since it failed."
                )
                problem = WorkerProblem("server", _FAILED, text, key)
            else:
                continue
            del self._unstarted[key]
            self._context.reports.report_cleared(problem)

    def _update_resolution(self, generation: Generation, resolution: _Resolution) -> None:
        """Record a resolution; report one that fails for a server with older values."""
        self._resolutions[generation.key] = resolution
        if isinstance(resolution.outcome, ResolvedValues):
            if generation.instances.resolved_values is not None:
                generation.problems.clear(_MISSING)
            elif generation.is_backing_off:  # its references resolve now: start without backoff
                self._pool.replace(generation)
        elif generation.instances.resolved_values is not None:
            generation.problems.report(
                _MISSING,
                f"{sentence(resolution.outcome.message)} It no longer resolves, so the "
                f"server keeps the values that it was started with. {generation.problems.place}",
            )

    def _reconcile(self, generation: Generation) -> None:
        """Replace a generation whose values are not the newest ones."""
        key, resolution = generation.key, self._resolutions.get(generation.key)
        if resolution is None or resolution.stamps[0] != generation.launch_hash:
            return
        values = resolution.outcome
        if not isinstance(values, ResolvedValues) or not generation.instances.is_behind(values):
            self._cancel_trial(key)
            generation.problems.clear(_FAILED)
        elif not generation.instances:
            self._cancel_trial(key)
            generation.instances.resolved_values = None
            if generation.is_backing_off:
                self._pool.replace(generation)
        else:
            self._try(generation, values)

    def _try(self, generation: Generation, values: ResolvedValues) -> None:
        trial = self._trials.get(generation.key)
        if trial is None or values.differs(trial.values):
            self._cancel_trial(generation.key)
            trial = self._trials[generation.key] = _Trial(values)
        if trial.task is None and asyncio.get_running_loop().time() >= trial.not_before:
            trial.task = self._context.background.spawn(
                self._start_and_swap(generation, trial), f"start {generation.key} with new values"
            )

    def _cancel_trial(self, key: VariantKey) -> None:
        trial = self._trials.pop(key, None)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def _start_and_swap(self, old: Generation, trial: _Trial) -> None:
        context = self._context
        try:
            async with self._slots:
                request = InstanceRequest(
                    old.instances.known_version,
                    trial.values,
                    listed=old.instances.listed,
                )
                live = context.open(old.variant.spec, request=request, awaited=False)
                try:
                    await live.start()
                except Fault as fault:
                    context.stderr_history.add(old.key, live.instance, "did not start")
                    self._record_failure(old, trial, fault)
                else:
                    await self._swap(old, live)
        finally:
            trial.task = None

    def _record_failure(self, old: Generation, trial: _Trial, fault: Fault) -> None:
        delay = old.variant.spec.instances.restart.delay(trial.failures)
        trial.failures += 1
        trial.not_before = asyncio.get_running_loop().time() + delay
        if not old.draining:
            old.problems.report(
                _FAILED,
                f"{sentence(fault.message)} So the new values of its secrets, files or module "
                f"are not in use: it keeps the old ones, and the start is retried. "
                f"{old.problems.place}",
                advice=fault.advice,
            )

    async def _swap(self, old: Generation, live: LiveInstance) -> None:
        if self._stopped or not live.is_ready or not self._pool.replace(old, live):
            await live.close()
            return
        self._on_replaced()
        fresh = self._pool.find(old.key)
        if fresh is not None and live.lists_other(fresh.variant.toolset):
            fresh.on_instance_tools_changed(live)  # an edited module may have other tools
        _logger.info(
            "Server %s was started with its changed secrets, files or module; new calls use it.",
            old.key,
        )


def _sources(spec: ServerSpec) -> list[Path | None]:
    """Return the files that a server refers to or consists of, and None for the vault."""
    values = spec.values.values()
    files: list[Path | None] = [Path(value.text) for value in values if value.kind == "file"]
    files += code_files(spec.part, os.environ)
    return [*files, None] if _uses_vault(spec) else files


def _uses_vault(spec: ServerSpec) -> bool:
    return any(value.kind == "secret" for value in spec.values.values())


def _can_change(spec: ServerSpec) -> bool:
    """Return whether the server's references or module can change while the worker runs."""
    return spec.part.has_code or any(
        value.kind in ("file", "secret") for value in spec.values.values()
    )
