"""What a worker is told at its start."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from leaseway.data_plane.core.artifact_index import Retention
from leaseway.wire import bounds
from leaseway.wire.endpoint import Endpoint
from leaseway.wire.http_listener import ArtifactsListener
from leaseway.wire.metrics_http import MetricsListener
from leaseway.wire.vault_key import VaultPlace

__all__ = ["WorkerOptions"]


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker runs.

    Attributes:
        control_plane: Whom it joins.
        listen: Where it listens; port 0 lets the system choose.
        advertise: Where callers reach it, or None for where it listens; port 0 is the port that
            it got.
        id: Its name, stable over restarts.
        capacity: The most leases that it takes.
        key: The shared key, or None where anybody on this machine may call.
        labels: What it says of itself, for placement.
        vault: Where secrets are that its environment does not have, or None for nowhere.
        metrics: Where Prometheus asks for metrics, or None for nowhere.
        artifacts: The folder that images and sounds of results are kept in, in one of this run's
            own; None means the system's folder for temporary files.
        retention: What of them is kept.
        artifacts_http: Where pages that show them ask for them, or None for nowhere.

    """

    control_plane: Endpoint
    listen: Endpoint
    advertise: Endpoint | None = None
    id: str = field(default_factory=socket.gethostname)
    capacity: int = bounds.MAX_LEASES
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    vault: VaultPlace | None = None
    metrics: MetricsListener | None = None
    artifacts: Path | None = None
    retention: Retention = field(default_factory=Retention)
    artifacts_http: ArtifactsListener | None = None
