"""A bench that starts instances, calls them and closes them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.e2e.forking import fork_python, start_fork_server
from tests.forked_servers import forked

from leaseway.data_plane.core.calls.call import Callbacks, Outcome, PendingCall, ToolRequest
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.openers import built_in_kinds
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.kinds.process.reaper import Reaper
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.eras import KnownEras
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.mcp.protocol.connection import Peer
from leaseway.data_plane.mcp.protocol.logged import LoggedOfServers
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.kinds.transports import registered_transports
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Fault

SERVERS = Path(__file__).parents[2] / "servers"

start_fork_server()


def peer_of(instance: Instance) -> Peer:
    """Return the connection of an instance."""
    assert instance._peer is not None
    return instance._peer


def connection(instance: Instance) -> StreamPeer:
    """Return the connection of an instance with a stream transport."""
    peer = instance._peer
    assert isinstance(peer, StreamPeer)
    return peer


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.contextmanager
def time_ahead(seconds: float) -> Iterator[None]:
    """Let the clock of the event loop be ahead, so that what it would wait for is due."""
    loop = asyncio.get_running_loop()
    time = loop.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: time() + seconds)
        yield


async def fault_of(outcome: asyncio.Future[Outcome]) -> Fault:
    """Wait for a call that must fail; return its fault."""
    async with asyncio.timeout(BOUND):
        fault = (await outcome).fault
    assert fault is not None
    return fault


async def until_exited(*pids: int) -> None:
    """Wait until processes have exited."""
    await until(lambda: not any(is_alive(pid) for pid in pids))


@contextlib.asynccontextmanager
async def serving(server: str, *args: str) -> AsyncIterator[str]:
    """Run one of the HTTP servers in tests/servers; yield its address."""
    process = await fork_python(str(SERVERS / f"{server}.py"), *args)
    try:
        async with asyncio.timeout(BOUND):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Bench:
    """Starts instances, calls them, and records what they report."""

    serving = staticmethod(serving)

    def __init__(self, reaper: Reaper, http: aiohttp.ClientSession) -> None:
        self.reaper = reaper
        self.http = http
        self.closed: asyncio.Queue[tuple[Instance, Fault | None]] = asyncio.Queue()
        self.changed: asyncio.Queue[Instance] = asyncio.Queue()
        self.warned: list[tuple[str, str]] = []
        self.disconnected: list[str] = []
        self.instances: list[Instance] = []
        self.server_folders: list[str] = []
        self.own_paths: list[Path] = []
        self.eras = KnownEras()
        self.logged = LoggedOfServers()

    def stdio(self, server: str, *args: str, **spec: Any) -> ServerSpec:
        """Return the spec of one of the servers in tests/servers."""
        command = (str(SERVERS / f"{server}.py"), *args)
        return server_spec(
            VariantKey(server), "stdio", command=sys.executable, args=command, **spec
        )

    def forked(self, server: str, *args: str, **spec: Any) -> ServerSpec:
        """Return the spec of a server in tests/servers on the official package."""
        command, *words = forked(str(SERVERS / f"{server}.py"), *args)
        return server_spec(VariantKey(server), "stdio", command=command, args=tuple(words), **spec)

    def http_spec(self, url: str, **spec: Any) -> ServerSpec:
        """Return the spec of a server at a URL."""
        return server_spec(VariantKey("remote"), "streamable_http", url=url, **spec)

    def at(self, transport: str, url: str, **spec: Any) -> ServerSpec:
        """Return the spec of a server at a URL of another transport."""
        return server_spec(VariantKey("remote"), transport, url=url, **spec)

    def make(
        self, spec: ServerSpec, environment: Mapping[str, str] | None = None, **more: Any
    ) -> Instance:
        """Return an instance that has not been started."""
        environment = os.environ if environment is None else environment
        host = Host(
            environment=environment,
            http=self.http,
            server_folders=lambda: self.server_folders,
            own_paths=lambda: self.own_paths,
            eras=self.eras,
            logged=self.logged,
        )
        for name in ("vault", "tokens"):
            if name in more:
                host = replace(host, **{name: more.pop(name)})
        pods = more.pop("pods", None)
        opening = Opening(
            instance_id=f"i{len(self.instances)}",
            listener=self,
            read_values=read_references,
            **more,
        )
        open_instance = built_in_kinds(self.reaper, Renderers(environment), pods)[type(spec.part)]
        instance = open_instance(spec, host, opening)
        assert isinstance(instance, Instance)
        self.instances.append(instance)
        return instance

    def on_closed(self, instance: Instance, fault: Fault | None) -> None:
        """Record that an instance has closed, and why."""
        self.closed.put_nowait((instance, fault))

    def on_tools_changed(self, instance: Instance) -> None:
        """Record an instance whose tools changed."""
        self.changed.put_nowait(instance)

    def on_notification(self, instance: Instance, method: str, params: bytes) -> None:
        """Ignore a notification that belongs to no call."""

    def on_warning(self, instance: Instance, reason: str, text: str) -> None:
        """Record an instance's warning."""
        self.warned.append((reason, text))

    def on_warning_cleared(self, instance: Instance, reason: str) -> None:
        """Remove an instance's warnings of a reason."""
        self.warned = [warning for warning in self.warned if warning[0] != reason]

    def find_caller(self, instance: Instance, method: str) -> None:
        """No call waits for an instance."""

    def on_disconnected(self, instance: Instance) -> None:
        """Record the state of an instance that was disconnected."""
        self.disconnected.append(instance.state)

    async def start(
        self, spec: ServerSpec, environment: Mapping[str, str] | None = None, **more: Any
    ) -> Instance:
        """Start an instance; return it once it is ready."""
        instance = self.make(spec, environment, **more)
        async with asyncio.timeout(BOUND):
            await instance.start()
        return instance

    async def fails(self, spec: ServerSpec, **more: Any) -> Fault:
        """Return the fault of a start that must fail."""
        with pytest.raises(Fault) as caught:
            await self.start(spec, **more)
        return caught.value

    async def fails_late(self, spec: ServerSpec, seen: Callable[[Instance], object]) -> Fault:
        """Return the fault of a start whose time passes as soon as a condition holds.

        Args:
            spec: Its start has `BOUND` seconds, which nobody waits for.
            seen: The condition, of the instance.
        """
        instance = self.make(replace(spec, startup_timeout=BOUND))
        starting = asyncio.ensure_future(instance.start())
        await until(lambda: seen(instance))
        with time_ahead(BOUND), pytest.raises(Fault) as caught:
            await starting
        return caught.value

    def start_call(
        self,
        instance: Instance,
        tool: str,
        arguments: Any = None,
        *,
        meta: dict[str, object] | None = None,
        method: str = "",
        **callbacks: Any,
    ) -> tuple[PendingCall, asyncio.Future[Outcome]]:
        """Start a call; the future has its outcome."""
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        encoded = (
            arguments if isinstance(arguments, bytes) else json.dumps(arguments or {}).encode()
        )
        head = instance.prepare(tool)
        call = ToolRequest(
            name=tool,
            params_head=head,
            arguments=encoded,
            meta=meta,
            callbacks=Callbacks(**callbacks),
            method=method,
        )
        return instance.call(call, outcome.set_result), outcome

    async def call(
        self, instance: Instance, tool: str, arguments: Any = None, **request: Any
    ) -> Outcome:
        """Call a tool; return its outcome."""
        async with asyncio.timeout(BOUND):
            return await self.start_call(instance, tool, arguments, **request)[1]

    async def call_fault(
        self, instance: Instance, tool: str, arguments: Any = None, **request: Any
    ) -> Fault:
        """Call a tool that must fail; return its fault."""
        return await fault_of(self.start_call(instance, tool, arguments, **request)[1])

    async def next_closed(self) -> tuple[Instance, Fault | None]:
        """Wait until an instance closes; return it, and why."""
        async with asyncio.timeout(BOUND):
            return await self.closed.get()

    async def written(self, call: PendingCall) -> None:
        """Wait until a call has been written."""
        await until(lambda: call.written)

    async def text(
        self, instance: Instance, tool: str, arguments: Any = None, **request: Any
    ) -> str:
        """Call a tool that must succeed; return its text."""
        outcome = await self.call(instance, tool, arguments, **request)
        assert outcome.fault is None, outcome.fault
        return str(json.loads(outcome.payload)["content"][0]["text"])


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Return a bench whose instances are closed at the end."""
    reaper = Reaper()
    http = http_client()
    bench = Bench(reaper, http)
    try:
        yield bench
    finally:
        await asyncio.gather(*(instance.close() for instance in bench.instances))
        await reaper.close()
        await http.close()


@pytest.fixture
def carriers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package that registers the transports of tests/servers/memory_carrier.py."""
    install_carriers(tmp_path / "installed")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.syspath_prepend(SERVERS)
    registered_transports.cache_clear()
    yield tmp_path / "installed"
    registered_transports.cache_clear()


def install_carriers(folder: Path) -> None:
    """Write the metadata of an installed package to a folder for `sys.path`."""
    metadata = folder / "carriers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: carriers\nVersion: 1.0\n")
    entries = {
        "memory": "memory_carrier:in_memory",
        "queues": "memory_carrier:queues",
        "explodes": "memory_carrier:explodes",
        "nothing": "memory_carrier:nothing",
        "absent": "no_such_module:factory",
        "stdio": "memory_carrier:explodes",
    }
    lines = [f"{name} = {target}" for name, target in entries.items()]
    text = "\n".join(["[leaseway.transports]", *lines, ""])
    (metadata / "entry_points.txt").write_text(text)
