"""The instances of one worker as it reports them: all of them once, then only what changes.

What placement and listings ask (spares, shared instances, failed starts, the number of live ones)
is counted as instances change, so that an event costs the same with one instance and with 500.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal, NamedTuple, TypeVar, assert_never

from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import MAX_REPORTED_INSTANCES
from leaseway.wire.clients.greeting import ANYONE
from leaseway.wire.messages.states import INSTANCE_STATES, InstanceState

Launched = tuple[VariantKey, str]
"""A variant and one of its launch hashes."""
Offer = tuple[VariantKey, str, str]
"""A launch, and whom a spare of it serves (`Greeting.serves`)."""

_Key = TypeVar("_Key")

Outlook = Literal["starting", "usable", "hanging", "ended", "none"]
"""What callers may expect of an instance, by its state."""


def _outlook(state: InstanceState) -> Outlook:
    match state:
        case "queued" | "starting":
            return "starting"
        case "ready" | "draining":
            return "usable"
        case "disconnected":
            return "hanging"
        case "closed":
            return "ended"
        case "backoff" | "idle":
            return "none"
    assert_never(state)


_OUTLOOKS: Final[Mapping[str, Outlook]] = {state: _outlook(state) for state in INSTANCE_STATES}


class ReportedInstance(NamedTuple):
    """A live MCP client as its worker last reported it, or the state of its failed start.

    A tuple for the reason that `HeldLease` is one.

    `state` is an `InstanceState`, or one that only newer workers know, which counts as usable;
    `next_start_at` is Unix time in seconds, or None; `serves` is whom a ready spare serves.
    """

    id: str
    worker_id: str
    key: VariantKey
    state: str
    lease_id: str = ""
    pid: int = 0
    starts: int = 1
    launch_hash: str = ""
    role: str = ""
    failures: int = 0
    circuit: str = ""
    next_start_at: float | None = None
    serves: tuple[str, ...] = (ANYONE,)

    @property
    def launched(self) -> Launched:
        return self.key, self.launch_hash

    @property
    def outlook(self) -> Outlook:
        return _OUTLOOKS.get(self.state, "usable")

    @property
    def is_live(self) -> bool:
        """Whether the client exists now."""
        return self.outlook not in ("ended", "none")


@dataclass(frozen=True)
class InstanceChanges:
    """Instances that are new or have changed, and those that are gone (None).

    Attributes:
        version: Counts the changes on a stream; those of version 1 are all instances.
        changes: By the keys that the worker gives them.
    """

    version: int
    changes: tuple[tuple[str, ReportedInstance | None], ...]


class Launches(NamedTuple):
    """The launches of a worker's instances by what placement asks.

    Attributes:
        offers: With a ready instance that waits for a lease, and whom it serves.
        shares: With a ready shared instance.
        usable: With either.
        failing: Whose last start failed, without a usable instance.
        unready: With instances that start, hang or have ended, without a usable one.
    """

    offers: frozenset[Offer] = frozenset()
    shares: frozenset[Launched] = frozenset()
    usable: frozenset[Launched] = frozenset()
    failing: Set[Launched] = frozenset()
    unready: Set[Launched] = frozenset()


NO_LAUNCHES: Final = Launches()


class InstanceTable:
    """The instances of one worker.

    Attributes:
        version: The version of the last changes; 0 if the worker has reported none.
        live: The number of live instances.
        launches: What placement asks; a new object only when it changes.
    """

    def __init__(self, instances: Iterable[ReportedInstance] = ()) -> None:
        self._by_key: dict[str, ReportedInstance] = {}
        self._spares: dict[Launched, int] = {}
        self._offers: dict[Offer, int] = {}
        self._shares: dict[Launched, int] = {}
        self._failed: dict[Launched, int] = {}
        self._unready: dict[Launched, int] = {}
        self.version = 0
        self.live = 0
        self.launches = NO_LAUNCHES
        self.replace_all(instances)

    @property
    def all(self) -> Collection[ReportedInstance]:
        """All reported instances, including failed starts."""
        return self._by_key.values()

    def apply(self, changes: InstanceChanges) -> bool:
        """Apply changes; return False, and change nothing, if earlier ones are missing."""
        if changes.version == 1:
            self.replace((key, status) for key, status in changes.changes if status is not None)
        elif changes.version != self.version + 1 or not self.version:
            self.version = 0  # also later changes need the whole state first
            return False
        else:
            for key, instance in changes.changes:
                self._put(key, instance)
            self._settle()
        self.version = changes.version
        return True

    def replace_all(self, instances: Iterable[ReportedInstance]) -> None:
        """Record all instances, as a worker reports them that sends no changes."""
        self.replace(zip(map(str, count()), instances, strict=False))
        self.version = 0

    def replace(self, instances: Iterable[tuple[str, ReportedInstance]]) -> None:
        """Record all instances, by key."""
        wanted = dict(instances)
        for key in [key for key in self._by_key if key not in wanted]:
            self._put(key, None)
        for key, instance in wanted.items():
            self._put(key, instance)
        self._settle()

    def _put(self, key: str, instance: ReportedInstance | None) -> None:
        before = self._by_key.get(key)
        if before is None and len(self._by_key) >= MAX_REPORTED_INSTANCES:
            return
        if before is not None:
            self._count(before, -1)
        if instance is None:
            self._by_key.pop(key, None)
        else:
            self._by_key[key] = instance
            self._count(instance, 1)

    def _count(self, instance: ReportedInstance, step: int) -> None:
        self.live += step * instance.is_live
        launched = instance.launched
        if instance.state == "ready" and instance.role == "spare":
            _add(self._spares, launched, step)
            for served in instance.serves:
                _add(self._offers, (*launched, served), step)
        if instance.state == "ready" and instance.role == "shared":
            _add(self._shares, launched, step)
        if instance.failures:
            _add(self._failed, launched, step)
        if instance.outlook not in ("usable", "none"):
            _add(self._unready, launched, step)

    def _settle(self) -> None:
        offers, shares = frozenset(self._offers), frozenset(self._shares)
        usable = shares | self._spares.keys()
        failing, unready = self._failed.keys() - usable, self._unready.keys() - usable
        launches = Launches(
            offers=offers, shares=shares, usable=usable, failing=failing, unready=unready
        )
        if launches != self.launches:
            self.launches = launches


def _add(counts: dict[_Key, int], key: _Key, step: int) -> None:
    """Change a count; remove it at zero."""
    number = counts.get(key, 0) + step
    if number:
        counts[key] = number
    else:
        counts.pop(key, None)
