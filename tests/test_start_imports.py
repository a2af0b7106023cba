"""What the start of a part of Leaseway loads: heavy packages cost each start time and memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_HEAVY = (
    *("aiohttp", "cryptography", "grpc", "httpx", "jinja2", "lightkube", "mcp", "mcp_types"),
    *("opentelemetry.sdk", "pydantic", "starlette", "uvicorn", "yaml"),
)


@pytest.mark.parametrize(
    ("module", "loads"),
    [
        ("leaseway.cli.main", []),
        ("leaseway.sdk", ["grpc"]),
        ("leaseway.control_plane.app", ["aiohttp", "cryptography", "grpc", "jinja2", "yaml"]),
    ],
)
def test_a_start_loads_no_heavy_package_but_these(module: str, loads: list[str]) -> None:
    look = f"print(json.dumps([name for name in {_HEAVY!r} if name in sys.modules]))"
    code = f"import json, sys, {module}; {look}"

    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert json.loads(made.stdout) == loads
