"""Faults of a running system: how to plant each, and which alerts it must raise."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import grpc
from tests.calls import call_message
from tests.e2e.system import System, python_server
from tests.observability.recording import Recording, scrape

from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.v1 import execution_pb2, execution_pb2_grpc
from leaseway.wire.bounds import MAX_CALLS_IN_FLIGHT
from leaseway.wire.channels.serving import CHANNEL_OPTIONS

_STATELESS: Final = {"truely-stateless": True}
_STALLING: Final = Path(__file__).with_name("stalling.py")
_GIVEN_UP: Final = 0.3
"""Seconds after which a caller cancels."""
_WELL, _ILL = 10, 50  # minutes before a fault, and with it
_JOBS: Final = {"control-plane": "leaseway-control-plane"}


@dataclass
class Stage:
    """A running system and its callers."""

    system: System
    client: AsyncClient
    folder: Path
    servers: dict[str, object]
    stack: AsyncExitStack
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def targets(self) -> dict[str, str]:
        """Return the jobs of the scraped targets, by address."""
        names = self.system.metrics.items()
        return {address: _JOBS.get(name, "leaseway-worker") for name, address in names}

    def configure(self, **servers: object) -> None:
        """Add or replace servers of the configuration."""
        self.servers.update(servers)
        self.system.write(self.servers)

    def begin(self, work: Awaitable[object]) -> None:
        """Run a task during the recording; ignore its errors."""

        async def quietly() -> None:
            with contextlib.suppress(LeasewayError, TimeoutError):
                await work

        self.tasks.append(asyncio.create_task(quietly()))


async def _nothing(stage: Stage) -> None:
    pass


Step = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        fires: The alerts that it raises; no other may fire.
        servers: What its system has besides two that are well.
        environment: Variables of its processes.
        plant: Plants it.
        each_minute: What goes on while it is there.
        pace: Seconds between two scrapes.
    """

    fires: frozenset[str]
    servers: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    plant: Step = _nothing
    each_minute: Step = _nothing
    pace: float = 0.4


def _adding(**servers: object) -> Step:
    async def plant(stage: Stage) -> None:
        stage.configure(**servers)

    return plant


def _calling(tool: str, timeout: float = 20) -> Step:
    async def call(stage: Stage) -> None:
        stage.begin(stage.client.call_tool(tool, {}, timeout=timeout))

    return call


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


async def _refuse(stage: Stage) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    stage.stack.callback(server.server_close)
    stage.stack.callback(server.shutdown)
    url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
    stage.configure(refused={"transport": "streamable_http", "url": url})


async def _leak(stage: Stage) -> None:
    number = len(stage.tasks)
    stage.begin(stage.client.session(f"leaky-{number}").acquire("leaky", ttl=3_600))


async def _crowd(stage: Stage) -> None:
    number = len(stage.tasks)
    stage.begin(stage.client.session(f"tight-{number}").acquire("tight", ttl=3_600))


async def _fill_disk(stage: Stage) -> None:
    """Replace the worker's artifact folders with files."""
    await stage.client.call_tool("gallery", {}, timeout=60)
    for each_path in [path for path in (stage.folder / "temporary").iterdir() if path.is_dir()]:
        shutil.rmtree(each_path)
        each_path.write_text("in the way of a folder")


async def _lose_worker(stage: Stage) -> None:
    await stage.system.workers["worker-2"].end(signal.SIGKILL)


async def _end_workers(stage: Stage) -> None:
    await asyncio.gather(*(worker.end() for worker in stage.system.workers.values()))


async def _end_control_plane(stage: Stage) -> None:
    assert stage.system.control_plane is not None
    await stage.system.control_plane.end(signal.SIGKILL)


async def _stall_worker(stage: Stage) -> None:
    """Block a worker's event loop while there is a delta for it."""
    stage.system.workers["worker-2"].process.send_signal(signal.SIGUSR2)
    del stage.servers["needless"]
    stage.configure()


async def _fill_audit(stage: Stage) -> None:
    """Replace the workers' audit folder with a file."""
    folder = stage.folder / "audit"
    shutil.rmtree(folder)
    folder.write_text("in the way of a folder")


async def _start_twin(stage: Stage) -> None:
    """Start a second worker with the id of a first."""
    own, first = stage.system, stage.system.workers["worker-2"]
    metrics = own.metrics.pop("worker-2")
    await own.start_worker("worker-2")
    own.workers["twin"], own.workers["worker-2"] = own.workers["worker-2"], first
    own.metrics["worker-2"] = metrics


async def _break_file(stage: Stage) -> None:
    stage.system.write_text("servers: [this is { no YAML")


async def _flood(stage: Stage) -> None:
    """Fill one stream with calls that are never answered."""
    address = stage.system.workers["worker-1"].address
    channel = await stage.stack.enter_async_context(
        grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    )
    version = (await stage.client.status()).registry_version
    stub: Any = execution_pb2_grpc.ExecutionServiceStub(channel)
    stream = stub.Exchange()
    stage.stack.callback(stream.cancel)

    async def fill() -> None:
        for first in range(1, MAX_CALLS_IN_FLIGHT + 1_000, 32):
            calls = [
                call_message(id=number, server_id="mute", tool="never", registry_version=version)
                for number in range(first, first + 32)
            ]
            await stream.write(execution_pb2.ExchangeRequest(calls=calls))
            if first > MAX_CALLS_IN_FLIGHT:
                await asyncio.sleep(0.5)

    stage.begin(fill())


async def _call_mixed(stage: Stage) -> None:
    """Four calls that a server answers, and one that it does not."""
    for tool in ("mixed_echo", "mixed_echo", "mixed_echo", "mixed_echo", "mixed_error"):
        stage.begin(stage.client.call_tool(tool, {}, timeout=20))


async def _give_up(stage: Stage) -> None:
    """Cancel a call that its server still answers."""
    late = stage.client.call_tool("mixed_slow", {"seconds": 1.0}, timeout=20)
    stage.begin(asyncio.wait_for(late, _GIVEN_UP))


def _fires(*alerts: str) -> frozenset[str]:
    return frozenset(alerts)


_MIXED: Final = python_server("echo_raw.py", **_STATELESS, transform=[{"prefix": "mixed_"}])
_PICKY: Final = python_server("planted.py", "clash", **_STATELESS)

FAULTS: Final[dict[str, Fault]] = {
    "none": Fault(_fires()),
    "command_not_found": Fault(
        _fires("LeasewayServerDoesNotStart"),
        plant=_adding(missing={"transport": "stdio", "command": "no-such-command-anywhere"}),
    ),
    "credential_refused": Fault(_fires("LeasewayServerDoesNotStart"), plant=_refuse),
    "bad_schema": Fault(
        _fires("LeasewayBadSchema"),
        plant=_adding(odd=python_server("planted.py", "bad_schema", **_STATELESS)),
    ),
    "slow_server": Fault(
        _fires("LeasewayServerSlow"),
        servers={"slow": python_server("planted.py", "crawling", **_STATELESS)},
        each_minute=_calling("crawl"),
    ),
    "jammed_server": Fault(
        _fires("LeasewayCallsWait"),
        servers={
            "jammed": python_server(
                "echo_raw.py", **_STATELESS, max_calls=1, transform=[{"prefix": "jammed_"}]
            )
        },
        each_minute=_calling("jammed_never", timeout=120),
    ),
    "leaked_leases": Fault(
        _fires("LeasewayLeasesPileUp"),
        servers={"leaky": python_server("planted.py", "echo", transform=[{"prefix": "leaky_"}])},
        each_minute=_leak,
    ),
    "name_clash": Fault(
        _fires("LeasewayNameClash"),
        servers={"clash-a": _PICKY},
        plant=_adding(**{"clash-b": _PICKY}),
    ),
    "wrong_reference": Fault(
        _fires("LeasewayReferenceMissing"),
        plant=_adding(
            unresolved=python_server(
                "planted.py", "slow", env={"TOKEN": {"env": "NO_SUCH_VARIABLE"}}
            )
        ),
    ),
    "flapping_server": Fault(
        _fires("LeasewayServerFlaps"),
        plant=_adding(
            flapping=python_server(
                "planted.py",
                "restless",
                **_STATELESS,
                restart={"initial": 0.2, "max": 0.4},
                transform=[{"prefix": "flapping_"}],
            )
        ),
        pace=1.0,
    ),
    "overload": Fault(
        _fires("LeasewayOverloaded"),
        servers={
            "mute": python_server("echo_raw.py", **_STATELESS, transform=[{"prefix": "mute_"}])
        },
        plant=_flood,
    ),
    "half_broken_reload": Fault(
        _fires("LeasewayReloadPartlyRefused"),
        servers={"typed": _PICKY},
        plant=_adding(typed={"transport": "stdio", "command": 7}),
    ),
    "worker_lost": Fault(_fires("LeasewayWorkerLost"), plant=_lose_worker, pace=1.0),
    "disk_full": Fault(
        _fires("LeasewayArtifactsNotKept"),
        servers={"pictures": python_server("pictures.py", **_STATELESS)},
        plant=_fill_disk,
        each_minute=_calling("gallery"),
    ),
    "no_yaml": Fault(_fires("LeasewayReloadRefused"), plant=_break_file),
    "no_room": Fault(
        _fires("LeasewayNoRoom"),
        servers={
            "tight": python_server(
                "planted.py", "echo", transform=[{"prefix": "tight_"}], max_instances=1
            )
        },
        each_minute=_crowd,
    ),
    "worker_behind": Fault(
        _fires("LeasewayWorkerBehind"),
        servers={"needless": _PICKY},
        plant=_stall_worker,
        pace=1.0,
    ),
    "control_plane_down": Fault(_fires("LeasewayControlPlaneDown"), plant=_end_control_plane),
    "no_worker": Fault(_fires("LeasewayNoWorker"), plant=_end_workers),
    "failing_calls": Fault(
        _fires("LeasewayErrorBudgetBurnsFast", "LeasewayErrorBudgetBurnsSlowly"),
        servers={"mixed": _MIXED},
        each_minute=_call_mixed,
    ),
    "given_up_calls": Fault(_fires(), servers={"mixed": _MIXED}, each_minute=_give_up),
    "limit_used_up": Fault(
        _fires("LeasewayLimitUsedUp"),
        servers={
            "limited": python_server(
                "echo_raw.py",
                **_STATELESS,
                quota={"calls": "2/h"},
                transform=[{"prefix": "limited_"}],
            )
        },
        each_minute=_calling("limited_echo", timeout=5),
    ),
    "limit_full": Fault(
        _fires("LeasewayLimitFull"),
        servers={
            "narrow": python_server(
                "echo_raw.py",
                **_STATELESS,
                quota={"concurrent": 1},
                transform=[{"prefix": "narrow_"}],
            )
        },
        each_minute=_calling("narrow_never", timeout=120),
    ),
    "sink_down": Fault(
        _fires("LeasewayAuditNotShipped", "LeasewayAuditPilesUp"),
        environment={"LEASEWAY_AUDIT_SINK": "nats://127.0.0.1:1/AUDIT/leaseway"},
    ),
    "audit_not_written": Fault(
        _fires("LeasewayAuditNotWritten", "LeasewayOverloaded"),
        environment={"LEASEWAY_AUDIT_POLICY": "block"},
        plant=_fill_audit,
    ),
    "worker_twin": Fault(_fires("LeasewayOtherProblem"), plant=_start_twin),
    "failing_tool": Fault(_fires(), servers={"mixed": _MIXED}, each_minute=_calling("mixed_fail")),
}
"""The twelve documented faults, and others with an alert."""


@contextlib.asynccontextmanager
async def staged(fault: Fault, folder: Path) -> AsyncIterator[Stage]:
    """Run a system with two working servers and those of a fault."""
    (folder / "temporary").mkdir()
    servers = {
        "steady": python_server("planted.py", "echo", **_STATELESS),
        "files": python_server("planted.py", "echo", transform=[{"prefix": "files_"}]),
        **fault.servers,
    }
    environment = {"TMPDIR": str(folder / "temporary"), **fault.environment}
    if any(name.startswith("LEASEWAY_AUDIT") for name in environment):
        environment["LEASEWAY_AUDIT"] = str(folder / "audit")
    system = System(folder, servers, workers=2, environment=environment, metrics=True)
    system.programs["worker"] = (sys.executable, str(_STALLING))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(system)
        client = await stack.enter_async_context(AsyncClient(system.address, agent="recorder"))
        stage = Stage(
            system=system, client=client, folder=folder, servers=dict(servers), stack=stack
        )
        try:
            yield stage
        finally:
            for task in stage.tasks:
                task.cancel()
            await asyncio.gather(*stage.tasks, return_exceptions=True)


async def record(fault: Fault, folder: Path, well: int = _WELL, ill: int = _ILL) -> Recording:
    """Run a system, plant a fault, and scrape it throughout."""
    recording = Recording()
    async with staged(fault, folder) as stage:
        targets = stage.targets()
        for minute in range(well + ill):
            if minute == well:
                await fault.plant(stage)
            if minute >= well:
                await fault.each_minute(stage)
            stage.begin(work(stage.client))
            await asyncio.sleep(fault.pace)
            recording.add(await scrape(targets))
    return recording


async def work(client: AsyncClient) -> None:
    """The load of a system without a fault."""
    await client.call_tool("steady:echo", {}, timeout=10)
    async with client.session(f"well-{id(asyncio.current_task())}") as session:
        await session.call_tool("files:echo", {}, timeout=10)
