"""From configuration files to the coordinator."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.specs import part

from leaseway.control_plane import config_feed
from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.config.loading import FileContent, parse_contents
from leaseway.control_plane.config.openapi.documents import Documents
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.config.schema.kinds.http_api import documents as http_api_documents
from leaseway.control_plane.config.tree.files import Gone, Unreadable
from leaseway.control_plane.config_feed import load_config
from leaseway.control_plane.plane import Plane
from leaseway.spec.model import VariantKey

SYSTEM = Source("system", Path("system.yaml"))
DOMAIN = Source("domain", Path("acme.yaml"), "acme")
GOOD = "version: 1\nservers: {a: {transport: stdio, command: x}}\n"


def reasons(plane: Plane) -> list[tuple[str, str]]:
    return [
        (problem.problem.reason, problem.problem.tenant) for problem in plane.state.problems.open()
    ]


async def test_all_layers_make_one_configuration() -> None:
    plane = Plane(epoch=1)
    domain = "version: 1\nservers: {a: {enabled: false}, b: {}}\n"
    await load_config(plane, {SYSTEM: GOOD, DOMAIN: domain})
    assert plane.state.servers.desired is not None
    assert list(plane.state.servers.desired) == [VariantKey("a"), VariantKey("a", "acme")]
    assert reasons(plane) == [("UNDECLARED_SERVER", "acme")]


@pytest.mark.parametrize("broken", ["{", Unreadable("It is a folder."), Gone()])
async def test_a_broken_file_changes_nothing_and_is_reported(broken: str | Unreadable) -> None:
    plane = Plane(epoch=1)
    await load_config(plane, {SYSTEM: GOOD})
    before = plane.state.servers.desired
    await load_config(plane, {SYSTEM: "version: 1\nservers: {}\n", DOMAIN: broken})
    assert plane.state.servers.desired == before
    (problem,) = [each_problem.problem for each_problem in plane.state.problems.open()]
    assert (problem.scope, problem.severity) == ("workspace", "error")
    assert "acme.yaml" in problem.message


async def test_a_missing_file_means_no_servers_and_is_reported() -> None:
    plane = Plane(epoch=1)
    await load_config(plane, {SYSTEM: None})
    assert plane.state.servers.desired == {}
    assert reasons(plane) == [("CONFIG_MISSING", "")]


async def test_a_slow_parse_does_not_block_the_loop_and_changes_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text(GOOD)
    going_on, may_end = threading.Event(), threading.Event()
    texts: list[object] = []

    def slowly(found: Mapping[Source, FileContent]) -> ParsedConfig:
        texts.append(*found.values())
        going_on.set()
        assert may_end.wait(60)
        return parse_contents(found)

    monkeypatch.setattr(config_feed, "parse_contents", slowly)
    plane = Plane(epoch=1)
    following = asyncio.create_task(config_feed.follow_config(plane, [Source("native", path)]))
    async with asyncio.timeout(BOUND):
        assert await asyncio.to_thread(going_on.wait, 60)  # the loop is free meanwhile
        newest = GOOD.replace("a:", "b:")
        fresh = path.with_suffix(".new")
        fresh.write_text(newest)
        fresh.replace(path)  # at once: half of it would be one more text
        may_end.set()
        while list(plane.state.servers.desired or {}) != [VariantKey("b")]:
            await plane.wait_for_change(1)
    following.cancel()
    await asyncio.wait({following})
    assert texts == [GOOD, newest]


BOTH = GOOD.replace("}}", "}, b: {transport: stdio, command: x}}")


def swap(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_slowly_written_file_removes_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text(BOTH)
    parsed: asyncio.Queue[object] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def parse(found: Mapping[Source, FileContent]) -> ParsedConfig:
        (text,) = found.values()
        loop.call_soon_threadsafe(parsed.put_nowait, text)
        return parse_contents(found)

    taken: list[frozenset[str]] = []
    monkeypatch.setattr(config_feed, "parse_contents", parse)
    monkeypatch.setattr(config_feed, "REMOVAL_DELAY", BOUND)
    monkeypatch.setattr(config_feed, "MAX_REMOVAL_DELAY", BOUND)
    plane = Plane(epoch=1)
    following = asyncio.create_task(
        config_feed.follow_config(
            plane, [Source("native", path)], lambda _, parsed: taken.append(parsed.declared)
        )
    )
    whole = BOTH.replace("command: x}}", "command: y}}")
    async with asyncio.timeout(BOUND):
        assert await parsed.get() == BOTH
        swap(path, GOOD)
        assert await parsed.get() == GOOD
        swap(path, whole)
        assert await parsed.get() == whole
        while len(taken) < 2:
            await plane.wait_for_change(1)
    following.cancel()
    await asyncio.wait({following})
    assert taken == [frozenset({"servers.a", "servers.b"})] * 2


@pytest.mark.parametrize("longest", [0.0, BOUND])
async def test_servers_missing_in_a_file_are_removed_after_a_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text(BOTH)
    monkeypatch.setattr(config_feed, "REMOVAL_DELAY", 0.2)
    monkeypatch.setattr(config_feed, "MAX_REMOVAL_DELAY", longest)
    plane = Plane(epoch=1)
    following = asyncio.create_task(config_feed.follow_config(plane, [Source("native", path)]))
    async with asyncio.timeout(BOUND):
        for text, ids in [(BOTH, ["a", "b"]), (GOOD, ["a"])]:
            swap(path, text)
            while list(plane.state.servers.desired or {}) != [
                VariantKey(server_id) for server_id in ids
            ]:
                await plane.wait_for_change(1)
    following.cancel()
    await asyncio.wait({following})


async def test_tenants_of_a_file_are_part_of_its_declarations() -> None:
    plane = Plane(epoch=1)
    text = GOOD.replace("{a: {", "{a: {enabled: false, ") + "tenants: {acme: {servers: [a]}}\n"
    parsed = await load_config(plane, {SYSTEM: text})
    assert parsed is not None
    assert parsed.declared == {"servers.a", "tenants.acme"}


async def test_each_operation_that_is_no_tool_is_a_separate_problem(tmp_path: Path) -> None:
    document = {
        "openapi": "3.0.3",
        "servers": [{"url": "http://127.0.0.1:1"}],
        "paths": {
            "/a": {"get": {}, "trace": {}},
            "/b": {"trace": {}},
            "/c": {"trace": {}},
        },
    }
    (tmp_path / "api.json").write_text(json.dumps(document))
    text = "version: 1\nservers:\n  s: { transport: http_api, openapi: api.json }\n"
    plane = Plane(epoch=1)
    await load_config(plane, {Source("system", tmp_path / "mcp.yaml"): text})
    told = [problem.problem.message for problem in plane.state.problems.open()]
    operations = ("TRACE /a", "TRACE /b", "TRACE /c")
    assert [sum(operation in text for text in told) for operation in operations] == [1, 1, 1]
    assert len(told) == 3


async def test_a_document_that_changes_while_the_configuration_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_feed, "_POLL_INTERVAL", 0.01)
    path, document = tmp_path / "mcp.yaml", tmp_path / "api.json"
    path.write_text("version: 1\nservers:\n  s: { transport: http_api, openapi: api.json }\n")

    def write(name: str) -> None:
        info, servers = {"title": "t", "version": "1"}, [{"url": "https://a.example"}]
        paths = {"/x": {"get": {"operationId": name, "responses": {}}}}
        api = {"openapi": "3.0.3", "info": info, "servers": servers, "paths": paths}
        swap(document, json.dumps(api))

    def change_meanwhile(found: Mapping[Source, FileContent]) -> ParsedConfig:
        parsed = parse_contents(found)
        write("newer")
        monkeypatch.setattr(config_feed, "parse_contents", parse_contents)
        return parsed

    monkeypatch.setattr(config_feed, "parse_contents", change_meanwhile)
    write("older")
    plane = Plane(epoch=1)
    names: list[str] = []
    following = asyncio.create_task(config_feed.follow_config(plane, [Source("native", path)]))
    async with asyncio.timeout(BOUND):
        while names != ["newer"]:
            await plane.wait_for_change(1)
            spec = (plane.state.servers.desired or {}).get(VariantKey("s"))
            names = [] if spec is None else [tool.name for tool in part(spec).http_tools]
    following.cancel()
    await asyncio.wait({following})


async def test_a_web_server_that_hangs_holds_back_neither_other_servers_nor_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = Documents()
    monkeypatch.setattr(config_feed, "DOCUMENTS", documents)
    monkeypatch.setattr(http_api_documents, "DOCUMENTS", documents)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await may_answer.wait()
        head = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}}
        paths = {"/x": {"get": {"operationId": "x", "responses": {}}}}
        text = json.dumps({**head, "servers": [{"url": "http://x"}], "paths": paths}).encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/openapi.json"
    api = f"api: {{transport: http_api, openapi: '{url}'}}"
    path = tmp_path / "mcp.yaml"
    path.write_text(GOOD.replace("}}", f"}}, {api}}}"))
    plane = Plane(epoch=1)
    following = asyncio.create_task(config_feed.follow_config(plane, [Source("native", path)]))

    async def until(*servers: str) -> None:
        while set(plane.state.servers.desired or {}) != {VariantKey(server) for server in servers}:
            await plane.wait_for_change(1)

    async with server, asyncio.timeout(BOUND):
        await until("a")
        await asked.wait()
        swap(path, GOOD.replace("a:", "b:").replace("}}", f"}}, {api}}}"))
        await until("b")
        may_answer.set()
        await until("b", "api")  # without another change
        following.cancel()
        await asyncio.wait({following})


async def test_the_event_of_a_reload_with_many_tenants_says_what_has_changed() -> None:
    plane = Plane(epoch=1)
    domains = {
        Source("domain", Path(f"/etc/leaseway/tenants/t{number:03}.yaml"), f"t{number:03}"): (
            "version: 1\nservers: {}\n"
        )
        for number in range(100)
    }
    await load_config(plane, {SYSTEM: GOOD, **domains})
    assert plane.events.reload is not None
    assert plane.events.reload.message.endswith("t003.yaml and 96 more: 1 added.")
