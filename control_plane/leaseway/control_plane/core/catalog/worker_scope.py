"""Which servers a worker accepts, by labels and server ids (design.md#leases).

A server requires labels with `worker_labels`, and a worker may limit the server ids that it
accepts. All variants of a server are on the same workers: with only the common variant, a worker
would serve it to tenants that have their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.problems import Problem
from leaseway.spec.filters.names import matches
from leaseway.spec.model import ServerSpec, VariantKey

NO_MATCHING_WORKER: Final = "NO_MATCHING_WORKER"
"""There are workers, but none accepts the server."""


@dataclass(frozen=True)
class WorkerScope:
    """Which servers a worker accepts.

    Attributes:
        labels: Its labels, as pairs.
        servers: Patterns for accepted server ids; empty for any.
    """

    labels: frozenset[tuple[str, str]] = frozenset()
    servers: tuple[str, ...] = ()

    @classmethod
    def of(cls, labels: Mapping[str, str], servers: Iterable[str] = ()) -> WorkerScope:
        return cls(frozenset(labels.items()), tuple(servers))

    def accepts(self, spec: ServerSpec) -> bool:
        if not spec.worker_labels and not self.servers:
            return True
        return self.accepts_id(spec.key.server_id) and spec.worker_labels.items() <= self.labels

    def accepts_id(self, server_id: str) -> bool:
        """Return whether the worker accepts a server id, regardless of labels."""
        return not self.servers or any(matches(server, server_id) for server in self.servers)

    def restricted_to(self, asked: frozenset[tuple[str, str]]) -> WorkerScope:
        """Return the scope without labels that no server asks for."""
        return WorkerScope(self.labels & asked, self.servers)


def unplaced(
    specs: Iterable[ServerSpec], scopes: Collection[WorkerScope]
) -> dict[VariantKey, Problem]:
    """Return the variants that no worker accepts, each with its problem; none without scopes."""
    if not scopes:
        return {}
    return {
        spec.key: _problem(spec, scopes)
        for spec in specs
        if not spec.hidden and not any(scope.accepts(spec) for scope in scopes)
    }


def _problem(spec: ServerSpec, scopes: Collection[WorkerScope]) -> Problem:
    server_id, labels = spec.key.server_id, sorted(spec.worker_labels.items())
    if any(scope.accepts_id(server_id) for scope in scopes):
        wanted = ", ".join(f"{name}={value}" for name, value in labels)
        options = " ".join(f"--label {name}={value}" for name, value in labels)
        message = (
            f"Server '{server_id}' requires workers with {wanted} (worker_labels), and no worker"
            f" has that. Start a worker with {options}, or change 'worker_labels'."
        )
    else:
        message = (
            f"Server '{server_id}' has no worker: the --servers of all workers exclude it. Start a"
            " worker that accepts it, or one without --servers."
        )
    return Problem("server", NO_MATCHING_WORKER, message, server_id)
