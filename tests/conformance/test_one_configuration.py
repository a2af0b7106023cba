"""The official conformance suite against the front: what passes directly also passes through it."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.conftest import Suite, marked
from tests.conftest import BOUND, absent
from tests.e2e.clients import node
from tests.e2e.system import SERVERS, System, eventually, running
from tests.forked_servers import forked
from tests.ports import free_port

OF_EXTENSIONS = re.compile(r"tasks-")
"""Scenarios of extensions that neither the official package nor Leaseway supports."""
MAY_PASS_FEWER = {
    "json-schema-2020-12": 1,  # a choice at the root, which models' APIs refuse, is listed merged
    "server-sse-multiple-streams": 1,  # it checks streams, but lists are returned as JSON
    "server-sse-polling": 3,  # a server cuts the worker's streams, not those of a front
    "server-stateless": 2,  # changes of the lists of a leased server, which are its session's own
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
COMPARED_BY_MCPSERVER = frozenset({"http-custom-header-server-validation"})
"""Scenarios that servers on the low-level class of the TypeScript SDK do not pass; not required."""
PATIENCE = 10
"""The suite gives some calls 500 ms. The first one of a lease starts a process, which takes longer
on a busy machine."""


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
            *self.command, *(argument.format(port=port) for argument in self.http)
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


CASES = list(
    itertools.product(
        ("python", "typescript", "go"), ("http", "stdio"), ("shared", "leased"), VERSIONS
    )
)
CROSS_SECTION = {
    ("python", "http", "shared", "2025-06-18"),
    ("python", "stdio", "leased", "2026-07-28"),
    ("typescript", "stdio", "leased", "2025-11-25"),
    ("typescript", "http", "shared", "2026-07-28"),
    ("go", "stdio", "shared", "2025-11-25"),
}
"""Cases that run in every run: each server, each transport, each mode and each version; the newest
version in both modes. `make conformance` runs all of them."""


@pytest.fixture(scope="module")
def everything(
    request: pytest.FixtureRequest, conformance_folder: Path, npm_folder: Path
) -> EverythingServer:
    if request.param == "python":
        server = forked(str(SERVERS / "everything.py"))
        return EverythingServer(tuple(server), ("--stdio",), ("{port}",))
    if request.param == "typescript":
        if not (npm_folder / "node_modules" / "@modelcontextprotocol" / "server").exists():
            absent("npm", f"The TypeScript SDK is not in {npm_folder}; run `make npm-servers`.")
        script = str(SERVERS / "everything.mjs")
        command = (node(conformance_folder), script, str(npm_folder))
        return EverythingServer(command, ("--stdio",), ("{port}",), COMPARED_BY_MCPSERVER)
    binary = conformance_folder / "bin" / "everything-server"
    if not binary.exists():
        absent("go", f"{binary} does not exist; run `make conformance-suite` (needs go).")
    # With `-stateless=false` it would speak no modern version.
    return EverythingServer((str(binary),), (), ("-http", "127.0.0.1:{port}"), ASKS_IN_SESSIONS)


@dataclass(frozen=True)
class Outcome:
    """What the suite says of a server in one version."""

    status: int
    failed: set[str]
    passed: dict[str, int]
    output: str


async def outcome(suite: Suite, url: str, version: str) -> Outcome:
    """Run the suite against a server in one version."""
    options = ("--url", url, *VERSIONS[version])
    status, output = await suite.run("server", *options, patience=PATIENCE)
    print(version, url, *re.findall(r"^Total: .*", output, re.MULTILINE))
    return Outcome(status, failed_scenarios(output), passed_checks(output), output)


class Direct:
    """What the suite says of a server itself, by version.

    Args:
        suite: The suite.
        url: The server.
    """

    def __init__(self, suite: Suite, url: str) -> None:
        self._suite = suite
        self._url = url
        self._outcomes: dict[str, Outcome] = {}

    async def outcome(self, version: str) -> Outcome:
        if version not in self._outcomes:
            self._outcomes[version] = await outcome(self._suite, self._url, version)
        return self._outcomes[version]


@pytest.fixture(scope="module")
async def direct(suite: Suite, everything: EverythingServer) -> AsyncIterator[Direct]:
    async with everything.running() as url:
        yield Direct(suite, url)


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


@pytest.mark.timeout(600)  # it runs the suite up to twice
@pytest.mark.parametrize(
    ("everything", "transport", "mode", "version"),
    marked(CASES, CROSS_SECTION),
    indirect=["everything"],
)
async def test_one_configuration_passes_what_passes_directly(
    tmp_path: Path,
    suite: Suite,
    everything: EverythingServer,
    direct: Direct,
    transport: str,
    mode: str,
    version: str,
) -> None:
    async with AsyncExitStack() as stack:
        upstream = (
            await stack.enter_async_context(everything.running()) if transport == "http" else ""
        )
        server = everything.entry(upstream)
        server["truely-stateless"] = mode == "shared"
        system, _ = await stack.enter_async_context(running(tmp_path, {"everything": server}))
        url = await stack.enter_async_context(front(system))
        directly, through = await asyncio.gather(  # the suite mostly waits
            direct.outcome(version), outcome(suite, url, version)
        )
        assert everything.lacks >= directly.failed >= through.failed, through.output
        assert through.status <= directly.status, through.output
        fewer = {name: count - through.passed[name] for name, count in directly.passed.items()}
        assert len(fewer) > 20
        assert not {
            name: missing
            for name, missing in fewer.items()
            if missing > MAY_PASS_FEWER.get(name, 0)
        }, through.output
