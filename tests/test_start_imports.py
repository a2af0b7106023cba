"""Heavy packages that the start of each part of Leaseway imports, as they cost time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_HEAVY = (
    *("aiohttp", "cryptography", "google.protobuf", "grpc", "httpx", "jinja2", "lightkube"),
    *("mcp", "mcp_types", "opentelemetry.sdk", "pydantic", "starlette", "uvicorn", "yaml"),
)


@pytest.mark.parametrize(
    ("module", "loads"),
    [
        ("leaseway.cli.main", []),
        ("leaseway.sdk", ["google.protobuf", "grpc"]),
        ("leaseway.front.app", ["aiohttp", "cryptography", "google.protobuf", "grpc"]),
        (
            "leaseway.control_plane.app",
            ["cryptography", "google.protobuf", "grpc", "jinja2", "yaml"],
        ),
        # A worker imports `mcp` in a thread after it has joined: it takes as long as all others.
        (
            "leaseway.data_plane.app",
            ["aiohttp", "cryptography", "google.protobuf", "grpc", "jinja2"],
        ),
        ("leaseway.data_plane.kit.server", []),
    ],
)
def test_a_start_imports_only_these_heavy_packages(module: str, loads: list[str]) -> None:
    look = f"print(json.dumps([name for name in {_HEAVY!r} if name in sys.modules]))"
    code = f"import json, sys, {module}; {look}"

    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert json.loads(made.stdout) == loads


def test_the_loop_runs_while_a_worker_imports_mcp() -> None:
    code = """
import asyncio, sys
from leaseway.data_plane.mcp.instance import load

async def main():
    loading, turns = asyncio.ensure_future(load()), 0
    while not loading.done():
        turns += 1
        await asyncio.sleep(0.001)
    loading.result()
    print(turns, "mcp" in sys.modules)

asyncio.run(main())
"""
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    turns, is_loaded = made.stdout.split()
    assert is_loaded == "True"
    assert int(turns) > 5  # 1 if the import blocked the loop


@pytest.mark.parametrize(
    "arguments", [["leaseway.server", "no_module", "Class"], ["leaseway.data_plane.kit"]]
)
def test_no_collection_of_garbage_delays_the_start_of_a_server(arguments: list[str]) -> None:
    code = """
import gc, importlib, sys

def note(phase, details):
    if "mcp" in sys.modules and not hasattr(sys.modules["leaseway.server.running"], "run"):
        print("collected", file=sys.stderr)

gc.callbacks.append(note)
program = importlib.import_module(sys.argv[1] + ".__main__")
del sys.argv[0]
program.main()
gc.callbacks.remove(note)
print(gc.isenabled(), file=sys.stderr)
"""
    made = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )

    assert made.stderr.split().count("collected") == 0
    assert made.stderr.split()[-1] == "True"
