"""A whole Leaseway system in separate processes, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import yaml
from tests.conftest import BOUND
from tests.e2e.forking import ForkedProcess, fork_leaseway, start_fork_server
from tests.forked_servers import forked
from tests.ports import free_port

from leaseway.sdk import AsyncClient, ControlPlaneUnavailable

SERVERS = Path(__file__).resolve().parents[1] / "servers"
start_fork_server()
LEASEWAY = (sys.executable, "-m", "leaseway.cli.main")


def python_server(file: str, *args: str, **settings: object) -> dict[str, object]:
    """Return the entry of a stdio server in tests/servers."""
    return {
        "transport": "stdio",
        "command": sys.executable,
        "args": [str(SERVERS / file), *args],
        **settings,
    }


def official_server(file: str, *args: str, **settings: object) -> dict[str, object]:
    """Return the entry of a stdio server in tests/servers that is built on the official package.

    Its processes are forks, as that takes a second or two to import. Call this while tests are
    collected if a test of leaks uses it (`forked`).
    """
    command, *arguments = forked(str(SERVERS / file), *args)
    return {"transport": "stdio", "command": command, "args": arguments, **settings}


def kit(root: Path, **settings: object) -> dict[str, object]:
    """Return the entry of a kit server."""
    return {
        "transport": "stdio",
        "command": sys.executable,
        "args": ["-m", "leaseway.data_plane.kit", str(root)],
        **settings,
    }


async def eventually(condition: object, *, within: float = BOUND) -> None:
    """Wait until an async or plain condition holds.

    This polls every 20 ms, as other processes send no events to a test.
    """
    async with asyncio.timeout(within):
        while True:
            outcome = condition()  # type: ignore[operator]
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            if outcome:
                return
            await asyncio.sleep(0.02)


def _is_inherited(name: str) -> bool:
    return not name.startswith("LEASEWAY")


@dataclass
class Part:
    """One process of the system."""

    process: asyncio.subprocess.Process | ForkedProcess
    address: str
    log: list[str] = field(default_factory=list)
    pump: asyncio.Task[None] | None = None

    async def end(self, number: int = signal.SIGTERM, within: float = BOUND) -> int:
        """Signal the process and wait until it exits; return its status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(within):
                return await self.process.wait()
        except TimeoutError:
            self.process.kill()
            raise


class System:
    """A control plane and workers on free ports of this machine.

    Args:
        folder: The folder of its files.
        servers: The `servers:` of its configuration.
        workers: The number of workers.
        environment: Variables of its processes, beside those of the test.
        console: Whether the control plane serves its console, at `console`.
        metrics: Whether all processes serve metrics, at `metrics` by their names.
    """

    def __init__(
        self,
        folder: Path,
        servers: Mapping[str, object],
        *,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        console: bool = False,
        metrics: bool = False,
    ) -> None:
        names = ("control-plane", *(f"worker-{number}" for number in range(1, workers + 1)))
        self.metrics = {name: f"127.0.0.1:{free_port()}" for name in names if metrics}
        self.console = f"http://127.0.0.1:{free_port()}/" if console else ""
        self.config = folder / "mcp.yaml"
        self.write(servers)
        self._count = workers
        self._environment = {
            **{name: text for name, text in os.environ.items() if _is_inherited(name)},
            **(environment or {}),
        }
        self.cwd: Path | None = None
        self.worker_options: tuple[str, ...] = ()
        self.control_plane_options: tuple[str, ...] = ()
        self.standbys: list[Part] = []
        self.programs: dict[str, tuple[str, ...]] = {}  # roles that run another installation
        self.control_plane: Part | None = None
        self.workers: dict[str, Part] = {}
        self.address = ""

    def write(self, servers: Mapping[str, object]) -> None:
        """Replace the configuration atomically."""
        # A start that takes 30 s on a busy machine would count as the server's first try.
        entries = {
            name: {"startup_timeout": BOUND, **entry} if isinstance(entry, dict) else entry
            for name, entry in servers.items()
        }
        config = {"version": 1, "servers": entries}
        self.write_text(yaml.safe_dump(config))

    def write_text(self, text: str) -> None:
        """Replace the configuration's text."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.config)

    async def __aenter__(self) -> Self:
        try:
            await self.start_control_plane()
            async with asyncio.TaskGroup() as group:
                for number in range(1, self._count + 1):
                    group.create_task(self.start_worker(f"worker-{number}"))
            await self.ready()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        if error is not None:
            print(self.logs())

    def logs(self) -> str:
        """Return the stderr of all processes."""
        parts = {"control-plane": self.control_plane, **self.workers}
        parts |= {f"standby-{number}": part for number, part in enumerate(self.standbys, 1)}
        return "\n".join(f"[{name}] {line}" for name, p in parts.items() if p for line in p.log)

    async def start_control_plane(self) -> None:
        """Start the control plane, after a stop at the same address."""
        listen = self.address or f"127.0.0.1:{free_port()}"
        self.control_plane = await self._start(
            "control-plane",
            *("--config", str(self.config), "--listen", listen),
            *("--expect-workers", str(self._count)),
            *(("--console", urlsplit(self.console).netloc) if self.console else ()),
            *self._metrics_of("control-plane"),
            *self.control_plane_options,
        )
        self.address = self.control_plane.address

    async def start_standby(self) -> Part:
        """Start another control plane, which leads when the one at `address` does not."""
        standby = await self._start(
            "control-plane",
            *("--config", str(self.config), "--listen", f"127.0.0.1:{free_port()}"),
            *self.control_plane_options,
        )
        self.standbys.append(standby)
        return standby

    async def start_worker(self, name: str, *options: str, without: str = "") -> None:
        """Start a worker, if required without one of the environment variables."""
        self.workers[name] = await self._start(
            "worker",
            *("--control-plane", self.address, "--listen", "127.0.0.1:0", "--id", name),
            *self._metrics_of(name),
            *self.worker_options,
            *options,
            without=without,
        )

    async def start_front(self, listen: str = "127.0.0.1:0", *options: str) -> Part:
        """Start a front for MCP clients over HTTP, which the caller ends."""
        return await self._start(
            "mcp-front", "--control-plane", self.address, "--listen", listen, *options
        )

    def _metrics_of(self, name: str) -> tuple[str, ...]:
        return ("--metrics", self.metrics[name]) if name in self.metrics else ()

    async def ready(self, within: float = 2 * BOUND) -> None:
        """Wait until every server has been probed and every running worker serves what is listed.

        A control plane is ready with the first worker that serves a server: without this wait, a
        call or a lease of a test would go now to one worker, now to several.
        """
        async with AsyncClient(self.address) as client:

            async def is_ready() -> bool:
                try:
                    return await self._is_served(client)
                except ControlPlaneUnavailable:  # it may be stopped for longer than a client waits
                    return False

            await eventually(is_ready, within=within)

    async def _is_served(self, client: AsyncClient) -> bool:
        workers = await client.workers()
        status = await client.status()
        up_to_date = {
            worker.id
            for worker in workers
            if worker.state == "connected" and worker.acked_version == status.registry_version
        }
        running = {name for name, part in self.workers.items() if part.process.returncode is None}
        return status.ready and running <= up_to_date

    async def stop(self) -> None:
        """Stop all processes."""
        await asyncio.gather(*(part.end() for part in self.workers.values()))
        await asyncio.gather(*(part.end() for part in self.standbys))
        if self.control_plane is not None:
            await self.control_plane.end()

    async def _start(self, *arguments: str, without: str = "") -> Part:
        arguments = (*arguments, "--log-level", "info")
        environment = {name: text for name, text in self._environment.items() if name != without}
        process: asyncio.subprocess.Process | ForkedProcess
        path = environment.get("PYTHONPATH")
        if arguments[0] in self.programs or path != os.environ.get("PYTHONPATH"):
            process = await asyncio.create_subprocess_exec(
                *self.programs.get(arguments[0], LEASEWAY),
                *arguments,
                env=environment,
                cwd=self.cwd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        else:
            process = await fork_leaseway(arguments, environment, self.cwd)
        part = Part(process, "")
        assert process.stdout is not None
        assert process.stderr is not None
        part.pump = asyncio.create_task(_collect(process.stderr, part.log))
        try:
            async with asyncio.timeout(2 * BOUND):  # parallel tests make the machine slow
                line = (await process.stdout.readline()).decode()
        except BaseException:
            process.kill()
            await process.wait()
            print("\n".join(part.log))
            raise
        if not line.startswith("ready "):
            await process.wait()
            await part.pump
            raise RuntimeError(f"{arguments[0]} did not start: {line}\n" + "\n".join(part.log))
        part.address = line.removeprefix("ready ").strip()
        return part


async def _collect(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        lines.append(line.decode(errors="replace").rstrip())
        del lines[:-2000]


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    servers: Mapping[str, object],
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
    console: bool = False,
    worker_options: Sequence[str] = (),
) -> AsyncIterator[tuple[System, AsyncClient]]:
    """Run a system and a client of it."""
    made = System(folder, servers, workers=workers, environment=environment, console=console)
    made.worker_options = tuple(worker_options)
    async with made as system, AsyncClient(system.address, agent="test") as client:
        yield system, client
