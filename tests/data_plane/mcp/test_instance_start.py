"""Starts of instances, and the faults of failed starts."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from contextvars import Context, ContextVar
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from tests.conftest import BOUND
from tests.data_plane.doubles.transport import MemoryTransport
from tests.data_plane.mcp.conftest import Bench, until
from tests.specs import changed

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES
from leaseway.data_plane.kinds.container.pods import Pods
from leaseway.data_plane.mcp.context import UnopenedConnection
from leaseway.data_plane.mcp.protocol.features.handshake import version_instead
from leaseway.data_plane.mcp.protocol.messages.pending import ConnectionLost
from leaseway.data_plane.mcp.protocol.stream_connection import StreamPeer
from leaseway.data_plane.mcp.session import McpSession
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault, Reason

pytestmark = pytest.mark.usefixtures("leak_guard")


@pytest.mark.parametrize(
    ("options", "protocol", "version"),
    [
        ((), "auto", "2026-07-28"),
        ((), "2026-07-28", "2026-07-28"),
        ((), "legacy", "2025-11-25"),
        (("--legacy",), "auto", "2025-11-25"),
        (("--legacy",), "legacy", "2025-11-25"),
    ],
)
async def test_the_era_is_negotiated(
    bench: Bench, options: tuple[str, ...], protocol: str, version: str
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", *options, protocol=protocol))
    assert (instance.state, instance.protocol_version) == ("ready", version)
    assert instance.pid is not None


async def test_pods_and_servers_on_a_network_start_no_process_here(bench: Bench) -> None:
    image = server_spec(VariantKey("image"), "stdio", image="example/server")
    assert bench.make(bench.stdio("echo_raw")).starts_process
    assert bench.make(image).starts_process
    assert not bench.make(image, pods=Pods({}, bench.http)).starts_process
    assert not bench.make(bench.http_spec("http://127.0.0.1:1/mcp")).starts_process


async def test_a_known_legacy_version_spares_the_discover_request(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    spec = bench.stdio("echo_raw", "--legacy", "--log", str(log))
    instance = await bench.start(spec, known_version="2025-11-25")
    assert instance.protocol_version == "2025-11-25"
    assert "server/discover" not in log.read_text()


@pytest.mark.parametrize("how", ["exits", "closes", "parse error", "poisons"])
async def test_a_server_that_accepts_only_initialize_first_starts(
    bench: Bench, tmp_path: Path, how: str
) -> None:
    log = tmp_path / "log"
    spec = bench.stdio("initialize_first", how, str(log))
    instance = await bench.start(spec)
    assert (instance.protocol_version, list(instance.tools)) == ("2025-06-18", ["hello"])
    assert await bench.text(instance, "hello") == "hello"
    log.unlink()
    # The worker remembers the era: the next instance pays nothing.
    await bench.start(spec)
    assert log.read_text().split()[:2] == ["start", "initialize"]


async def test_a_server_that_hangs_after_discover_starts_the_next_time(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    spec = bench.stdio("initialize_first", "hangs", str(log), startup_timeout=4.0)
    assert (await bench.fails(spec)).metadata["problem"] == "START_TIMEOUT"
    assert list((await bench.start(spec)).tools) == ["hello"]
    assert log.read_text().split("start\n")[2].startswith("initialize\n")


async def test_a_server_that_exits_however_it_is_greeted_is_started_twice_and_no_more(
    bench: Bench, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    script = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit('no database')"
    fault = await bench.fails(
        server_spec(VariantKey("broken"), "stdio", command=sys.executable, args=("-c", script))
    )
    assert fault.metadata["problem"] == "EXITED"
    assert "no database" in fault.message
    assert len(starts.read_text()) <= 2


async def test_a_slow_server_that_exits_after_discover_starts_the_next_time(
    bench: Bench, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    spec = bench.stdio("initialize_first", "exits once", str(log), startup_timeout=5.0)
    fault = await bench.fails(spec)
    assert fault.metadata["problem"] == "EXITED"
    assert "ExpectedInitializeRequest" in fault.message
    assert list((await bench.start(spec)).tools) == ["hello"]
    assert log.read_text().split("start\n")[3].startswith("initialize\n")


@pytest.mark.parametrize("mode", ["one_version", "a_secret_version"])
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_server_that_refuses_the_newest_version_is_offered_its_own(
    bench: Bench, protocol: str, mode: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode, protocol=protocol))
    assert instance.protocol_version == "2025-03-26"


@pytest.mark.parametrize("mode", ["knows_no_modes", "knows_no_capabilities"])
@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_server_that_refuses_what_is_declared_is_declared_less(
    bench: Bench, protocol: str, mode: str
) -> None:
    instance = await bench.start(bench.stdio("faulty", mode, protocol=protocol))
    assert (instance.protocol_version, list(instance.tools)) == ("2025-11-25", ["call"])


@pytest.mark.parametrize(
    ("code", "message", "data", "version"),
    [
        (-32602, "Unsupported protocol version", {"supported": ["2024-11-05"]}, "2024-11-05"),
        (-32602, "Unsupported protocol version", {"expected": "2025-06-18"}, "2025-06-18"),
        (-32000, "Unsupported protocol version (2025-06-18, 2024-11-05)", None, "2025-06-18"),
        (-32602, "Unsupported protocolVersion 2025-11-25", None, "2024-11-05"),
        (-32602, "Invalid params: 2024-11-05", None, ""),
        (UNSUPPORTED_PROTOCOL_VERSION, "Protocol version", {"supported": ["2031-01-01"]}, ""),
    ],
)
def test_a_version_that_a_refusal_names_is_found(
    code: int, message: str, data: object, version: str
) -> None:
    error = MCPError(code=code, message=message, data=data)
    assert version_instead(error, {"2025-11-25"}) == version


def test_the_versions_between_are_offered_to_a_server_that_names_none() -> None:
    error = MCPError(code=-32603, message="Unsupported protocol version")
    refused = ["2025-11-25"]
    while version := version_instead(error, refused):
        refused.append(version)
    assert refused[1:] == ["2024-11-05", "2025-03-26", "2025-06-18"]


@pytest.mark.parametrize("mode", ["late_list", "late_error"])
async def test_a_server_that_has_no_tools_at_first_is_asked_again(bench: Bench, mode: str) -> None:
    instance = await bench.start(bench.stdio("faulty", mode))
    assert [*instance.tools] == ["call"]


async def test_a_server_that_is_known_to_have_no_tools_is_not_waited_for(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "late_list"), listed={})
    assert not instance.tools


async def test_instances_that_list_the_same_hold_it_once(bench: Bench) -> None:
    first = await bench.start(bench.stdio("echo_raw"))
    known = {name: bytes(bytearray(definition)) for name, definition in first.tools.items()}
    second = await bench.start(bench.stdio("echo_raw"), listed=known)
    assert known
    assert all(second.tools[name] is definition for name, definition in known.items())
    assert all(tool is known[name] for name, tool in (await second.relist()).items())


async def test_an_odd_answer_to_initialize_is_corrected_and_reported(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("faulty", "php"))
    assert instance.tools
    listed = await instance.list_prompts_resources(BOUND, NO_PROMPTS_RESOURCES)
    assert listed.changed == ("Of its answer to initialize: capabilities is a list.",)


async def test_a_legacy_server_that_became_modern_is_started(bench: Bench) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--modern"), known_version="2025-11-25")
    assert instance.protocol_version == "2026-07-28"


async def test_tools_are_listed_completely_and_in_order(
    bench: Bench,
) -> None:
    instance = await bench.start(bench.stdio("echo_raw", "--many", "120"))
    names = list(instance.tools)
    assert names[:3] == ["echo", "meta", "slow"]
    assert names[-120:] == [f"t{n}" for n in range(120)]
    assert instance.tools["echo"] == (
        b'{"name":"echo","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}},'
        b'"x-unknown":{"kept":1.0}}'
    )


async def test_tools_are_not_listed_again_after_calls(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", "--log", str(log)))
    for _ in range(3):
        await bench.text(instance, "echo")
    await bench.call(instance, "never listed")
    methods = [json.loads(line)["method"] for line in log.read_text().splitlines()]
    assert methods.count("tools/list") == 1
    assert methods.count("tools/call") == 4


async def test_the_child_gets_its_environment_without_ours_and_secrets(bench: Bench) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PLAIN": "yes",
        "LEASEWAY_KEY": "hidden",
        "GITHUB_TOKEN": "hidden",
        "SOURCE": "wired",
    }
    spec = bench.stdio(
        "echo_raw", env={"GREETING": Value("literal", "hi ${SOURCE}"), "X": Value("env", "SOURCE")}
    )
    instance = await bench.start(spec, environment)
    seen = json.loads(await bench.text(instance, "env"))
    assert seen["PLAIN"] == "yes"
    assert (seen["GREETING"], seen["X"]) == ("hi wired", "wired")
    assert not [name for name in seen if name.startswith("LEASEWAY_") or "TOKEN" in name]


async def test_a_secret_that_the_server_prints_is_hidden(bench: Bench) -> None:
    environment = {"PATH": "/usr/bin:/bin", "API_TOKEN": "s3cr3t-value"}
    spec = bench.stdio("faulty", "secret", env={"API_TOKEN": Value("env", "API_TOKEN")})
    instance = await bench.start(spec, environment)
    await bench.text(instance, "call")
    await until(lambda: instance.stderr.lines())
    assert instance.stderr.lines() == ["token is [hidden]"]


async def test_a_missing_reference_names_server_key_and_variable(bench: Bench) -> None:
    spec = bench.stdio("echo_raw", env={"TOKEN": Value("env", "HOST_TOKEN")})
    fault = await bench.fails(spec, environment={"PATH": "/usr/bin"})
    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.metadata["problem"] == "MISSING_REFERENCE"
    assert "echo_raw" in fault.message
    assert "env.TOKEN" in fault.message
    assert "HOST_TOKEN" in fault.message
    assert bench.instances[0].state == "failed"


async def test_a_missing_command_is_named(bench: Bench) -> None:
    spec = server_spec(VariantKey("gone"), "stdio", command="no-such-command-here")
    fault = await bench.fails(spec)
    assert fault.reason is Reason.SERVER_NOT_READY
    assert fault.metadata["problem"] == "COMMAND_NOT_FOUND"
    assert "no-such-command-here" in fault.message


async def test_a_file_that_is_not_executable_is_named(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    fault = await bench.fails(server_spec(VariantKey("x"), "stdio", command=str(script)))
    assert fault.metadata["problem"] == "COMMAND_NOT_FOUND"
    assert "may not be executed" in fault.message


async def test_the_fault_of_a_server_that_exits_has_its_status_and_stderr(bench: Bench) -> None:
    fault = await bench.fails(bench.stdio("faulty", "exits"))
    assert fault.metadata["problem"] == "EXITED"
    assert fault.metadata["exit_status"] == "7"
    assert fault.metadata["stderr"] == "no configuration found"
    assert "exited with status 7" in fault.message
    assert "no configuration found" in fault.message


async def test_a_file_that_hangs_delays_only_its_own_server(bench: Bench, tmp_path: Path) -> None:
    """A pipe without a writer blocks its reader like a file on a disk that hangs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    env = {"SECRET": Value("file", str(pipe))}
    late = bench.stdio("counter", env=env, startup_timeout=0.5)
    starting = asyncio.create_task(bench.fails(late))
    assert await bench.start(bench.stdio("counter"))
    async with asyncio.timeout(BOUND):
        fault = await starting
    os.close(os.open(pipe, os.O_WRONLY))  # its reader continues and ends
    assert fault.metadata["problem"] == "MISSING_REFERENCE"
    assert f"refers to the file {pipe}, which was not read within 0.5 s" in fault.message


async def test_a_server_that_never_answers_fails_at_the_startup_timeout(bench: Bench) -> None:
    async with asyncio.timeout(BOUND):
        fault = await bench.fails(bench.stdio("faulty", "mute", startup_timeout=0.5))
    assert fault.metadata["problem"] == "START_TIMEOUT"
    assert "0.5 s" in fault.message


@pytest.mark.parametrize(
    ("command", "problem"),
    [(("echo", "no API key"), "EXITED"), (("yes", "no API key"), "START_TIMEOUT")],
)
async def test_the_fault_of_a_program_that_is_no_mcp_server_quotes_it_and_mentions_json_rpc(
    bench: Bench, command: tuple[str, ...], problem: str
) -> None:
    spec = bench.stdio("faulty", "mute", startup_timeout=2 if problem != "EXITED" else 60)
    async with asyncio.timeout(BOUND):
        fault = await bench.fails(changed(spec, command=command[0], args=command[1:]))
    assert fault.metadata["problem"] == problem
    assert "not JSON-RPC: check that its command starts, or its url reaches," in fault.message
    assert "rote last: no API key" in fault.message
    assert ("runs until its input ends" in fault.message) == (problem == "EXITED")


@pytest.mark.parametrize(
    ("mode", "problem", "words"),
    [
        ("refuses", "START_FAILED", "-32603: not today"),
        ("old", "START_FAILED", "1999-01-01"),
        ("list_error", "LIST_FAILED", "the catalogue burnt"),
        ("list_malformed", "LIST_FAILED", "malformed"),
    ],
)
async def test_a_failed_start_has_one_sentence_with_the_reason(
    bench: Bench, mode: str, problem: str, words: str
) -> None:
    fault = await bench.fails(bench.stdio("faulty", mode))
    assert fault.metadata["problem"] == problem
    assert words in fault.message
    assert "TaskGroup" not in fault.message


async def test_a_legacy_server_fails_if_the_modern_version_is_configured(bench: Bench) -> None:
    fault = await bench.fails(bench.stdio("echo_raw", "--legacy", protocol="2026-07-28"))
    assert fault.metadata["problem"] == "START_FAILED"


async def test_a_cancelled_start_leaves_no_process(bench: Bench) -> None:
    instance = bench.make(bench.stdio("faulty", "mute"))
    task = asyncio.create_task(instance.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await instance.close()
    assert instance.state == "failed"


async def test_closing_while_starting_fails_the_start(bench: Bench) -> None:
    instance = bench.make(bench.stdio("faulty", "mute"))
    task = asyncio.create_task(instance.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(BOUND):
        await instance.close()
        with pytest.raises(Fault, match="cancelled"):
            await task


async def test_closing_in_the_moment_of_a_start_fails_the_start(bench: Bench) -> None:
    instance = bench.make(bench.stdio("echo_raw"))
    starting = asyncio.ensure_future(instance.start())
    await asyncio.sleep(0)  # its owner is to begin in the next round of the loop
    async with asyncio.timeout(BOUND):
        await instance.close()
        with pytest.raises(Fault, match="the start was cancelled"):
            await starting
    assert instance.state == "failed"


async def test_an_instance_closed_before_its_start_never_starts(bench: Bench) -> None:
    instance = bench.make(bench.stdio("echo_raw"))
    await instance.close()
    assert instance.state == "closed"
    with pytest.raises(Fault, match="cancelled"):
        await instance.start()
    assert instance.pid is None


async def test_a_login_that_the_other_transport_requires_is_told_alone(bench: Bench) -> None:
    near, _ = MemoryTransport.pair()
    session = McpSession(
        bench.http_spec("http://127.0.0.1:1/"),
        UnopenedConnection(StreamPeer("remote", near)),
        str,
        lambda: None,
        Fault(Reason.SERVER_ERROR, "It answered with HTTP status 405."),
    )
    login = Fault(Reason.LOGIN_REQUIRED, "Log in.")
    assert session.start_fault(ConnectionLost(login), StderrTail()) == login


async def test_a_call_before_the_start_is_rejected(bench: Bench) -> None:
    instance = bench.make(bench.stdio("echo_raw"))
    fault = await bench.call_fault(instance, "echo")
    assert (fault.reason, fault.started) == (Reason.SERVER_LOST, "no")


@pytest.mark.parametrize("options", [("--changes",), ("--legacy",)], ids=["modern", "legacy"])
async def test_a_changed_tool_list_is_reported_and_can_be_listed_again(
    bench: Bench, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    instance = await bench.start(bench.stdio("echo_raw", *options, "--log", str(log)))
    before = dict(instance.tools)
    async with asyncio.timeout(BOUND):
        while "--changes" in options and "subscriptions/listen" not in log.read_text():
            await asyncio.sleep(0.005)  # the stream of changes opens after the start
        await bench.text(instance, "change")
        assert await bench.changed.get() is instance
    assert "added" not in instance.tools
    assert set(await instance.relist()) == {*before, "added"}
    assert "added" in instance.tools


async def test_an_instance_keeps_no_context_variable_of_who_starts_it(bench: Bench) -> None:
    trace: ContextVar[str] = ContextVar("trace")

    async def probe() -> None:
        trace.set("a reload")
        await bench.start(bench.stdio("echo_raw"))

    probed = asyncio.create_task(probe())
    await probed
    kept = [
        keeper
        for context in gc.get_objects()
        if isinstance(context, Context) and trace in context
        for keeper in gc.get_referrers(context)
        if keeper is not probed and isinstance(keeper, asyncio.Future | asyncio.Handle)
    ]
    # asyncio drops cancelled timers later.
    assert [part for part in kept if isinstance(part, asyncio.Future) or not part.cancelled()] == []
