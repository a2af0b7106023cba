"""Leaseway through the SDK or a plain gRPC client, with different servers and options."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
from google.protobuf import struct_pb2

from benchmarks.load import AsyncDriver, Driver, ThreadDriver
from benchmarks.processes import SERVERS, echo_server, leaseway, run_process
from benchmarks.rows.row import SESSIONS, TEXT, Row, check
from leaseway.sdk import AsyncClient, Client
from leaseway.v1 import execution_pb2, execution_pb2_grpc

__all__ = ["LIMITS", "POLICY", "ROWS", "RULE"]

_SHARED = {"truely-stateless": True}
_MESSAGE_LIMIT = [("grpc.max_receive_message_length", 2**25)]

Open = Callable[[], AbstractAsyncContextManager[Driver]]


POLICY: dict[str, object] = {
    "risk": {"read_*": "read_only", "*": "external"},
    "rate_limit": "900000000/s",
}
"""Keys of a server's entry: each call is classified, counted and, with audit, recorded."""
LIMITS: dict[str, object] = {
    "quota": {
        "calls": "900000000/m",
        "concurrent": 4096,
        "tools": {"*": {"calls": "900000000/m", "concurrent": 4096}},
    }
}
RULE: dict[str, object] = {"rules": ['args.text.startsWith("/etc") && tenant != "acme"']}


def _shared(
    size: int = 0,
    workers: int = 1,
    traced: bool = False,
    audited: bool = False,
    policy: Mapping[str, object] | None = None,
) -> Open:
    """One shared stdio server, with results of `size` bytes or echoes.

    With `audited`, each call has two records, because the tool may change something.
    """

    @contextlib.asynccontextmanager
    async def open_row() -> AsyncIterator[Driver]:
        arguments = {"text": "", "size": size} if size else {"text": TEXT}
        expected = "x" * (size or len(TEXT))
        async with contextlib.AsyncExitStack() as stack:
            options: list[str] = []
            if traced:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                options = ["--trace-file", str(Path(folder) / "spans.jsonl")]
            if audited:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                options += ["--audit", folder]
            servers = {"echo": echo_server(**_SHARED, **(policy or {}))}
            system = await stack.enter_async_context(
                leaseway(servers, workers=workers, options=options)
            )
            client = await stack.enter_async_context(AsyncClient(system.address))

            async def call(_caller: int) -> None:
                check((await client.call_tool("echo", arguments)).text, expected)

            yield AsyncDriver(call, system.workers)

    return open_row


@contextlib.asynccontextmanager
async def _leased_audited() -> AsyncIterator[Driver]:
    """The same as `_leased` with policy and audit."""
    with tempfile.TemporaryDirectory() as folder:
        async with _leased(POLICY, ["--audit", folder]) as driver:
            yield driver


@contextlib.asynccontextmanager
async def _leased(
    policy: Mapping[str, object] | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Driver]:
    """A process per session; the callers share 32 sessions."""
    async with (
        leaseway({"echo": echo_server(**(policy or {}))}, options=options) as system,
        AsyncClient(system.address) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        sessions = [
            await stack.enter_async_context(client.session(f"bench-{number}"))
            for number in range(SESSIONS)
        ]
        for session in sessions:
            await session.acquire("echo")

        async def call(caller: int) -> None:
            result = await sessions[caller % SESSIONS].call_tool("echo", {"text": TEXT})
            check(result.text, TEXT)

        yield AsyncDriver(call, system.workers)


@contextlib.asynccontextmanager
async def _many_shared() -> AsyncIterator[Driver]:
    """As many processes as `_leased` has, without a lease: the callers share 32 shared servers."""
    names = [f"echo-{number}" for number in range(SESSIONS)]
    async with (
        leaseway({name: echo_server(**_SHARED) for name in names}) as system,
        AsyncClient(system.address) as client,
    ):

        async def call(caller: int) -> None:
            result = await client.call_tool(f"{names[caller % SESSIONS]}:echo", {"text": TEXT})
            check(result.text, TEXT)

        yield AsyncDriver(call, system.workers)


@contextlib.asynccontextmanager
async def _http() -> AsyncIterator[Driver]:
    """A shared server over streamable HTTP."""
    command = [sys.executable, str(SERVERS / "echo_http.py")]
    async with contextlib.AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(run_process(command, ready_text="http://"))
        entry = {"transport": "streamable_http", "url": url, "protocol": "legacy", **_SHARED}
        system = await stack.enter_async_context(leaseway({"echo": entry}))
        client = await stack.enter_async_context(AsyncClient(system.address))

        async def call(_caller: int) -> None:
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

        yield AsyncDriver(call, system.workers)


@contextlib.asynccontextmanager
async def _rest() -> AsyncIterator[Driver]:
    """A shared server whose tool is a request to a REST API, with a response template."""
    command = [sys.executable, str(SERVERS / "echo_rest.py")]
    async with contextlib.AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(run_process(command, ready_text="http://"))
        tool = {
            "name": "echo",
            "method": "POST",
            "endpoint": "/echo",
            "parameters": [{"name": "text", "type": "string", "required": True}],
            "response_template": "{{ .text }}",
        }
        entry = {"transport": "http_api", "base_url": url, "http_tools": [tool], **_SHARED}
        system = await stack.enter_async_context(leaseway({"echo": entry}))
        client = await stack.enter_async_context(AsyncClient(system.address))

        async def call(_caller: int) -> None:
            check((await client.call_tool("echo", {"text": TEXT})).text, TEXT)

        yield AsyncDriver(call, system.workers)


@contextlib.asynccontextmanager
async def _unary() -> AsyncIterator[Driver]:
    """The RPC for other languages: typed content, one RPC per call."""
    async with contextlib.AsyncExitStack() as stack:
        system = await stack.enter_async_context(leaseway({"echo": echo_server(**_SHARED)}))
        client = await stack.enter_async_context(AsyncClient(system.address))
        address = (await client.workers())[0].address
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(address, options=_MESSAGE_LIMIT)
        )
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        arguments = struct_pb2.Struct()
        arguments.update({"text": TEXT})
        request = execution_pb2.CallToolRequest(server_id="echo", tool="echo", arguments=arguments)

        async def call(_caller: int) -> None:
            response = await stub.CallTool(request, timeout=60)
            check(response.content[0].text, TEXT)

        yield AsyncDriver(call, system.workers)


@contextlib.asynccontextmanager
async def _sync() -> AsyncIterator[Driver]:
    """The synchronous client, with a thread per caller."""
    async with leaseway({"echo": echo_server(**_SHARED)}) as system:
        with Client(system.address) as client:

            def call(_caller: int) -> None:
                check(client.call_tool("echo", {"text": TEXT}).text, TEXT)

            yield ThreadDriver(call, system.workers)


ROWS = (
    Row("stdio", "Leaseway, stdio shared", _shared()),
    Row("leased", "Leaseway, stdio leased, 32 sessions", _leased),
    Row("shared_32", "Leaseway, 32 shared stdio servers", _many_shared),
    Row("audited", "Leaseway, policy and audit on", _shared(audited=True, policy=POLICY)),
    Row(
        "ruled",
        "Leaseway, the same with a CEL rule",
        _shared(audited=True, policy=POLICY | RULE),
        (1, 32, 128),
    ),
    Row("limited", "Leaseway, limits of server and tool", _shared(policy=LIMITS), (1, 32, 128)),
    Row("leased_audited", "Leaseway, leased, policy and audit on", _leased_audited),
    Row("http", "Leaseway, streamable HTTP", _http),
    Row("http_api", "Leaseway, a REST API as tools", _rest),
    Row("stdio_16k", "Leaseway, 16 KiB results", _shared(2**14), (1, 32)),
    Row("stdio_1m", "Leaseway, 1 MiB results", _shared(2**20), (1, 8)),
    Row("unary", "Leaseway, unary RPC", _unary, (1, 32, 128)),
    Row("sync", "Leaseway, synchronous client", _sync, (1, 32, 128)),
    Row("traced", "Leaseway, all spans recorded", _shared(traced=True), (1, 32, 128)),
    Row("workers_2", "Leaseway, 2 workers", _shared(workers=2), (32, 128, 256)),
    Row("workers_4", "Leaseway, 4 workers", _shared(workers=4), (32, 128, 256)),
)
