"""Imported once by the fork server of a test run: the modules that planes and test servers import.

What a forked process runs first is among them; it would import pytest and Hypothesis in each.
"""

from __future__ import annotations

import gc
import importlib

for name in (
    "anyio._backends._asyncio",
    "leaseway.cli.app",
    "leaseway.cli.commands.running.mcp",
    "leaseway.cli.commands.running.operate",
    "leaseway.cli.commands.running.planes",
    "leaseway.control_plane.app",
    "leaseway.data_plane.app",
    "leaseway.data_plane.kinds.process.connect",
    "leaseway.data_plane.kinds.remote.connect",
    "leaseway.data_plane.mcp.session",
    "leaseway.front.app",
    "mcp.server.lowlevel",
    "starlette.applications",
    "tests.e2e.forking",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvloop",
):
    importlib.import_module(name)
gc.freeze()  # a collection in a forked process would copy all pages
