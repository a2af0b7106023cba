"""Random edits of a configuration, and calls meanwhile.

Steady servers keep the names of their tools through every edit, so no call of them may fail.
Loose servers are added, removed and renamed, so their tools may be unknown for a while.
One leased server is never edited: edits of other servers must not affect its session.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from tests.conftest import BOUND, descendants
from tests.e2e.system import System, eventually, python_server

from leaseway.sdk import AsyncClient, AsyncSession, LeasewayError, ServerNotReady, ToolNotFound

CALLERS = 32
BYSTANDER = "counter"


@dataclass(frozen=True)
class Entry:
    """The state of a server's entry in the file.

    Attributes:
        launch: Changes its command line.
        rename: Changes its tools' prefix.
        hint: Changes its exposure and no name.
        starts: Whether the server can start.
        valid: Whether the entry is valid.
    """

    launch: int = 0
    rename: int = 0
    hint: int = 0
    starts: bool = True
    valid: bool = True


@dataclass
class Edits:
    """Makes random edits, reproducible by a seed."""

    seed: int
    steady: tuple[str, ...]
    loose: tuple[str, ...]
    entries: dict[str, Entry] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.entries = {name: Entry() for name in (*self.steady, *self.loose)}

    def gap(self) -> float:
        """Return the seconds until the next edit."""
        return self._random.uniform(0.02, 0.4)

    def next(self) -> str:
        """Make an edit and return the file's new text."""
        draw = self._random
        kind = draw.choice(
            [
                "launch",
                "launch",
                "hint",
                "rename",
                "add or remove",
                "starts",
                "valid",
                "broken file",
            ]
        )
        self.made[kind] += 1
        if kind == "broken file":
            return f"{self.text()}\nservers: [\n"
        if kind in ("rename", "add or remove"):
            self._edit(kind, draw.choice(self.loose))
        else:
            self._edit(kind, draw.choice([*self.steady, *self.loose]))
        return self.text()

    def _edit(self, kind: str, name: str) -> None:
        entry = self.entries.get(name)
        if entry is None or kind == "add or remove":
            if self.entries.pop(name, None) is None:
                self.entries[name] = Entry(launch=self._random.randrange(1000))
        elif kind in ("starts", "valid"):
            change = {kind: not getattr(entry, kind)}
            self.entries[name] = replace(entry, **change)
        else:
            change = {kind: getattr(entry, kind) + 1}
            self.entries[name] = replace(entry, starts=True, valid=True, **change)

    def fix(self) -> str:
        """Make all entries valid and return the file's text."""
        self.entries = {
            name: replace(entry, starts=True, valid=True) for name, entry in self.entries.items()
        }
        return self.text()

    def text(self) -> str:
        """Return the file's text with the current entries."""
        servers = {name: _server(name, entry) for name, entry in self.entries.items()}
        servers[BYSTANDER] = python_server("counter.py", transform=[{"prefix": "counter_"}])
        return yaml.safe_dump({"version": 1, "servers": servers})

    def name_of(self, server_id: str, tool: str) -> str:
        """Return a tool's current name."""
        entry = self.entries.get(server_id, Entry())
        return f"{server_id}_{entry.rename}_{tool}"


def _server(name: str, entry: Entry) -> dict[str, object]:
    tools = ["env", "slow", "echo"] if entry.hint % 2 else ["*"]
    arguments = ("--name", f"n{entry.launch}") if entry.starts else ("--no-such-option",)
    return {
        **python_server("echo_raw.py", *arguments),
        "truely-stateless": True,
        "inherit_env": "none",
        "env": {"WHO": name},
        "description": f"Edit {entry.hint}",
        "tools": {"whitelist": tools},
        "transform": [{"prefix": f"{name}_{entry.rename}_"}],
        **({} if entry.valid else {"comand": "misspelled"}),
    }


@dataclass
class Traffic:
    """Calls in flight during all edits.

    Attributes:
        answered: The number of calls with a result.
        excused: The numbers of expected failures of loose servers, by error.
        failures: Unexpected failures.
    """

    client: AsyncClient
    edits: Edits
    answered: int = 0
    counted: int = 0
    excused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _over: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Start the callers."""
        session = self.client.session("bystander")
        self._tasks = [asyncio.create_task(self._call_repeatedly(n)) for n in range(CALLERS - 1)]
        self._tasks.append(asyncio.create_task(self._count(session)))

    async def stop(self) -> None:
        """Start no more calls and wait for those in flight."""
        self._over = True
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*self._tasks)

    async def _call_repeatedly(self, number: int) -> None:
        draw = random.Random(number)
        while not self._over:
            steady = draw.random() < 0.6
            server_id = draw.choice(self.edits.steady if steady else self.edits.loose)
            try:
                await self._call(server_id, "slow" if draw.random() < 0.9 else "env")
            except LeasewayError as error:
                self._record_error(server_id, error)
                await asyncio.sleep(0.05)  # a removed tool fails at once

    async def _call(self, server_id: str, tool: str) -> None:
        name = self.edits.name_of(server_id, tool)
        result = await self.client.call_tool(name, {"seconds": 0.1}, timeout=100)
        self.answered += 1
        if result.is_error:
            self.failures.append(f"{name} gave {result.text[:200]}")
        elif tool == "env" and json.loads(result.text)["WHO"] != server_id:
            self.failures.append(f"{name} was answered by {json.loads(result.text)['WHO']}")

    def _record_error(self, server_id: str, error: LeasewayError) -> None:
        kinds = ToolNotFound | ServerNotReady
        if server_id in self.edits.loose and isinstance(error, kinds):
            self.excused[type(error).__name__] += 1
        else:
            self.failures.append(f"{server_id}: {error!r}")

    async def _count(self, session: AsyncSession) -> None:
        while not self._over:
            self.counted += 1
            result = await session.call_tool(f"{BYSTANDER}_next", timeout=100)
            if result.text != str(self.counted):
                self.failures.append(f"call {self.counted} of the lease gave {result.text[:200]}")
            await asyncio.sleep(0.02)


@dataclass
class Versions:
    """The registry versions that polling has seen."""

    client: AsyncClient
    seen: set[int] = field(default_factory=set)

    async def watch(self) -> None:
        """Poll until cancelled."""
        while True:
            self.seen.add((await self.client.status()).registry_version)
            await asyncio.sleep(0.02)


async def edit_and_call(
    system: System,
    edits: Edits,
    *,
    least_edits: int,
    least_versions: int,
    seconds: float = 0.0,
    on_plateau: Callable[[], None] = lambda: None,
) -> Traffic:
    """Edit until there were enough edits and registry versions, with calls all the time.

    Args:
        system: The system.
        edits: The edits.
        least_edits: The minimum number of edits.
        least_versions: The minimum number of registry versions.
        seconds: The minimum duration.
        on_plateau: Called after a third of the duration.
    """
    async with AsyncClient(system.address, agent="storm") as client:
        traffic, versions = Traffic(client, edits), Versions(client)
        traffic.start()
        watch = asyncio.create_task(versions.watch())
        count, began, plateau = 0, time.monotonic(), False
        while (
            count < least_edits
            or len(versions.seen) < least_versions + 1
            or time.monotonic() < began + seconds
        ):
            if not plateau and time.monotonic() >= began + seconds / 3:
                plateau = True
                on_plateau()
            system.write_text(edits.next())
            count += 1
            await asyncio.sleep(edits.gap())
        watch.cancel()
        system.write_text(edits.fix())
        await settled(system, client, edits)
        await traffic.stop()
        print(
            f"{count} edits {dict(edits.made)}, {len(versions.seen) - 1} registry versions seen, "
            f"{traffic.answered} calls answered, {traffic.counted} on the lease, excused: "
            f"{dict(traffic.excused)}"
        )
    return traffic


async def settled(system: System, client: AsyncClient, edits: Edits) -> None:
    """Wait until the file is in effect and all instances are of its version."""
    wanted = {*edits.entries, BYSTANDER}

    async def is_applied() -> bool:
        servers = await client.servers()
        return (
            {server.id for server in servers} == wanted
            and all(server.state == "ready" for server in servers)
            and all(
                instance.launch_hash == server.launch_hash and instance.state == "ready"
                for server in servers
                for instance in server.instances
            )
            and await _names(client) >= {edits.name_of(name, "env") for name in edits.entries}
            and all(len(s.instances) == len(system.workers) for s in servers if s.shared)
            and not [p for p in await client.problems() if p.reason != "TOOLS_FILTERED"]
        )

    await eventually(is_applied, within=120)


async def _names(client: AsyncClient) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


async def served_state(client: AsyncClient) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return tool names and hashes of servers, which are equal in equal systems."""
    servers = await client.servers()
    hashes = [(server.id, server.launch_hash, server.exposure_hash) for server in servers]
    return [tool.name for tool in await client.list_tools()], sorted(hashes)


def server_processes(system: System, edits: Edits) -> dict[str, int]:
    """Return the surplus of shared server processes of each worker."""
    counts = {}
    for name, part in system.workers.items():
        lines = descendants(part.process.pid).values()
        counts[name] = sum("echo_raw.py" in line for line in lines) - len(edits.entries)
    return counts


async def fresh_start(folder: Path, text: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return the state of a new system with this file."""
    folder.mkdir()
    system = System(folder, {})
    system.write_text(text)
    async with system, AsyncClient(system.address) as client:
        return await served_state(client)
