"""Admission of calls: server, tool, arguments, grants, rules, limits."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import pytest

from leaseway.data_plane.core.tools import arguments as arguments_module
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.policy import ArgumentRule, Grant, Permissions, Rate, ServerPolicy, TenantLimits
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Reason

Bench = Any


@pytest.mark.parametrize(
    ("server_id", "tool", "arguments", "reason"),
    [
        ("tme", "echo", b"{}", Reason.TOOL_NOT_FOUND),
        ("time", "ecko", b"{}", Reason.TOOL_NOT_FOUND),
        ("time", "echo", b"{}", Reason.INVALID_ARGUMENTS),
        ("time", "echo", b'{"text": 7}', Reason.INVALID_ARGUMENTS),
        ("time", "echo", b"nonsense", Reason.INVALID_ARGUMENTS),
        ("time", "echo", b"", Reason.INVALID_ARGUMENTS),
    ],
)
async def test_an_invalid_call_is_refused_before_it_is_sent(
    bench: Bench, server_id: str, tool: str, arguments: bytes, reason: Reason
) -> None:
    await bench.serve("time")
    fault = await bench.caller().refused(server_id, tool, arguments=arguments)
    assert (fault.reason, fault.started) == (reason, "no")


async def test_a_null_for_an_optional_argument_reaches_the_server_as_it_is(bench: Bench) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["text"],
    }
    definition = msgspec.json.encode({"name": "echo", "inputSchema": schema})
    bench.servers.tools = {"echo": definition}
    await bench.serve("time")
    result = await bench.caller().call("time", arguments=b'{"text": "hi", "unit": null}')
    assert b'\\"unit\\": null' in result.payload
    fault = await bench.caller().refused("time", arguments=b'{"text": null, "unit": null}')
    assert [path for path, _ in fault.violations] == ["$.text"]


LISTS = {
    "type": "object",
    "properties": {
        "ids": {"type": "array", "items": {"type": "integer"}},
        "filter": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "limit": {"type": "integer"},
        "text": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({"ids": "[1, 2]"}, {"ids": [1, 2]}),
        ({"filter": '{"a": {}}', "limit": "5"}, {"filter": {"a": {}}, "limit": 5}),
        ({"ids": "[1]", "text": "[1]"}, {"ids": [1], "text": "[1]"}),
        ({"ids": '["a"]'}, None),
        ({"ids": "1,2"}, None),
        ({"text": 5}, None),
    ],
)
async def test_an_argument_that_is_the_json_of_what_is_wanted_is_read(
    bench: Bench, arguments: dict[str, Any], received: dict[str, Any] | None
) -> None:
    definition = msgspec.json.encode({"name": "echo", "inputSchema": LISTS})
    bench.servers.tools = {"echo": definition}
    await bench.serve("time")
    if received is None:
        fault = await bench.caller().refused("time", arguments=msgspec.json.encode(arguments))
        assert fault.reason == Reason.INVALID_ARGUMENTS
    else:
        result = await bench.caller().call("time", arguments=msgspec.json.encode(arguments))
        said = msgspec.json.decode(result.payload)["content"][0]["text"]
        assert msgspec.json.decode(said) == received


async def test_the_first_calls_of_a_tool_with_a_large_schema_compile_it_once_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"p{number}": {"type": "string"} for number in range(200)}
    schema = {"properties": {"text": {"type": "string"}, **names}, "required": ["text"]}
    bench.servers.tools = {"echo": msgspec.json.encode({"name": "echo", "inputSchema": schema})}
    await bench.serve("time")
    threads = []

    class Noting(ArgumentCheck):
        def __init__(self, schema: Any) -> None:
            threads.append(threading.current_thread())
            super().__init__(schema)

    monkeypatch.setattr(arguments_module, "ArgumentCheck", Noting)
    caller = bench.caller()
    calls = [caller.call("time", arguments=b'{"text": "hi"}') for _ in range(3)]
    refused = caller.refused("time", arguments=b'{"p1": "hi"}')
    *results, fault = await asyncio.gather(*calls, refused)
    assert all(b"hi" in result.payload for result in results)
    assert fault.reason == Reason.INVALID_ARGUMENTS
    (thread,) = threads
    assert thread is not threading.main_thread()


async def test_an_integer_of_thousands_of_digits_is_the_callers_mistake(bench: Bench) -> None:
    await bench.serve("time")
    arguments = b'{"text": ' + b"9" * 4_301 + b"}"
    fault = await bench.caller().refused("time", arguments=arguments)
    assert (fault.reason, fault.started) == (Reason.INVALID_ARGUMENTS, "no")


async def test_line_breaks_in_arguments_never_reach_a_server_of_lines(bench: Bench) -> None:
    await bench.serve("time")
    result = await bench.caller().call("time", arguments=b'{\r\n "text":\n "a\\nb"}\n')
    assert b'{   \\"text\\":  \\"a\\\\nb\\"} ' in result.payload


async def test_a_tool_whose_exposed_name_is_taken_can_be_called_by_its_original_name(
    bench: Bench,
) -> None:
    upsert = bench.upsert(bench.spec("time"))
    upsert.toolset.exposed[0].skipped = True
    await bench.push(upsert)
    assert (await bench.caller().call("time")).payload


NOTHING = Grant(NameFilter(whitelist=("other",)))
ACME = Grant(NameFilter(whitelist=("echo",)), {"guest": None})


async def test_a_tool_without_a_grant_is_refused_like_a_missing_one(bench: Bench) -> None:
    await bench.serve("time", policy=ServerPolicy(grants={"acme": ACME}))
    await bench.serve("mine", policy=ServerPolicy(grants={"rival": Grant()}))
    caller = bench.caller()
    assert (await caller.call("time", tenant="acme")).payload
    for tenant, agent in (("rival", ""), ("acme", "guest")):
        there = await caller.refused("time", tenant=tenant, agent=agent)
        never = await caller.refused("tine", tenant=tenant, agent=agent)
        assert there.reason is never.reason is Reason.TOOL_NOT_FOUND
        assert there.metadata.get("nearest") == never.metadata.get("nearest")
        assert there.message.replace("server time", "") == never.message.replace("server tine", "")
    assert "mine" not in (await caller.refused("nine", tenant="acme")).message


@contextmanager
def recorded_functions() -> Iterator[list[str]]:
    """Record the functions of admission that are called, in order.

    `generations` and `current_generations` are left out: supervision reads them at any time.
    """
    called: list[str] = []
    decides = ("calls/admission.py", "core/tools/policy.py", "instances/pool.py", "spec/policy.py")

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_name
        if (
            event == "call"
            and frame.f_code.co_filename.endswith(decides)
            and "generations" not in frame.f_code.co_qualname  # also its comprehensions
        ):
            called.append(name)

    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)


async def test_a_tool_without_a_grant_takes_the_same_code_path_as_a_missing_one(
    bench: Bench,
) -> None:
    await bench.serve("time", policy=ServerPolicy(grants={"acme": ACME, "rival": Grant()}))
    await bench.serve("mine", policy=ServerPolicy(grants={"rival": Grant()}))
    await bench.serve("some", policy=ServerPolicy(grants={"acme": NOTHING, "rival": Grant()}))
    caller = bench.caller()
    for server in ("time", "mine", "some"):
        assert (await caller.call(server, tenant="rival")).payload  # compiles its policy
    pairs = [
        (("mine", "echo"), ("nine", "echo")),  # a server
        (("some", "echo"), ("some", "ecko")),  # a tool
    ]
    for there, never in pairs:
        for _ in range(2):  # the second time from what is remembered
            with recorded_functions() as taken:
                first = await caller.refused(*there, tenant="acme")
            with recorded_functions() as expected:
                second = await caller.refused(*never, tenant="acme")
            assert taken == expected
            assert "resolve" in taken
            assert first.reason is second.reason is Reason.TOOL_NOT_FOUND


async def test_a_change_of_grants_counts_at_once_and_starts_no_instance(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()
    assert (await caller.call("time", tenant="acme")).payload
    started = len(bench.servers.opened)
    await bench.serve("time", policy=ServerPolicy(grants={}))
    assert (await caller.refused("time", tenant="acme")).reason is Reason.TOOL_NOT_FOUND
    await bench.serve("time", policy=ServerPolicy(grants={"*": Grant()}))
    assert (await caller.call("time", tenant="acme")).payload
    assert len(bench.servers.opened) == started


async def test_calls_of_one_head_are_resolved_once_until_the_servers_change(bench: Bench) -> None:
    await bench.serve("time")
    caller = bench.caller()

    async def resolutions() -> int:
        with recorded_functions() as called:
            assert (await caller.call("time", tenant="acme")).payload
        return called.count("resolve")

    assert [await resolutions() for _ in range(3)] == [1, 0, 0]
    generation = bench.worker.pool.resolve("time", "acme")
    assert bench.worker.pool.replace(generation)  # as its instances are restarted
    assert [await resolutions() for _ in range(2)] == [1, 0]
    schema = {"type": "object", "properties": {"text": {"maxLength": 1}}}
    bench.servers.tools = {"echo": msgspec.json.encode({"name": "echo", "inputSchema": schema})}
    await bench.serve("time")
    assert (await caller.refused("time", tenant="acme")).reason is Reason.INVALID_ARGUMENTS


async def test_a_rule_denies_by_arguments_and_repeats_none_of_them(bench: Bench) -> None:
    rule = ArgumentRule('args.text.startsWith("/etc") && tenant == "acme"', ("ec*",))
    await bench.serve("time", policy=ServerPolicy(rules=(rule,)))
    caller = bench.caller()
    fault = await caller.refused("time", tenant="acme", arguments=b'{"text": "/etc/shadow"}')
    assert (fault.reason, fault.started) == (Reason.PERMISSION_DENIED, "no")
    assert fault.metadata["rule"] == "1"
    assert "shadow" not in fault.message
    fault = await caller.refused("time", arguments=rb'{"text": "a\u0000/etc/shadow"}')
    assert "has the character 0" in fault.message
    assert (await caller.call("time", tenant="acme", arguments=b'{"text": "/home"}')).payload
    assert (await caller.call("time", tenant="rival", arguments=b'{"text": "/etc"}')).payload


async def test_a_worker_without_the_package_of_rules_denies_and_says_what_to_install(
    bench: Bench, no_cel: None
) -> None:
    await bench.serve("time", policy=ServerPolicy(rules=(ArgumentRule("args.not_cached == 1"),)))
    fault = await bench.caller().refused("time")
    assert fault.reason is Reason.PERMISSION_DENIED
    assert "this worker cannot evaluate it" in fault.message
    assert "pip install 'leaseway[rules]'" in fault.message


async def test_permissions_deny_calls_by_path_and_by_effect(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    reads = {"annotations": {"readOnlyHint": True}, "inputSchema": schema}
    bench.servers.tools = {
        "read": msgspec.json.encode({"name": "read", **reads}),
        "change": msgspec.json.encode({"name": "change", "inputSchema": schema}),
    }
    permissions = Permissions(write=False, allowed_paths=("/data",), denied_paths=("secrets",))
    await bench.serve("files", policy=ServerPolicy(permissions=permissions))
    caller = bench.caller()
    assert (await caller.call("files", "read", arguments=b'{"path": "/data/a"}')).payload
    for path in (b"/etc/shadow", b"/data/secrets/a", b"/data/../etc/shadow"):
        fault = await caller.refused("files", "read", arguments=b'{"path": "%b"}' % path)
        assert (fault.reason, fault.started) == (Reason.PERMISSION_DENIED, "no")
        assert "a path in its arguments is not permitted" in fault.message
        assert "shadow" not in fault.message
    fault = await caller.refused("files", "change", arguments=b'{"path": "/data/a"}')
    assert "has write: false" in fault.message


async def test_a_tenant_may_do_less_than_the_servers_permissions_allow(bench: Bench) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    bench.servers.tools = {"open": msgspec.json.encode({"name": "open", "inputSchema": schema})}
    grants = {
        "acme": Grant(permissions=Permissions(allowed_paths=("/data/acme",))),
        "guest": Grant(permissions=Permissions(write=False)),
        "rival": Grant(),
    }
    policy = ServerPolicy(grants=grants, permissions=Permissions(allowed_paths=("/data",)))
    await bench.serve("files", policy=policy)
    caller = bench.caller()

    async def opens(tenant: str, path: str) -> bool:
        arguments = msgspec.json.encode({"path": path})
        result = await caller.call("files", "open", tenant=tenant, arguments=arguments)
        return not result.HasField("status")

    for tenant, path, expected in (
        ("acme", "/data/acme/a", True),
        ("acme", "/data/rival/a", False),
        ("acme", "/etc/passwd", False),
        ("rival", "/data/acme/a", True),
        ("rival", "/etc/passwd", False),
        ("guest", "/data/acme/a", False),
    ):
        assert await opens(tenant, path) is expected, (tenant, path)


async def test_external_tools_are_limited_for_each_tenant_by_itself(bench: Bench) -> None:
    policy = ServerPolicy(risks=(("echo", "external"),), rate=Rate(2, 3600.0))
    await bench.serve("time", policy=policy)
    caller = bench.caller()
    for _ in range(2):
        assert (await caller.call("time", tenant="acme")).payload
    fault = await caller.refused("time", tenant="acme")
    assert (fault.reason, fault.started) == (Reason.RATE_LIMITED, "no")
    assert fault.retry_delay is not None
    assert fault.retry_delay > 1700
    assert (await caller.call("time", tenant="rival")).payload


async def test_concurrent_calls_of_a_tenant_are_limited(bench: Bench) -> None:
    policy = ServerPolicy(limits={"acme": TenantLimits(concurrent=1)})
    await bench.hold("time", policy=policy)
    caller = bench.caller()
    first = await caller.begin("time", tenant="acme")
    assert (await caller.refused("time", tenant="acme")).reason is Reason.RATE_LIMITED
    bench.servers.holds = False
    bench.servers.opened[0].calls[0].answer(b"{}")
    assert (await caller.result(first)).payload
    assert (await caller.call("time", tenant="acme")).payload


async def test_a_call_that_waits_for_a_permit_learns_so_before_its_timeout_passes(
    bench: Bench,
) -> None:
    bench.plane.fleet = sync_pb2.Fleet(workers=2)
    bench.plane.end_stream()
    await bench.plane.hello()
    limits = {"acme": TenantLimits(calls=Rate(6, 60.0))}
    await bench.serve("time", policy=ServerPolicy(limits=limits))
    fault = await bench.caller().refused("time", tenant="acme", timeout_ms=300)
    assert (fault.reason, fault.started) == (Reason.RATE_LIMITED, "no")
    assert fault.metadata["scope"] == "tenant"


async def test_how_another_tenants_lease_ended_is_not_revealed(bench: Bench) -> None:
    await bench.serve("files", shared=False)
    caller = bench.caller()
    result = await caller.call("files", tenant="acme", session="d1")
    lease = result.lease.id
    guesses = []
    for release in (False, True):
        if release:
            bench.worker.leases.release(lease)
        for guessed in (lease, f"{lease}0"):
            fault = await caller.refused("files", tenant="rival", session="d1", lease_id=guessed)
            guesses.append((fault.reason, fault.message.replace(guessed, "ID")))
    assert set(guesses) == {(Reason.LEASE_LOST, guesses[0][1])}
    own = await caller.refused("files", tenant="acme", session="d1", lease_id=lease)
    assert own.reason is Reason.LEASE_RELEASED


async def test_a_server_probed_for_other_tenants_looks_like_a_missing_one(bench: Bench) -> None:
    spec = bench.spec("files", policy=ServerPolicy(grants={"acme": Grant()}))
    caller = bench.caller()
    with bench.worker.pool.probing(spec):
        told = await caller.refused("files", tenant="acme")
        hidden = await caller.refused("files", tenant="rival")
        never = await caller.refused("nothing", tenant="rival")
    assert told.reason is Reason.SERVER_NOT_READY
    assert hidden.reason is never.reason is Reason.TOOL_NOT_FOUND
    assert hidden.message.replace("files", "X") == never.message.replace("nothing", "X")
