"""Documents that are written out as a native file, which a plane must be able to read."""

from __future__ import annotations

from typing import Any

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.openapi.operations import import_document
from leaseway.control_plane.config.openapi.writing import native_server
from leaseway.data_plane.kinds.http_api.definitions import input_schema
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.spec.model import VariantKey


def written(paths: dict[str, Any], **more: Any) -> tuple[HttpTool, ...]:
    """Return the tools of a file that is written for a document, and read without an error."""
    document = {"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": paths}
    parsed = parse_text(native_server(import_document(document | more), "api", "x"), "mcp.yaml")
    assert [str(issue) for issue in parsed.issues if issue.severity == "error"] == []
    return parsed.servers[VariantKey("api")].part_as(HttpApiPart).http_tools


def test_what_security_sets_is_no_parameter_of_a_written_tool() -> None:
    places = {"header": "Api_Key", "query": "token", "cookie": "sid"}
    schemes = {
        place: {"type": "apiKey", "in": place, "name": name} for place, name in places.items()
    }
    parameters = [{"name": name.lower(), "in": place} for place, name in places.items()]
    parameters.append({"name": "sid", "in": "query"})
    (tool,) = written(
        {"/x": {"delete": {"parameters": parameters}}},
        components={"securitySchemes": schemes},
    )
    assert [(each.position, each.sent_as) for each in tool.parameters] == [("query", "sid")]


def test_a_schema_is_written_as_deep_as_a_file_may_be() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(16):
        schema = {"type": "object", "properties": {"in": schema}, "required": ["in"]}
    media = {"application/json": {"schema": {"type": "object", "properties": {"deep": schema}}}}
    (tool,) = written({"/x": {"post": {"requestBody": {"content": media}}}})
    found, depth = input_schema(tool)["properties"]["deep"], 0
    while "properties" in found:
        found, depth = found["properties"]["in"], depth + 1
    assert depth > 5
    assert found == {}


def test_a_path_with_a_line_break_writes_nothing_into_the_file() -> None:
    paths = {"a\nversion: 2\n#": {"get": {}}, "/x": {"get": {"operationId": "x"}}}
    assert [tool.name for tool in written(paths)] == ["x"]


def test_credentials_of_operations_are_written_for_those_that_ask_for_them() -> None:
    schemes = {
        "unused": {"type": "oauth2"},
        "key": {"type": "apiKey", "in": "query", "name": "key"},
        "user": {"type": "http", "scheme": "bearer"},
        "admin": {"type": "http", "scheme": "bearer"},
    }
    asked: dict[str, Any] = {"a": [{"user": []}], "b": [{"admin": []}], "c": [], "d": None}
    paths: dict[str, Any] = {
        f"/{name}": {"get": {"operationId": name} | ({} if given is None else {"security": given})}
        for name, given in asked.items()
    }
    of_callers = [{"name": "key", "in": "query"}]
    paths["/e"] = {"get": {"operationId": "e", "security": [], "parameters": of_callers}}
    tools = written(paths, components={"securitySchemes": schemes})
    assert {tool.name: tool.security for tool in tools} == {
        "a": ("user",), "b": ("admin",), "c": (), "d": ("key",), "e": ("key",),
    }  # fmt: skip
