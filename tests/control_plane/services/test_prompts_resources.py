"""Prompts and resources over real gRPC: listed in pages, resolved, watched, held by workers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.conftest import BOUND
from tests.control_plane.conftest import SEAL, Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import FakeWorker, worker
from tests.control_plane.services.answers import fault_of, heard

from leaseway.control_plane.services import catalog as catalog_service
from leaseway.spec.codec import encode_spec
from leaseway.spec.filters.names import NameFilter
from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status

PROMPT = {
    "name": "ask",
    "title": "Ask",
    "description": "Asks.",
    "arguments": [{"name": "city", "required": True}],
    "icons": [{"src": "x"}],
}
RESOURCE = {
    "uri": "file:///a",
    "name": "a",
    "title": "A",
    "description": "A file.",
    "mimeType": "text/plain",
    "size": 3,
}
TEMPLATE = {"uriTemplate": "file:///{name}", "name": "any", "annotations": {"priority": 1}}


def prompts(*names: str) -> list[bytes]:
    return [json.dumps(PROMPT | {"name": name}).encode() for name in names]


def resources(*uris: str, size: int = 0) -> list[bytes]:
    return [json.dumps(RESOURCE | {"uri": uri, "text": "x" * size}).encode() for uri in uris]


TEMPLATES = [json.dumps(TEMPLATE).encode()]


async def resolve(
    running: Running, kind: catalog_pb2.NameKind.ValueType, *names: str, server: str = ""
) -> list[catalog_pb2.ResolvedTool]:
    request = catalog_pb2.ResolveToolsRequest(names=names, kind=kind, server_id=server)
    return list((await running.catalog.ResolveTools(request, timeout=60)).tools)


async def served(running: Running, w1: FakeWorker) -> None:
    """Serve one server with a prompt, a resource and a template."""
    running.load(spec("a"))
    await w1.serve(
        "x", prompts=prompts("ask"), resources=resources("file:///a"), templates=TEMPLATES
    )
    await w1.apply_until("a")
    await running.until(lambda state: state.ready)


async def test_prompts_are_listed_with_their_whole_definition(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        reply = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
        (prompt,) = reply.prompts
    assert (prompt.name, prompt.original_name, prompt.server_id) == ("a_ask", "ask", "a")
    assert (prompt.title, prompt.description, prompt.shared) == ("Ask", "Asks.", True)
    assert json.loads(prompt.arguments) == PROMPT["arguments"]
    assert json.loads(prompt.extra) == {"icons": [{"src": "x"}]}
    assert reply.registry_version == running.plane.state.visible.version > 0


async def test_resources_are_listed_with_their_definitions_and_templates_after_them(
    running: Running,
) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        reply = await running.catalog.ListResources(catalog_pb2.ListResourcesRequest())
        only = catalog_pb2.ListResourcesRequest(servers=["mcp_admin"])
        assert not (await running.catalog.ListResources(only)).resources
    resource, template = reply.resources
    assert (resource.uri, resource.is_template, resource.server_id) == ("file:///a", False, "a")
    assert (resource.name, resource.title, resource.mime_type) == ("a", "A", "text/plain")
    assert json.loads(resource.extra) == {"size": 3, "text": ""}
    assert (template.uri, template.is_template) == ("file:///{name}", True)
    assert json.loads(template.extra) == {"annotations": {"priority": 1}}


async def test_many_resources_come_in_pages_of_at_most_a_mebibyte(running: Running) -> None:
    running.load(spec("a"), spec("b"))
    uris = [f"file:///{number:04} {number}" for number in range(2_000)]
    async with worker(running.address) as w1:
        for _ in range(2):
            await w1.serve("x", resources=resources(*uris, size=400), templates=TEMPLATES)
        await w1.apply_until("a", "b")
        await running.until(lambda state: state.ready)
        seen: list[tuple[str, str]] = []
        pages = 0
        token = ""
        while token or not pages:
            request = catalog_pb2.ListResourcesRequest(page_token=token)
            page = await running.catalog.ListResources(request)
            assert page.ByteSize() <= 1024 * 1024 + 4096
            seen += [(resource.server_id, resource.uri) for resource in page.resources]
            token = page.next_page_token
            pages += 1
    listed = [(server, uri) for server in ("a", "b") for uri in uris]
    assert pages > 1
    assert seen == [*listed, ("a", "file:///{name}"), ("b", "file:///{name}")]


async def test_prompts_come_in_pages_too(running: Running) -> None:
    running.load(spec("a"))
    names = [f"p{number}" for number in range(3)]
    long = [json.dumps(PROMPT | {"name": n, "description": "d" * 700_000}).encode() for n in names]
    async with worker(running.address) as w1:
        await w1.serve(prompts=long)
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        seen: list[str] = []
        token = ""
        while token or not seen:
            request = catalog_pb2.ListPromptsRequest(page_token=token)
            page = await running.catalog.ListPrompts(request)
            seen += [prompt.original_name for prompt in page.prompts]
            token = page.next_page_token
    assert seen == names


async def test_a_prompt_is_resolved_by_its_names_and_can_be_repeated(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        kind = catalog_pb2.NAME_KIND_PROMPT
        for found in await resolve(running, kind, "a_ask", "a:ask"):
            assert (found.server_id, found.original_name) == ("a", "ask")
            assert (found.shared, found.read_only) == (True, True)
            assert [ref.id for ref in found.workers] == ["w1"]
        (missing,) = await resolve(running, kind, "a_x")
    fault = fault_from_status(missing.error)
    assert (fault.reason, fault.metadata["nearest"]) == (Reason.TOOL_NOT_FOUND, "a_ask")
    assert "prompt" in fault.message


async def test_a_resource_is_resolved_by_uri_template_or_server(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        kind = catalog_pb2.NAME_KIND_RESOURCE
        for found in await resolve(running, kind, "file:///a", "file:///new", "file:///{name}"):
            assert (found.server_id, found.original_name) == ("a", found.name)
            assert found.call_timeout.seconds == 60
        (missing,) = await resolve(running, kind, "db://x")
        (named,) = await resolve(running, kind, "db://x", server="a")
    assert "resource" in fault_from_status(missing.error).message
    assert (named.server_id, named.original_name) == ("a", "db://x")


async def test_a_change_of_prompts_or_resources_alone_reaches_watchers(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        async with asyncio.timeout(BOUND):
            seen = (await heard(watch)).registry_version
            for rules in ("prompts", "resources"):
                changed = replace(spec("a"), **{rules: NameFilter((), ("*a*",))})  # type: ignore[arg-type]
                running.load(changed)
                await w1.receive("delta")
                told = (await heard(watch)).registry_version
                assert told > seen
                seen = told
        watch.cancel()


async def test_servers_show_how_many_prompts_and_resources_are_exposed(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        reply = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
    (server,) = reply.servers
    assert (server.tool_count, server.prompt_count, server.resource_count) == (1, 1, 2)


async def test_an_upsert_of_prompts_and_resources_round_trips(running: Running) -> None:
    limited = replace(spec("a"), resources=NameFilter(("file:*",), ("*b",)))
    running.load(limited)
    async with worker(running.address) as w1:
        await w1.serve("x", prompts=prompts("ask"), resources=resources("file:///a"))
        await w1.apply_until("a")
        held = w1.held["a"]
    toolset = held.toolset
    assert list(toolset.recorded_prompts) == prompts("ask")
    assert [(p.original_name, p.name, p.skipped) for p in toolset.prompts] == [
        ("ask", "a_ask", False)
    ]
    assert list(toolset.recorded_resources) == resources("file:///a")
    assert list(toolset.resource_filter.whitelist) == ["file:*"]
    assert list(toolset.resource_filter.blacklist) == ["*b"]


def held_upsert() -> sync_pb2.Upsert:
    """Return a signed variant of an earlier control plane."""
    upsert = sync_pb2.Upsert(
        hashes=sync_pb2.HeldHashes(launch_hash="l", exposure_hash="e", toolset_hash="t"),
        toolset=sync_pb2.Toolset(
            recorded_prompts=prompts("ask", "off"),
            prompts=[sync_pb2.ExposedTool(original_name="ask", name="a_ask")],
            recorded_resources=resources("file:///a", "db:b"),
            recorded_templates=TEMPLATES,
            resource_filter=sync_pb2.NameFilter(blacklist=["db:*"]),
        ),
    )
    upsert.hashes.key.server_id = "a"
    upsert.spec = encode_spec(spec("a", command="x"))
    return SEAL.sign(upsert)


async def test_a_new_control_plane_restores_the_content_of_workers(running: Running) -> None:
    upsert = held_upsert()
    with running.plane.transition() as (state, now):
        state.record_config_problems((), now)
    async with worker(running.address, held=[upsert.hashes]) as w1:
        await w1.receive("want")
        await w1.send(held=sync_pb2.Held(variants=[upsert]))
        await w1.apply_until("a")
        await running.until(lambda state: state.visible.served)
        listed = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
        found = await running.catalog.ListResources(catalog_pb2.ListResourcesRequest())
    assert [prompt.name for prompt in listed.prompts] == ["a_ask"]
    assert [resource.uri for resource in found.resources] == ["file:///a", "file:///{name}"]


async def test_a_restored_variant_that_is_not_understood_costs_only_itself(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    upsert, newer = held_upsert(), held_upsert()
    newer.hashes.key.server_id = "b"
    newer.spec = newer.spec.replace(b'"launch":{', b'"launch":{"a_later_setting":true,')
    SEAL.sign(newer)
    with running.plane.transition() as (state, now):
        state.record_config_problems((), now)
    async with worker(running.address, held=[upsert.hashes, newer.hashes]) as w1:
        await w1.receive("want")
        await w1.send(held=sync_pb2.Held(variants=[newer, upsert]))
        await w1.apply_until("a")
        await running.until(lambda state: state.visible.served)
        listed = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
        assert [prompt.name for prompt in listed.prompts] == ["a_ask"]
    assert "The definition of server b cannot be used" in caplog.text


async def test_content_without_a_valid_signature_is_not_restored(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    upsert = held_upsert()
    upsert.spec = encode_spec(spec("a", command="sh"))  # not what was signed
    with running.plane.transition() as (state, now):
        state.record_config_problems((), now)
    async with worker(running.address, held=[upsert.hashes]) as w1:
        await w1.receive("want")
        await w1.send(held=sync_pb2.Held(variants=[upsert]))
        await running.until(lambda state: state.settled and state.committed.version)
        listed = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
    assert not listed.prompts
    assert "its content is ignored" in caplog.text


async def test_a_list_waits_until_a_worker_acknowledges_restored_content(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_service, "_FIRST_ACK_TIMEOUT", BOUND)
    upsert = held_upsert()
    with running.plane.transition() as (state, now):
        state.record_config_problems((), now)
    async with worker(running.address, held=[upsert.hashes]) as w1:
        await w1.receive("want")
        await w1.send(held=sync_pb2.Held(variants=[upsert]))
        await running.until(lambda state: state.settled and state.committed.version)
        request = catalog_pb2.ListPromptsRequest()
        listing = asyncio.ensure_future(running.catalog.ListPrompts(request))
        # Another request on the same connection is answered: the first one is being handled.
        await running.admin.GetStatus(admin_pb2.GetStatusRequest())
        assert not listing.done(), "no worker has acknowledged anything"
        await w1.apply_until("a")
        async with asyncio.timeout(BOUND):
            listed = await listing
    assert [prompt.name for prompt in listed.prompts] == ["a_ask"]
    assert not listed.pending


async def test_a_list_waits_a_limited_time_for_the_first_ack(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_service, "_FIRST_ACK_TIMEOUT", 0.05)
    upsert = held_upsert()
    with running.plane.transition() as (state, now):
        state.record_config_problems((), now)
    async with worker(running.address, held=[upsert.hashes]) as w1:
        await w1.receive("want")
        await w1.send(held=sync_pb2.Held(variants=[upsert]))
        await running.until(lambda state: state.settled and state.committed.version)
        async with asyncio.timeout(BOUND):
            listed = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
    assert (list(listed.prompts), list(listed.pending)) == ([], ["a"])


@pytest.mark.parametrize(
    "definition", [b"{", b"[]", b"{}", b"null", b'{"name": 7}', b'{"name": "\\ud800"}']
)
async def test_a_malformed_prompt_does_not_affect_others(
    running: Running, definition: bytes
) -> None:
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x", prompts=[definition, *prompts("ask")])
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        listed = await running.catalog.ListPrompts(catalog_pb2.ListPromptsRequest())
        assert list(w1.held["a"].toolset.recorded_prompts) == prompts("ask"), "of no use to it"
    assert [prompt.name for prompt in listed.prompts] == ["a_ask"]
    assert [p.problem.reason for p in running.plane.state.problems.open()] == ["INVALID_PROMPT"]


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b'"\\ud800!"', "contains half of a surrogate pair"),
        (b'"caf\xe9"', "is not JSON in UTF-8"),
        (b"1" * 5000, "contains a number beyond the range of a double"),
        (b"[" * 995 + b"]" * 995, "is nested more than 128 levels deep"),
    ],
)
async def test_a_definition_that_cannot_be_read_costs_neither_its_list_nor_the_stream(
    running: Running, value: bytes, cause: str
) -> None:
    running.load(spec("a"))
    odd = b'{"uri": "x:odd", "name": "odd", "description": %b}' % value
    good = b'{"uri": "x:y", "name": "n"}'
    async with worker(running.address) as w1:
        await w1.serve("x", resources=[odd, good], more_tools=[odd])
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        found = await running.catalog.ListResources(catalog_pb2.ListResourcesRequest())
        tools = await running.catalog.ListTools(catalog_pb2.ListToolsRequest())
        problems = await running.admin.ListProblems(admin_pb2.ListProblemsRequest())
    assert [resource.uri for resource in found.resources] == ["x:y"]
    assert [tool.name for tool in tools.tools] == ["a_x"]
    texts = {problem.reason: problem.message for problem in problems.problems}
    assert f"1 resource skipped: a definition {cause}." in texts["INVALID_RESOURCE"]
    assert f"1 tool skipped: a definition {cause}." in texts["INVALID_TOOL"]


async def test_lists_of_a_server_that_does_not_exist_are_refused(running: Running) -> None:
    async with worker(running.address) as w1:
        await served(running, w1)
        catalog = running.catalog
        for listing in (
            catalog.ListTools(catalog_pb2.ListToolsRequest(servers=["a", "aa"]), timeout=BOUND),
            catalog.ListPrompts(catalog_pb2.ListPromptsRequest(servers=["aa"]), timeout=BOUND),
            catalog.ListResources(catalog_pb2.ListResourcesRequest(servers=["aa"]), timeout=BOUND),
        ):
            fault = await fault_of(listing)
            assert fault.reason is Reason.TOOL_NOT_FOUND
            assert fault.message == "There is no server 'aa'. Did you mean 'a'?"
