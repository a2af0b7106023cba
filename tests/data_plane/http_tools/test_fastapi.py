"""Tools of a live FastAPI application, imported from the document that it serves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from tests.conftest import BOUND
from tests.data_plane.http_tools.callers import Caller, calling, spec_of
from tests.specs import part

from leaseway.control_plane.config.openapi.operations import import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema

pytest.importorskip("fastapi", reason="FastAPI is not installed")
DATA = b"\x00\xff\x89PNG\r\n"
TEXT = base64.b64encode(DATA).decode()


class Shop:
    """Calls of the application's tools; arguments are checked as callers' are."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._schemas = {
            tool.name: input_schema(tool) for tool in part(caller.instance.spec).http_tools
        }

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        check = ArgumentCheck(self._schemas[tool])
        assert not check.violations(check.without_nulls(arguments))
        result = await self._caller.result(tool, **arguments)
        assert not result.get("isError"), result
        return json.loads(result["content"][0]["text"])


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    from tests.servers.fastapi_shop import shop as application

    app = application()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    document = json.loads(json.dumps(app.openapi()))
    made = import_document(document, address=f"{url}/openapi.json")
    assert not made.skipped
    assert made.base_url == url
    try:
        async with calling(spec_of(url, *made.tools)) as caller:
            yield Shop(caller)
    finally:
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(serving, BOUND)


async def test_a_partial_update_changes_only_what_it_names(shop: Shop) -> None:
    before = await shop.call("get_item", item_id=7)
    changed = await shop.call("change_item", item_id=7, name="new")
    assert changed == {**before, "name": "new"}
    changed = await shop.call("change_item", item_id=7, qty=None, active=None)
    assert changed == {**before, "name": "new"}, "null is what models send for what they omit"
    changed = await shop.call("change_item", item_id=7, note=None, active=True)
    assert changed == {**before, "name": "new", "note": None, "active": True}


async def test_a_replacement_has_the_servers_own_defaults(shop: Shop) -> None:
    assert await shop.call("put_item", item_id=8, name="x", kind="game") == {
        "name": "x",
        "active": True,
        "qty": 1,
        "kind": "game",
        "note": None,
        "tags": [],
    }


async def test_queries_and_headers_arrive(shop: Shop) -> None:
    found = await shop.call("list_items", tag=["a", "b,c"], since="2026-01-02", **{"x-trace": "t"})
    expected = {"tag": ["a", "b,c"], "limit": 10, "since": "2026-01-02", "kind": None, "trace": "t"}
    assert found == expected


async def test_a_file_and_its_fields_are_uploaded(shop: Shop) -> None:
    sent = await shop.call("upload", file=TEXT, title="T")
    assert sent == {"hex": DATA.hex(), "title": "T", "count": 1}


async def test_lists_of_files_and_optional_files_are_uploaded(shop: Shop) -> None:
    sent = await shop.call("uploads", files=[TEXT, TEXT], cover=TEXT, raw=TEXT, tags=["a", "b"])
    assert sent == {
        "hex": [DATA.hex(), DATA.hex()],
        "cover": DATA.hex(),
        "raw": DATA.hex(),
        "tags": ["a", "b"],
    }
    sent = await shop.call("uploads", files=[TEXT], cover=None)
    assert sent == {"hex": [DATA.hex()], "cover": None, "raw": None, "tags": None}


async def test_forms_and_bodies_of_several_values_are_sent(shop: Shop) -> None:
    sent = await shop.call("login", user="ann", scopes=["a", "b"], days=3)
    assert sent == {"user": "ann", "scopes": ["a", "b"], "days": 3}
    sent = await shop.call("many", items=[{"name": "x"}, {"name": "y", "note": None}], loud=True)
    assert sent == {"names": ["x", "y"], "loud": True}
