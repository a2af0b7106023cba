"""Follows changes of the vault, referenced files and modules (DESIGN §3, local generations).

A changed value is tried first: one new instance starts with it, and only when that is up does a
new local generation take over. Until then, and if it fails, the old one serves with the values
that it has. Nothing of this reaches the control plane but problems.
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

from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.references.modules import module_files
from leaseway.data_plane.references.patience import PATIENCE, PatientDisk
from leaseway.data_plane.references.resolve import unread
from leaseway.data_plane.references.vault import Mark, WorkerVault, mark_of
from leaseway.spec.model import ServerSpec, Value, VariantKey
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

_UNREADABLE: Final = "MISSING_REFERENCE"
_MOST_MISSED: Final = 1024
"""Servers that were never up and are looked after; more are tried when their backoff ends."""
_FAILED: Final = "CHANGED_VALUE_FAILED"
_HANGS: Final[Mark] = (-1, -1, -1, -1)
"""The mark of what does not answer."""

_logger = logging.getLogger(__name__)

Marks = tuple[str, tuple[Mark, ...]]
"""The launch hash, and a mark of each thing that its references are read from."""


@dataclass(frozen=True)
class Pace:
    """How long is waited before the next look, in seconds.

    Attributes:
        poll: Where nothing has changed: files that are mounted or on a network send no events.
        quiet: Without a change before what changed is read: a file may be written in pieces.
        quiet_at_most: The same where it changes again and again.
        patience: For one file that does not answer, before the others are looked at without it.
    """

    poll: float = 1.0
    quiet: float = 0.1
    quiet_at_most: float = 0.5
    patience: float = PATIENCE


@dataclass(frozen=True)
class _Seen:
    """What the references of a variant stood for, when its marks were these."""

    marks: Marks
    outcome: ResolvedValues | Fault


@dataclass
class _Trial:
    """How starting a server with changed values goes."""

    resolved_values: ResolvedValues
    failures: int = 0
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None


class ReferenceWatcher:
    """Brings servers up to date with what their references stand for.

    Args:
        pool: What is served.
        on_replaced: Called when a generation with new values has taken over.
        vault: Read again when it changes.
        read: Resolves the references of a server, or raises a Fault that names what is missing.
        pace: How often to look.
    """

    def __init__(
        self,
        pool: Pool,
        on_replaced: Callable[[], None],
        vault: WorkerVault,
        read: Callable[[ServerSpec], ResolvedValues],
        pace: Pace = Pace(),
    ) -> None:
        self._pool = pool
        self._context = pool.context
        self._on_replaced = on_replaced
        self._vault = vault
        self._read = read
        self._pace = pace
        self._seen: dict[VariantKey, _Seen] = {}
        self._trials: dict[VariantKey, _Trial] = {}
        self._missed: dict[VariantKey, ServerSpec] = {}  # what probes failed for; not served
        self._context.hooks.on_reference_missing = self._miss
        self._slots = asyncio.Semaphore(bounds.MAX_PROBES)
        self._disk = PatientDisk(pace.patience)
        self._stopped = False

    async def run(self) -> None:
        """Look again and again, until `stop`."""
        while not self._stopped:
            await self.check()
            await asyncio.sleep(self._pace.poll)

    def stop(self) -> None:
        """Begin nothing new: the worker is leaving."""
        self._stopped = True
        for key in tuple(self._trials):
            self._give_up(key)

    async def check(self) -> None:
        """Read what has changed, and start the servers that use it anew."""
        served = {each.key: each.variant.spec for each in self._pool.current_generations}
        for key in self._missed.keys() & served.keys():
            del self._missed[key]
        specs = {k: spec for k, spec in (served | self._missed).items() if _can_change(spec)}
        for forgotten in (self._seen.keys() | self._trials.keys()) - specs.keys():
            self._seen.pop(forgotten, None)
            self._give_up(forgotten)
        marks = await self._look_at(specs)
        if any(key in self._seen and self._seen[key].marks != at for key, at in marks.items()):
            marks = await self._quiet(specs, marks)
        fresh = await self._read_changed(specs, marks)
        self._tell_of_vault()
        self._find_missed(fresh)
        for generation in tuple(self._pool.current_generations):
            seen = fresh.get(generation.key)
            if seen is not None and seen.marks[0] == generation.launch_hash:
                self._note(generation, seen)
            self._follow(generation)

    async def _look_at(self, specs: Mapping[VariantKey, ServerSpec]) -> dict[VariantKey, Marks]:
        """Return the marks of what each server refers to; what hangs has a mark of its own."""
        sources = {key: _sources(spec) + self._modules(key) for key, spec in specs.items()}
        seen = await self._disk.each(self._marks_of, dict.fromkeys(chain(*sources.values())))
        return {
            key: (
                specs[key].launch_hash,
                tuple(mark for source in wanted for mark in seen.get(source, (_HANGS,))),
            )
            for key, wanted in sources.items()
        }

    def _modules(self, key: VariantKey) -> list[Path | None]:
        """Return the files of what a server's module imports, as the last reading found them."""
        seen = self._seen.get(key)
        resolved_values = seen.outcome if seen is not None else None
        return [*resolved_values.modules] if isinstance(resolved_values, ResolvedValues) else []

    def _marks_of(self, source: Path | None) -> tuple[Mark, ...]:
        return self._vault.marks if source is None else (mark_of(source),)

    async def _quiet(
        self, specs: Mapping[VariantKey, ServerSpec], marks: dict[VariantKey, Marks]
    ) -> dict[VariantKey, Marks]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._pace.quiet_at_most
        while loop.time() < until:
            before = marks
            await asyncio.sleep(self._pace.quiet)
            marks = await self._look_at(specs)
            if marks == before:
                break
        return marks

    async def _read_changed(
        self, specs: Mapping[VariantKey, ServerSpec], marks: Mapping[VariantKey, Marks]
    ) -> dict[VariantKey, _Seen]:
        await self._disk.each(lambda _: self._vault.refresh(), ["the vault"])
        changed = {
            (key, at): specs[key]
            for key, at in marks.items()
            if key not in self._seen or self._seen[key].marks != at
        }
        outcomes = await self._disk.each(lambda each: self._outcome(changed[each]), changed)
        late = f"was not read within {self._pace.patience:g} s: see whether its disk answers"
        fresh = {}
        for (key, at), spec in changed.items():
            outcome = outcomes.get((key, at))
            if outcome is None:  # read again when it answers, or is another file
                fresh[key] = _Seen((at[0], (_HANGS,)), unread(spec, None, late))
            else:
                fresh[key] = _Seen(at, outcome)
        return fresh

    def _outcome(self, spec: ServerSpec) -> ResolvedValues | Fault:
        try:
            return self._read(spec)
        except Fault as fault:
            return fault

    def _tell_of_vault(self) -> None:
        trouble = self._vault.trouble
        problem = WorkerProblem("worker", "VAULT_UNREADABLE", str(trouble or ""))
        if trouble is None:
            self._context.reports.clear_problem(problem)
        else:
            self._context.reports.report_problem(problem)

    def _miss(self, spec: ServerSpec) -> None:
        if len(self._missed) < _MOST_MISSED or spec.key in self._missed:
            self._missed[spec.key] = spec
            # Read once more in any case: it may have come since the probe read it.
            if self._pool.find(spec.key) is None:
                self._seen.pop(spec.key, None)

    def _find_missed(self, fresh: Mapping[VariantKey, _Seen]) -> None:
        """Try at once servers that were never up, where nothing is missing any more."""
        for key in fresh.keys() & self._missed.keys():
            seen = self._seen[key] = fresh[key]
            launch = self._missed[key].launch_hash
            if seen.marks[0] == launch and isinstance(seen.outcome, ResolvedValues):
                del self._missed[key]
                text = f"What server {key} refers to is there; it is tried at once."
                self._context.reports.report_cleared(
                    WorkerProblem("server", _UNREADABLE, text, key)
                )

    def _note(self, generation: Generation, seen: _Seen) -> None:
        """Keep what was read, and tell operators where it is less than the server has."""
        self._seen[generation.key] = seen
        if isinstance(seen.outcome, ResolvedValues):
            if generation.resolved_values is not None:
                generation.mend(_UNREADABLE)
            elif generation.is_backing_off:  # what it waits for is there
                self._pool.replace(generation)
        elif generation.resolved_values is not None:
            generation.report(
                _UNREADABLE,
                f"On worker {self._context.worker_id}, server {generation.key} goes on with the "
                f"values that it was started with, because a reference no longer resolves: "
                f"{seen.outcome.message}",
            )

    def _follow(self, generation: Generation) -> None:
        """Replace a generation that has other values than the newest."""
        key, seen = generation.key, self._seen.get(generation.key)
        if seen is None or seen.marks[0] != generation.launch_hash:
            return
        if not isinstance(seen.outcome, ResolvedValues) or not generation.is_behind(seen.outcome):
            self._give_up(key)
            generation.mend(_FAILED)
        elif generation.is_empty:
            self._give_up(key)
            generation.read_anew()
            if generation.is_backing_off:
                self._pool.replace(generation)
        else:
            self._try(generation, seen.outcome)

    def _try(self, generation: Generation, resolved_values: ResolvedValues) -> None:
        trial = self._trials.get(generation.key)
        if trial is None or resolved_values.differs(trial.resolved_values):
            self._give_up(generation.key)
            trial = self._trials[generation.key] = _Trial(resolved_values)
        if trial.task is None and asyncio.get_running_loop().time() >= trial.not_before:
            trial.task = self._context.background.spawn(
                self._start_and_swap(generation, trial), f"start {generation.key} with new values"
            )

    def _give_up(self, key: VariantKey) -> None:
        trial = self._trials.pop(key, None)
        if trial is not None and trial.task is not None:
            trial.task.cancel()

    async def _start_and_swap(self, old: Generation, trial: _Trial) -> None:
        try:
            async with self._slots:
                spec, known = old.variant.spec, old.known_version
                context = self._context
                live = LiveInstance(
                    context.open_instance, spec, None, known, trial.resolved_values, context.meters
                )
                try:
                    await live.start()
                except Fault as fault:
                    self._context.logs.keep(old.key, live.instance, "did not come up")
                    self._failed(old, trial, fault)
                else:
                    await self._swap(old, live)
        finally:
            trial.task = None

    def _failed(self, old: Generation, trial: _Trial, fault: Fault) -> None:
        delay = old.variant.spec.instances.restart.delay(trial.failures)
        trial.failures += 1
        trial.not_before = asyncio.get_running_loop().time() + delay
        if not old.draining:
            old.report(
                _FAILED,
                f"On worker {self._context.worker_id}, server {old.key} did not start with the "
                f"values that its secrets, files or module have now; it goes on with the old ones "
                f"and is tried again: {fault.message}",
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
    """Return the files that a server refers to or is made of, and None for the vault."""
    values = _values(spec)
    files: list[Path | None] = [Path(value.text) for value in values if value.kind == "file"]
    files += module_files(spec, os.environ)
    return [*files, None] if any(value.kind == "secret" for value in values) else files


def _values(spec: ServerSpec) -> tuple[Value, ...]:
    return tuple(spec.values.values())


def _can_change(spec: ServerSpec) -> bool:
    """Return whether what a server's references are read from can change while the worker runs."""
    refers = any(value.kind in ("file", "secret") for value in _values(spec))
    return refers or spec.transport == "python"
