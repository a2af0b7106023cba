"""Operations of public OpenAPI documents, called at a server that is built from the document.

The server routes by the document's paths and checks each parameter's position.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.data_plane.http_tools.callers import calling, spec_of

from leaseway.control_plane.config.openapi.operations import import_document
from leaseway.data_plane.core.tools.arguments import ArgumentCheck
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool

CORPUS = Path(__file__).resolve().parents[2] / "corpus" / "openapi"
ODD = "a/b ?#%25&=ä\u2603"
"""The value of text parameters: it must be escaped."""


def document(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(gzip.decompress((CORPUS / f"{name}.json.gz").read_bytes()))
    return read


METHODS = {
    "github": {"GET", "POST"},
    "kubernetes-core": {"GET", "POST", "PUT", "PATCH", "DELETE"},
    "wsf-schedule": {"GET"},
}
"""Methods that the called operations must include."""


class DocumentServer:
    """A server with a document's paths; it answers with the parsed request."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.app = web.Application()
        self._document = document
        for path, item in document["paths"].items():
            for method in ("get", "put", "post", "delete", "patch"):
                if method in item:
                    route = re.sub(r"\{([^}]+)\}", lambda m: f"{{p_{_plain(m[1])}}}", path)
                    with contextlib.suppress(ValueError):  # a path that the router does not support
                        self.app.router.add_route(
                            method.upper(), route, self._handler(path, method, item)
                        )

    def _handler(self, path: str, method: str, item: dict[str, Any]) -> Any:
        operation = item[method]
        declared = [
            self._follow(parameter)
            for parameter in (*item.get("parameters", []), *operation.get("parameters", []))
        ]

        async def handle(request: web.Request) -> web.Response:
            known = {parameter["name"] for parameter in declared if parameter["in"] == "query"}
            unknown = set(request.query) - known - {f"{name}[]" for name in known}
            body = await request.read()
            return web.json_response(
                {
                    "operation": operation["operationId"],
                    "path": {name[2:]: value for name, value in request.match_info.items()},
                    "query": {name: request.query.getall(name) for name in request.query},
                    "unknown": sorted(unknown),
                    "body": json.loads(body) if body else None,
                    "content_type": request.content_type,
                }
            )

        return handle

    def _follow(self, node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            found: Any = self._document
            for part in node["$ref"][2:].split("/"):
                found = found[part]
            node = found
        return node


@contextlib.asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def sample(parameter: HttpParameter) -> Any:
    """Return a value that a parameter's schema allows."""
    return _sample(dict(parameter.parsed))


def _sample(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "allOf"):
        if schema.get(key):
            return _sample(schema[key][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    match kind:
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
        case "array":
            return [_sample(schema.get("items", {}))]
        case "object":
            members = schema.get("properties", {})
            return {name: _sample(members.get(name, {})) for name in schema.get("required", [])}
    if "format" in schema or "pattern" in schema or "maxLength" in schema:
        return "2026-01-02" if schema.get("format") == "date" else "2026-01-02T03:04:05Z"
    return ODD


def chosen(name: str) -> list[HttpTool]:
    """Return operations of all methods and kinds in the document."""
    tools = [
        tool
        for tool in import_document(document(name)).tools
        if tool.body == "json" and "." not in tool.endpoint and len(tool.parameters) < 30
    ]
    step = max(1, len(tools) // 40)
    return [tool for tool in tools[::step] if _fits(tool)][:20]


def _fits(tool: HttpTool) -> bool:
    return ArgumentCheck(input_schema(tool)).accepts(_arguments(tool))


def _arguments(tool: HttpTool) -> dict[str, Any]:
    return {parameter.name: sample(parameter) for parameter in tool.parameters}


@pytest.mark.parametrize("name", ["github", "kubernetes-core", "wsf-schedule"])
async def test_twenty_operations_are_received_as_documented(name: str) -> None:
    tools = chosen(name)
    assert len(tools) == 20
    assert {tool.method for tool in tools} >= METHODS[name]
    async with (
        serving(DocumentServer(document(name)).app) as url,
        calling(spec_of(url, *tools)) as caller,
    ):
        for tool in tools:
            arguments = _arguments(tool)
            received = json.loads(await caller.text(tool.name, **arguments))
            assert received["unknown"] == []
            if tool.content_type:
                assert received["content_type"] == tool.content_type
            for parameter in tool.parameters:
                value = arguments[parameter.name]
                key = _plain(parameter.sent_as)
                if parameter.position == "path":
                    assert received["path"][key] == _flat(value)
                elif parameter.position == "query":
                    assert received["query"][parameter.sent_as] == [
                        _flat(item) for item in _items(value)
                    ]
                elif parameter.is_body:
                    assert received["body"] == value
                elif parameter.position == "body":
                    assert received["body"][parameter.sent_as] == value


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_flat, value))
    return value if isinstance(value, str) else json.dumps(value)
