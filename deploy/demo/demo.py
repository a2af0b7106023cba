"""`make demo`: run a whole system on this machine, use it with the SDK, and show a trace.

Starts `leaseway up` in a temporary folder, lists and calls tools, uses a lease, adds a server while
the system runs, prints the trace of a call, and stops the system.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.telemetry.trace_file import format_tree, read_spans
from leaseway.telemetry.tracing import Telemetry, configure_telemetry, tracer
from leaseway.wire.channels.trace_context import traceparent_of

HERE = Path(__file__).resolve().parent
TIMEOUT = 60.0
"""Limit of each step, in seconds."""

MORE = """
  more:
    description: Added while the system runs.
    truely-stateless: true
    transport: stdio
    command: ${DEMO_PYTHON}
    args: ['-m', 'leaseway.data_plane.kit']
    tools: { whitelist: [current_time] }
    transform: [ { prefix: 'more_' } ]
"""


class DemoFailed(Exception):
    """A step of the demo had an unexpected result."""


def say(text: str = "") -> None:
    """Print a line and flush it, because the next step may take time."""
    print(text, flush=True)


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Run `leaseway up` in a folder; yield its address and the variables to export spans to it."""
    environment = {**os.environ, "DEMO_PYTHON": sys.executable, "DEMO_FILES": str(folder / "files")}
    words = ["up", "--config", "mcp.yaml", "--listen", "127.0.0.1:0"]
    words += ["--trace-file", "trace.jsonl", "--log-file", "leaseway.log"]
    say(f"$ leaseway {' '.join(words)}")
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "leaseway.cli.main", *words),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert up.stdout is not None
    assert up.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT):
            notice = (await up.stderr.readline()).decode()
            ready = (await up.stdout.readline()).decode()
        if not ready.startswith("ready "):
            raise DemoFailed(
                f"The system did not start: {notice}{(await up.stderr.read()).decode()}"
            )
        say(f"  {ready.strip()}")
        settings = (word.partition("=") for word in notice.split() if word.startswith("OTEL_"))
        yield ready.split()[1], {name: text for name, _, text in settings}
    finally:
        if up.returncode is None:
            up.terminate()
        async with asyncio.timeout(TIMEOUT):
            await up.communicate()


def export_spans(settings: dict[str, str]) -> Telemetry:
    """Export this process's spans to the system's collector."""
    os.environ.update(settings)
    return configure_telemetry("demo")


def first_sentence(text: str) -> str:
    """Return the first sentence of a tool's description."""
    return text.partition("\n")[0].partition(". ")[0].rstrip(".")


async def list_and_call(client: AsyncClient) -> str:
    """List the tools and call the shared one; return the trace id of that call."""
    tools = await client.list_tools()
    say(f"\nTools at registry version {tools.registry_version}:")
    for tool in tools:
        kind = "shared" if tool.shared else "leased"
        say(f"  {tool.name:<20} {kind:<7} {first_sentence(tool.description)}")
    with tracer("demo").start_as_current_span("demo: what time is it?") as span:
        result = await client.call_tool("clock_current_time", {"timezone": "UTC"}, timeout=TIMEOUT)
        trace_id = traceparent_of(span).split("-")[1]
    say("\nclock_current_time(timezone='UTC'), on the process that all callers share:")
    say(f"  {result.text}")
    if result.is_error:
        raise DemoFailed("The clock returned an error.")
    return trace_id


async def use_a_lease(client: AsyncClient) -> None:
    """Call a leased server in a session, then release the lease."""
    say("\nIn the session 'dialog-42', which leases its own file server:")
    async with client.session("dialog-42") as session:
        listed = await session.call_tool("files_list_files", {}, timeout=TIMEOUT)
        say(f"  files_list_files() -> {listed.structured}")
        if listed.new_lease is None:
            raise DemoFailed("The first call of the session acquired no lease.")
        lease = listed.new_lease
        say(f"  the call acquired lease {lease.id} on {lease.worker}, for {lease.ttl:.0f} s")
        read = await session.call_tool("files:read_file", {"path": "hello.txt"}, timeout=TIMEOUT)
        say(f"  files:read_file(path='hello.txt') -> {read.text!r}")
        held = await client.leases()
        say(f"  leases held: {', '.join(f'{lease.session}/{lease.server_id}' for lease in held)}")
    say("  the session is closed: its lease is released")


async def reload(client: AsyncClient, config: Path) -> None:
    """Add a server to the configuration and wait for its tool."""
    say("\nAdding the server 'more' to mcp.yaml while the system runs:")
    config.write_text(config.read_text() + MORE)
    async with asyncio.timeout(TIMEOUT):
        while "more_current_time" not in {tool.name for tool in await client.list_tools()}:
            await asyncio.sleep(0.1)
    result = await client.call_tool("more_current_time", {"timezone": "Asia/Tokyo"})
    say(f"  more_current_time(timezone='Asia/Tokyo') -> {result.text}")


async def show_trace(path: Path, trace_id: str) -> None:
    """Print the trace of the first call, when all of its processes have exported their spans."""
    say("\nThe trace of the first call, across all processes:")
    async with asyncio.timeout(TIMEOUT):
        while True:
            spans = [span for span in read_spans(path) if span.trace_id == trace_id]
            if {"demo", "leaseway-worker", "leaseway-kit"} <= {span.service for span in spans}:
                break
            await asyncio.sleep(0.1)
    say(format_tree(spans, trace_id))


async def demo(folder: Path) -> None:
    """Run all steps in a folder."""
    (folder / "files").mkdir()
    (folder / "files" / "hello.txt").write_text("Hello from a leased server.")
    shutil.copy(HERE / "mcp.yaml", folder / "mcp.yaml")
    async with system(folder) as (address, collector):
        telemetry = export_spans(collector)
        async with AsyncClient(address, agent="demo") as client:
            trace_id = await list_and_call(client)
            await use_a_lease(client)
            await reload(client, folder / "mcp.yaml")
        await asyncio.to_thread(telemetry.shutdown)
        await show_trace(folder / "trace.jsonl", trace_id)
    say("\nThe system is stopped.")


def main() -> int:
    """Run the demo; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="leaseway-demo-") as name:
        try:
            asyncio.run(demo(Path(name)))
        except (DemoFailed, LeasewayError, TimeoutError) as error:
            log = Path(name, "leaseway.log")
            print(f"demo: {error or 'A step took too long.'}", file=sys.stderr)
            if log.exists():
                print(*log.read_text().splitlines()[-20:], sep="\n", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
