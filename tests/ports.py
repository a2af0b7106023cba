"""Ports for servers that are stopped and started again, or whose end a test waits for."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket


def free_port() -> int:
    """Return a port for a server that cannot choose one, or whose port must stay its own.

    It is below the kernel's ephemeral ports, so that no other process gets it while nobody listens
    there, and in a range of its own for each test process of a run.
    """
    runner = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = 12_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = 20_000 + width * runner + secrets.randbelow(width)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
