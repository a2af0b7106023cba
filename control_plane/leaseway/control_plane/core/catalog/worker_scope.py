"""Which servers a worker may be given: its labels meet what a server asks for (DESIGN §5).

A server asks for labels with `worker_labels`, and a worker may name the servers that it takes.
All variants of one server are on the same workers: one that had the common variant only would serve
it to a tenant that has a variant of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.name_filters import matches

NO_MATCHING_WORKER: Final = "NO_MATCHING_WORKER"
"""Workers are there, and none of them may be given the server."""


@dataclass(frozen=True)
class WorkerScope:
    """What decides which servers a worker may be given.

    Attributes:
        labels: What it says of itself, as pairs.
        servers: Patterns over the ids of servers that it takes; none: any.
    """

    labels: frozenset[tuple[str, str]] = frozenset()
    servers: tuple[str, ...] = ()

    @classmethod
    def of(cls, labels: Mapping[str, str], servers: Iterable[str] = ()) -> WorkerScope:
        """Return the scope of a worker with these labels."""
        return cls(frozenset(labels.items()), tuple(servers))

    def accepts(self, spec: ServerSpec) -> bool:
        """Return whether the worker may be given a server."""
        if not spec.worker_labels and not self.servers:
            return True
        return self.accepts_id(spec.key.server_id) and spec.worker_labels.items() <= self.labels

    def accepts_id(self, server_id: str) -> bool:
        """Return whether the worker takes servers of this id, whatever labels they ask for."""
        return not self.servers or any(matches(one, server_id) for one in self.servers)

    def restricted_to(self, asked: frozenset[tuple[str, str]]) -> WorkerScope:
        """Return it with only those labels that any server asks for."""
        return WorkerScope(self.labels & asked, self.servers)


def unplaced(
    specs: Iterable[ServerSpec], scopes: Mapping[str, WorkerScope]
) -> dict[VariantKey, Problem]:
    """Return the servers that no worker may be given, each with what is to be said of it.

    Args:
        specs: What is configured.
        scopes: The workers' by id; while there are none, nothing is said.
    """
    if not scopes:
        return {}
    return {
        spec.key: _problem(spec, scopes)
        for spec in specs
        if not spec.hidden and not any(scope.accepts(spec) for scope in scopes.values())
    }


def _problem(spec: ServerSpec, scopes: Mapping[str, WorkerScope]) -> Problem:
    server_id, labels = spec.key.server_id, sorted(spec.worker_labels.items())
    takers = sum(scope.accepts_id(server_id) for scope in scopes.values())
    if takers:
        wanted = ", ".join(f"{name}={value}" for name, value in labels)
        options = " ".join(f"--label {name}={value}" for name, value in labels)
        message = (
            f"Server '{server_id}' asks for workers with {wanted} (worker_labels), and"
            f" {_none_of(takers)} has that. Start a worker with {options}, or change"
            " 'worker_labels'."
        )
    else:
        message = (
            f"Server '{server_id}' has no worker: {_none_of(len(scopes))} takes it, as their"
            " --servers say. Start a worker that does, or one without --servers."
        )
    return Problem("server", NO_MATCHING_WORKER, message, server_id)


def _none_of(count: int) -> str:
    return "the only worker is not one that" if count == 1 else f"none of {count} workers"
