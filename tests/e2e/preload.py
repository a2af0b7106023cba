"""Imported once by the fork server of a test run: the modules that every plane imports."""

from __future__ import annotations

import gc
import importlib

for name in (
    "leaseway.cli.app",
    "leaseway.cli.commands.running.planes",
    "leaseway.control_plane.app",
    "leaseway.data_plane.app",
    "leaseway.data_plane.mcp.session",
    "leaseway.front.app",
):
    importlib.import_module(name)
gc.freeze()  # a collection in a forked process would copy all pages
