"""Print the files and functions that a call, an acquire and a changed entry run through.

A control plane, a worker and a client run in this process, with real servers over stdio. Only the
functions of the product count, and each time that a coroutine resumes. Each is charged to the part
that calls it (SDK, worker or control plane) and counts if most rounds run it, so that timers and
reports in the background do not.

    python tools/call_path.py            one line per operation and part
    python tools/call_path.py --list     also every function, in the order of its first call
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from leaseway.control_plane import app as control_plane
from leaseway.control_plane.config.layers.sources import Source
from leaseway.data_plane import app as worker
from leaseway.sdk import AsyncClient
from leaseway.wire.channels.endpoint import Endpoint, parse_endpoints

REPOSITORY = Path(__file__).resolve().parents[1]
ECHO = REPOSITORY / "benchmarks" / "servers" / "echo.py"
PARTS = {
    "sdk/leaseway/sdk/": "sdk",
    "data_plane/leaseway/": "worker",
    "control_plane/leaseway/": "control plane",
}
LOOPBACK = Endpoint("127.0.0.1", 0)
WAIT = 60.0
RULES = {"rules": ['args.text.startsWith("/etc") && tenant != "acme"']}


@dataclass(frozen=True)
class Function:
    """A function of the product, as called by one part.

    Attributes:
        part: Whose work the call is.
        file: Its file, relative to the repository.
        name: Its name and line.
    """

    part: str
    file: str
    name: str


@dataclass(frozen=True)
class CallPath:
    """What one operation runs through: the calls of each function in one round, in order."""

    operation: str
    calls: dict[Function, float]

    def of(self, part: str) -> dict[Function, float]:
        return {function: count for function, count in self.calls.items() if function.part == part}


class Recorder:
    """Counts the calls of the product's functions in all threads that run them."""

    def __init__(self) -> None:
        self.counts: Counter[Function] = Counter()
        self._files: dict[str, str | None] = {}
        self._functions: dict[tuple[CodeType, str], Function] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread, and threads that start meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # as its documentation says

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        file = self._file(code)
        if file is None:
            return
        part = self._part(frame)
        function = self._functions.get((code, part))
        if function is None:
            name = f"{code.co_qualname}:{code.co_firstlineno}"
            function = self._functions[code, part] = Function(part, file, name)
        self.counts[function] += 1

    def _file(self, code: CodeType) -> str | None:
        path = code.co_filename
        if path not in self._files:
            inside = path.startswith(f"{REPOSITORY}/") and "/leaseway/v1/" not in path
            is_product = inside and "/leaseway/" in path
            self._files[path] = path.removeprefix(f"{REPOSITORY}/") if is_product else None
        return self._files[path]

    def _part(self, frame: FrameType) -> str:
        caller: FrameType | None = frame
        while caller is not None:
            file = self._file(caller.f_code) or ""
            for root, part in PARTS.items():
                if file.startswith(root):
                    return part
            caller = caller.f_back
        return "shared"


async def record(
    operation: str, run: Callable[[int], Awaitable[object]], *, rounds: int, warm: int
) -> CallPath:
    """Run an operation some rounds to warm up, then record it."""
    for number in range(warm):
        await run(number)
    recorder = Recorder()
    with recorder.recording():
        for number in range(warm, warm + rounds):
            await run(number)
    calls = {
        function: count / rounds
        for function, count in recorder.counts.items()
        if count * 2 > rounds
    }
    return CallPath(operation, calls)


@contextlib.asynccontextmanager
async def system(config: Path) -> AsyncIterator[str]:
    """Run a control plane and a worker in this loop; yield the control plane's address."""
    loop = asyncio.get_running_loop()
    listening: asyncio.Future[str] = loop.create_future()
    joined: asyncio.Future[str] = loop.create_future()
    planes = [
        loop.create_task(
            control_plane.run(
                control_plane.ControlPlaneOptions(
                    (Source("native", config),), LOOPBACK, expect_workers=1
                ),
                ready=listening.set_result,
            )
        )
    ]
    try:
        address = await asyncio.wait_for(listening, WAIT)
        options = worker.WorkerOptions(parse_endpoints(address), LOOPBACK, id="profiled")
        planes.append(loop.create_task(worker.run(options, ready=joined.set_result)))
        await asyncio.wait_for(joined, WAIT)
        yield address
    finally:
        signal.raise_signal(signal.SIGTERM)  # handled by the worker, which installed it last
        await asyncio.wait(planes[1:] or planes, timeout=WAIT)
        for plane in planes:
            plane.cancel()
        await asyncio.gather(*planes, return_exceptions=True)


def write_config(path: Path, description: int) -> None:
    """Write servers of which one has a description that changes."""
    entry = {"transport": "stdio", "command": sys.executable, "args": [str(ECHO)]}
    servers = {
        "shared": entry | {"truely-stateless": True},
        "ruled": entry | {"truely-stateless": True} | RULES,
        "leased": entry,
        "changed": entry
        | {"truely-stateless": True, "transform": [{"prefix": f"p{description}_"}]},
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"version": 1, "servers": servers}))
    fresh.replace(path)


async def measure(rounds: int) -> list[CallPath]:
    """Return the paths of all operations."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.yaml"
        write_config(config, 0)
        async with system(config) as address, AsyncClient(address) as client:
            await wait_for_tool(client, "p0_echo")
            session = client.session("profiled")

            async def shared(_number: int) -> None:
                await client.call_tool("shared:echo", {"text": "x"})

            async def ruled(_number: int) -> None:
                await client.call_tool("ruled:echo", {"text": "x"})

            async def leased(_number: int) -> None:
                await session.call_tool("leased:echo", {"text": "x"})

            async def acquire(number: int) -> None:
                await client.session(f"session-{number}").acquire("leased")

            async def change(number: int) -> None:
                write_config(config, number + 1)
                await wait_for_tool(client, f"p{number + 1}_echo")

            return [
                await record("shared call", shared, rounds=rounds, warm=200),
                await record("ruled call", ruled, rounds=rounds, warm=200),
                await record("leased call", leased, rounds=rounds, warm=200),
                await record("acquire", acquire, rounds=20, warm=5),
                await record("changed entry", change, rounds=10, warm=3),
            ]


async def wait_for_tool(client: AsyncClient, name: str) -> None:
    """Wait until the client's list has a tool."""
    async with asyncio.timeout(WAIT):
        async for tools in client.watch_tools():
            if any(tool.name == name for tool in tools):
                return


def print_path(path: CallPath, *, with_functions: bool) -> None:
    """Print the figures of each part, and of all parts together."""
    for part in (*PARTS.values(), "shared", "all"):
        calls = path.calls if part == "all" else path.of(part)
        if calls:
            files = len({function.file for function in calls})
            functions = len({(function.file, function.name) for function in calls})
            total = sum(calls.values())
            print(
                f"{path.operation:<14}{part:<15}{files:>4} files {functions:>5} functions"
                f" {total:>8.1f} calls"
            )
            if with_functions and part != "all":
                for function, count in calls.items():
                    print(f"    {count:>6.1f}  {function.file}  {function.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every function, too")
    parser.add_argument("--rounds", type=int, default=400, help="recorded calls")
    options = parser.parse_args()
    for path in asyncio.run(measure(options.rounds)):
        print_path(path, with_functions=options.list)


if __name__ == "__main__":
    main()
