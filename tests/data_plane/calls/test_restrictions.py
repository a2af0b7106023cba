"""Rules, permissions, grants and limits: at every method, and never in the way of other callers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.pace import slowness

from leaseway.spec.filters.names import NameFilter
from leaseway.spec.policy import ArgumentRule, Grant, Permissions, Rate, ServerPolicy, TenantLimits
from leaseway.wire.errors import Reason

Bench = Any
ONLY_DATA = Permissions(allowed_paths=("/data",))
GREET = b'{"name":"greet"}'


async def serve(bench: Bench, policy: ServerPolicy, **fields: Any) -> None:
    """Serve `files`, which has a tool `echo`, a prompt and resources."""
    upsert = bench.upsert(bench.spec("files", policy=policy, **fields))
    upsert.toolset.recorded_prompts.append(GREET)
    upsert.toolset.prompts.add(original_name="greet", name="greet")
    await bench.push(upsert)


async def reason_of(caller: Any, method: str, params: Any, **fields: Any) -> Reason | None:
    encoded = params if isinstance(params, bytes) else json.dumps(params).encode()
    result = await caller.call("files", "echo", method=method, arguments=encoded, **fields)
    if not result.HasField("status"):
        return None
    from leaseway.wire.status import fault_from_status

    return fault_from_status(result.status).reason


def completion(ref: dict[str, str], name: str, value: str, **known: str) -> dict[str, Any]:
    return {
        "ref": ref,
        "argument": {"name": name, "value": value},
        "context": {"arguments": known},
    }


TEMPLATE = {"type": "ref/resource", "uri": "file:///{folder}/{name}"}
PROMPT = {"type": "ref/prompt", "name": "greet"}


@pytest.mark.parametrize(
    ("method", "params", "allowed"),
    [
        ("", {"text": "hi", "any": {"deep": ["/etc/passwd"]}}, False),
        ("", {"text": "hi", "any": {"deep": ["/data/x"]}}, True),
        ("resources/read", {"uri": "file:///data/a"}, True),
        ("resources/read", {"uri": "note://a"}, True),
        ("resources/read", {"uri": "file:///etc/passwd"}, False),
        ("resources/read", {"uri": " file:///etc/passwd"}, False),
        ("resources/read", {"uri": "URL:file:///etc/passwd"}, False),
        ("resources/read", {"uri": "etc/passwd"}, False),
        ("resources/read", {"uri": "note://a", "path": "/etc/passwd"}, False),
        ("resources/subscribe", {"uri": "file:///etc/passwd"}, False),
        ("prompts/get", {"name": "greet", "arguments": {"about": "/data/x"}}, True),
        ("prompts/get", {"name": "greet", "arguments": {"about": "/etc/passwd"}}, False),
        ("prompts/get", {"name": "greet", "arguments": {"file_name": "etc/passwd"}}, False),
        ("completion/complete", completion(PROMPT, "about", "/etc/pass"), False),
        ("completion/complete", completion(PROMPT, "about", "wor"), True),
        ("completion/complete", completion(TEMPLATE, "name", "a", folder="data"), True),
        ("completion/complete", completion(TEMPLATE, "name", "a", folder="etc"), False),
        ("completion/complete", completion(TEMPLATE, "folder", "da"), False),
    ],
)
async def test_permissions_judge_every_method(
    bench: Bench, method: str, params: dict[str, Any], allowed: bool
) -> None:
    await serve(bench, ServerPolicy(permissions=ONLY_DATA))
    expected = None if allowed else Reason.PERMISSION_DENIED
    assert await reason_of(bench.caller(), method, params) is expected


@pytest.mark.parametrize("method", ["resources/read", "prompts/get"])
async def test_read_false_denies_every_method_that_reads(bench: Bench, method: str) -> None:
    await serve(bench, ServerPolicy(permissions=Permissions(read=False)))
    params = {"uri": "note://a"} if method == "resources/read" else {"name": "greet"}
    assert await reason_of(bench.caller(), method, params) is Reason.PERMISSION_DENIED


async def test_a_tenants_permissions_judge_every_method(bench: Bench) -> None:
    grants = {"acme": Grant(permissions=ONLY_DATA), "rival": Grant()}
    await serve(bench, ServerPolicy(grants=grants))
    caller = bench.caller()
    read = {"uri": "file:///etc/passwd"}
    denied = await reason_of(caller, "resources/read", read, tenant="acme")
    assert denied is Reason.PERMISSION_DENIED
    assert await reason_of(caller, "resources/read", read, tenant="rival") is None


async def test_rules_judge_every_method_by_its_name_and_params(bench: Bench) -> None:
    rules = (
        ArgumentRule('method == "prompts/get" && has(args.who) && args.who == "root"'),
        ArgumentRule("true", ("note://secret/*",)),
    )
    await serve(bench, ServerPolicy(rules=rules))
    caller = bench.caller()
    for method, params, allowed in (
        ("prompts/get", {"name": "greet", "arguments": {"who": "root"}}, False),
        ("prompts/get", {"name": "greet", "arguments": {"who": "me"}}, True),
        ("resources/read", {"uri": "note://secret/a"}, False),
        ("resources/read", {"uri": "note://open/a"}, True),
        ("", {"text": "root"}, True),
    ):
        expected = None if allowed else Reason.PERMISSION_DENIED
        assert await reason_of(caller, method, params) is expected, (method, params)


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("note://open/a", True),
        ("note://open/a%20b", True),
        ("note://secret/a", False),
        ("NOTE://secret/a", False),
        ("note://open/../secret/a", False),
        ("note://./secret/a", False),
        ("note://%73ecret/a", False),
        ("https://me@SECRET.example:443/a", False),
        ("https:/secret.example/a", False),
        ("file://other/a", False),
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        ArgumentRule("true", ("note://secret/*", "HTTPS://me@Secret.example/*")),
        ArgumentRule('tool.contains("://secret")'),
        ArgumentRule('args.uri.contains("://secret")'),
    ],
)
async def test_rules_judge_a_uri_in_each_way_that_servers_may_read_it(
    bench: Bench, uri: str, allowed: bool, rule: ArgumentRule
) -> None:
    await serve(bench, ServerPolicy(rules=(rule,)))
    expected = None if allowed else Reason.PERMISSION_DENIED
    assert await reason_of(bench.caller(), "resources/read", {"uri": uri}) is expected


async def test_a_completion_of_a_template_is_judged_by_what_is_filled_in(bench: Bench) -> None:
    await serve(bench, ServerPolicy(rules=(ArgumentRule("true", ("file:///secret/*",)),)))
    caller = bench.caller()
    for folder, allowed in (("open", True), ("secret", False), ("open/../secret", False)):
        params = completion(TEMPLATE, "name", "a", folder=folder)
        expected = None if allowed else Reason.PERMISSION_DENIED
        assert await reason_of(caller, "completion/complete", params) is expected, folder


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("prompts/get", {"name": "greet", "arguments": ["/etc/x"]}, Reason.INVALID_ARGUMENTS),
        ("prompts/get", {"name": "greet", "arguments": None}, None),
        ("prompts/get", {"name": "greet", "path": "/etc/x"}, Reason.PERMISSION_DENIED),
        (
            "completion/complete",
            {**completion(PROMPT, "about", "a"), "context": "/etc/x"},
            Reason.INVALID_ARGUMENTS,
        ),
        (
            "completion/complete",
            {**completion(PROMPT, "about", "a"), "context": {"arguments": ["/etc/x"]}},
            Reason.INVALID_ARGUMENTS,
        ),
        (
            "completion/complete",
            {**completion(PROMPT, "about", "a"), "context": {"path": "/etc/x"}},
            Reason.PERMISSION_DENIED,
        ),
        ("completion/complete", {**completion(PROMPT, "about", "a"), "context": None}, None),
    ],
)
async def test_all_that_a_server_gets_of_a_request_is_judged(
    bench: Bench, method: str, params: dict[str, Any], expected: Reason | None
) -> None:
    await serve(bench, ServerPolicy(permissions=ONLY_DATA))
    assert await reason_of(bench.caller(), method, params) is expected


async def test_a_grant_of_some_tools_is_none_of_prompts_and_resources(bench: Bench) -> None:
    some = NameFilter(whitelist=("echo",))
    grants = {"some": Grant(some), "agents": Grant(agents={"bot": some}), "whole": Grant()}
    await serve(bench, ServerPolicy(grants=grants))
    caller = bench.caller()
    for method, params in (
        ("resources/read", {"uri": "note://a"}),
        ("resources/subscribe", {"uri": "note://a"}),
        ("prompts/get", {"name": "greet"}),
        ("completion/complete", completion(PROMPT, "about", "x")),
    ):
        for tenant, agent in (("some", ""), ("agents", "bot"), ("nobody", "")):
            found = await reason_of(caller, method, params, tenant=tenant, agent=agent)
            assert found is Reason.TOOL_NOT_FOUND, (method, tenant)
    assert await reason_of(caller, "prompts/get", {"name": "greet"}, tenant="whole") is None
    assert await reason_of(caller, "prompts/get", {"name": "greet"}, tenant="agents") is None


async def test_meta_of_a_caller_is_judged_too(bench: Bench) -> None:
    await serve(bench, ServerPolicy(permissions=ONLY_DATA))
    caller = bench.caller()
    hidden = json.dumps({"x-path": {"to": "/etc/passwd"}}).encode()
    assert await reason_of(caller, "", {"text": "hi"}, meta=hidden) is Reason.PERMISSION_DENIED
    read = {"uri": "note://a", "_meta": {"x": "file:/etc/passwd"}}
    assert await reason_of(caller, "resources/read", read) is Reason.PERMISSION_DENIED


async def test_of_a_name_that_is_there_twice_the_server_reads_what_was_judged(bench: Bench) -> None:
    await serve(bench, ServerPolicy(permissions=ONLY_DATA))
    caller = bench.caller()
    twice = b'{"text": "hi", "path": "/etc/passwd", "path": "/data/a"}'
    result = await caller.call("files", arguments=twice)
    assert b"/data/a" in result.payload
    assert b"passwd" not in result.payload
    other = b'{"text": "hi", "path": "/data/a", "path": "/etc/passwd"}'
    assert await reason_of(caller, "", other) is Reason.PERMISSION_DENIED


async def test_a_name_that_differs_only_in_case_does_not_pass_a_rule(bench: Bench) -> None:
    rule = ArgumentRule('has(args.path) && args.path.startsWith("/etc")')
    await serve(bench, ServerPolicy(rules=(rule,)))
    caller = bench.caller()
    sent = {"text": "hi", "PATH": "/etc/passwd"}
    assert await reason_of(caller, "", sent) is Reason.PERMISSION_DENIED
    assert await reason_of(caller, "", {"text": "hi", "path": "/data"}) is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("", {"text": "/etc/passwd"}),
        ("", {"text": 7}),
        ("resources/read", {"uri": "file:///etc/passwd"}),
    ],
)
async def test_refused_calls_count_against_the_limits(
    bench: Bench, method: str, params: dict[str, Any]
) -> None:
    limits = {"acme": TenantLimits(calls=Rate(2, 3600.0))}
    await serve(bench, ServerPolicy(permissions=ONLY_DATA, limits=limits))
    caller = bench.caller()
    reasons = [await reason_of(caller, method, params, tenant="acme") for _ in range(4)]
    assert reasons[0] is reasons[1]
    assert reasons[0] in (Reason.PERMISSION_DENIED, Reason.INVALID_ARGUMENTS)
    assert reasons[2:] == [Reason.RATE_LIMITED] * 2


@pytest.mark.parametrize(
    "policy",
    [
        ServerPolicy(permissions=Permissions(allowed_paths=("/data",), denied_paths=(".env",))),
        ServerPolicy(rules=(ArgumentRule('args.exists(n, n.matches("^(a|b)*z$"))'),)),
        ServerPolicy(rules=(ArgumentRule("size(args.names) > 100000"),)),
    ],
)
async def test_denied_calls_of_one_tenant_hold_up_no_other(
    bench: Bench, policy: ServerPolicy
) -> None:
    await serve(bench, policy)
    await bench.serve("time")
    caller, other = bench.caller(), bench.caller()
    names = {f"name{n}_path": "/data/x" for n in range(20_000)}
    arguments = json.dumps({"text": "hi", "names": names, **names}).encode()
    sent = [
        await caller.begin("files", tenant="acme", arguments=arguments[:4_000_000])
        for _ in range(40)
    ]
    assert (await other.call("time", tenant="rival")).payload
    longest = 0.0
    pending = asyncio.gather(*(caller.result(call_id) for call_id in sent))
    while not pending.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    assert all(result.HasField("status") for result in await pending)
    assert longest < 0.25 * slowness()
