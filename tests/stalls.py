"""The longest stalls of event loops during a test run, printed at its end."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.stall_finder import STALLS_VARIABLE

_SHOWN = 5
_LONG = 0.1
"""Limit in seconds of a stall that the loop's own work causes."""
_BUSY = 0.25
"""Minimum busy share of a stall that counts as the loop's own work."""
_KNOWN = {
    "lines.py": "a line of up to 32 MiB from a server is assembled",
    "_spare_collections": "the one collection, 10 s after the start",
    "_bootstrap": "an import at the start",
}
"""Work that may take longer on a loaded machine: a part of its stack, and a description."""


def pytest_configure(config: pytest.Config) -> None:
    """Make every process that the tests start record its longest stall in one folder."""
    if STALLS_VARIABLE not in os.environ:
        os.environ[STALLS_VARIABLE] = tempfile.mkdtemp(prefix="stalls-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(STALLS_VARIABLE)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the longest stalls of each kind of process."""
    found: list[dict[str, Any]] = []
    for path in Path(os.environ.get(STALLS_VARIABLE, "")).glob("leaseway-*.json"):
        try:
            record = json.loads(path.read_text())
        except ValueError:  # its process was killed while it wrote
            continue
        found.append(record)
    if not found:
        return
    terminalreporter.section("longest stalls of event loops")
    for name in sorted({record["name"] for record in found}):
        mine = [record for record in found if record["name"] == name]
        terminalreporter.line(f"{name}: {len(mine)} processes")
        for kind in ("longest", "busiest"):
            stalls = [record[kind] for record in mine]
            for stall in sorted(stalls, key=_length[kind], reverse=True)[:_SHOWN]:
                terminalreporter.line(_line(kind, stall))


_length = {
    "longest": lambda stall: stall["seconds"],
    "busiest": lambda stall: min(stall["seconds"], stall["busy"]),
}


def _line(kind: str, stall: dict[str, Any]) -> str:
    where = " > ".join(stall["stack"]) or "no stack"
    return (
        f"  {kind}: {1000 * stall['seconds']:.0f} ms, {1000 * stall['busy']:.0f} ms of them busy,"
        f" {stall['age']:.1f} s after its start{_exception(stall, where)}: {where}"
    )


def _exception(stall: dict[str, Any], where: str) -> str:
    if stall["seconds"] <= _LONG:
        return ""
    if stall["busy"] < _BUSY * stall["seconds"]:
        return " (stopped by a test, or the machine was busy)"
    known = (what for word, what in _KNOWN.items() if word in where)
    return f" ({next(known, 'TOO LONG, unknown cause')})"
