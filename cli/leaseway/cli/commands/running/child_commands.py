"""The commands of the planes and fronts that `leaseway up` and `leaseway mcp` run as children."""

from __future__ import annotations

import os

from leaseway.cli.options.common import LogOptions
from leaseway.cli.options.config import ConfigOptions
from leaseway.wire.channels.endpoint import Endpoint


def control_plane_command(
    config: ConfigOptions, listen: str, workers: int, log: LogOptions, *more: str
) -> list[str]:
    """Return the words of a control plane.

    Args:
        config: Its configuration.
        listen: Where it listens: a restarted one where workers and callers know it.
        workers: The number of workers that it waits for.
        log: How it logs.
        *more: Its further options.
    """
    return [
        "control-plane",
        *config.as_arguments(),
        *("--listen", listen),
        *("--expect-workers", str(workers)),
        *more,
        *_as_child(log),
    ]


def worker_command(
    control_plane: Endpoint, worker_id: str, vault: list[str], log: LogOptions, *more: str
) -> list[str]:
    """Return the words of a worker.

    Args:
        control_plane: The control plane that it joins.
        worker_id: Its id, which no process had before that may still run.
        vault: Its options of the vault.
        log: How it logs.
        *more: Its further options.
    """
    return [
        "worker",
        *("--control-plane", str(control_plane.reachable)),
        *("--id", worker_id),
        *("--starter", str(os.getpid())),
        *vault,
        *more,
        *_as_child(log),
    ]


def front_command(control_plane: Endpoint, listen: str, log: LogOptions, *more: str) -> list[str]:
    """Return the words of a front.

    Args:
        control_plane: The control plane whose tools it serves.
        listen: Where it listens: a restarted one where its clients know it.
        log: How it logs.
        *more: Its further options.
    """
    return [
        "mcp-front",
        *("--control-plane", str(control_plane.reachable)),
        *("--listen", listen),
        *more,
        *_as_child(log),
    ]


def _as_child(log: LogOptions) -> list[str]:
    return ["--exit-with-stdin", *log.as_arguments()]
