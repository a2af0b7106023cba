"""Agents of other frameworks, each in its own environment, call tools of real planes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from tests.conftest import ROOT, absent

from leaseway.sdk.testing import CallContext, FakeLeaseway, Media

AGENTS = Path(__file__).with_name("agents")
FOLDER = Path(os.environ.get("LEASEWAY_FRAMEWORKS") or ROOT / ".build" / "frameworks")
ENVIRONMENT = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    # This checkout, also if the environment was made for another one.
    "PYTHONPATH": os.pathsep.join(
        str(ROOT / root) for root in ("sdk", "cli", "front", "control_plane", "data_plane")
    ),
}


PROGRAMS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "frameworks.md").read_text(), flags=re.DOTALL
)
BOTH = """
import os, runpy, sys
program, *sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
exec(program, {"__name__": "page"})
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Imports a program of the page, then runs an agent: the imports take seconds."""


def _python_of(framework: str) -> Path:
    if not (FOLDER / "stamp").exists():
        absent("frameworks", f"{FOLDER} is not complete; run `make frameworks`.")
    environment = "crewai" if framework == "crewai" else "frameworks"
    return FOLDER / environment / "bin" / "python"


def _png() -> bytes:
    file = BytesIO()
    Image.new("RGB", (1, 1)).save(file, "png")
    return file.getvalue()


PNG = _png()


@pytest.fixture
def planes() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:

        @fake.tool
        def add(a: int, b: int = 2, config: str = "", self: str = "") -> int:
            """Add two numbers."""
            return a + b + (100 if config else 0) + (1000 if self else 0)

        @fake.tool
        def broken() -> str:
            raise ValueError("It is broken.")

        @fake.tool
        def picture() -> Media:
            return Media(PNG, "image/png")

        @fake.server("counter", stateful=True).tool
        def count(step: int, context: CallContext) -> int:
            number: int = context.state.get("number", 0) + step
            context.state["number"] = number
            return number

        yield fake


@pytest.mark.parametrize("framework", ["langchain", "openai_agents", "pydantic_ai", "crewai"])
def test_an_agent_calls_tools_where_the_program_of_its_page_can_be_imported(
    framework: str, planes: FakeLeaseway, tmp_path: Path
) -> None:
    (program,) = [text for text in PROGRAMS if f"leaseway.integrations.{framework}" in text]
    agent = AGENTS / f"{framework}_agent.py"
    done = subprocess.run(
        [_python_of(framework), "-c", BOTH, program, agent, planes.address],
        env={**os.environ, **ENVIRONMENT, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    results = shown["results"]
    assert shown["answer"] == "done"
    assert results[:2] == ["3", "1103"], "arguments may be called 'config' and 'self'"
    assert "integer" in results[2]
    assert "It is broken." in results[3]
    if framework == "crewai":  # supports text only
        assert results[4] == "[An image: image/png]"
    else:
        assert base64.b64encode(PNG).decode() in results[4]
    assert results[5].startswith("1\n")
    assert 'mcp_release({"serverId": "counter"})' in results[5]
    assert results[6:] == ["4", "2"], "no result is a cached one"
    assert planes.leases == [], "the session released its lease"
    called = [call.tool for call in planes.calls if call.tool != "add"]
    assert called == ["broken", "picture", "count", "count"]
