"""Writes an imported OpenAPI document as a native file."""

from __future__ import annotations

import re
from typing import Any, Final

from leaseway.control_plane.config.openapi.names import leave_room
from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.operations import Imported
from leaseway.control_plane.config.openapi.references import References
from leaseway.control_plane.config.openapi.schemas import MAX_SCHEMA, SchemaReader, has_levels
from leaseway.control_plane.config.tree.yaml_tree import MAX_DEPTH
from leaseway.control_plane.config.tree.yaml_writing import yaml_text
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.http_tools import (
    HttpParameter,
    HttpTool,
    SetNames,
    without_parameters,
)

_NOT_IN_IDS: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_LEVELS: Final = MAX_DEPTH - len(
    ("file", "servers", "server", "http_tools", "tool", "parameters", "parameter")
)
"""Mappings and lists of a schema that may stand inside one another in a file."""


def server_id(title: str) -> str:
    """Return a server id for a document's title."""
    return _NOT_IN_IDS.sub("-", title.lower()).strip("-")[:64].strip("-") or "api"


def native_server(imported: Imported, name: str, source: str) -> str:
    """Return a native file with one server that has the tools of a document, `source`."""
    (transport,) = HttpApiPart.transports
    entry: dict[str, Any] = {"transport": transport, "truely-stateless": True}
    entry["base_url"] = imported.base_url or "https://REPLACE-ME.example"
    security = _security(imported, name)
    if security:
        entry["security"] = security
    names = _set_names(security)
    tools = [without_parameters(tool, names) for tool in imported.tools]
    # Names have room for the prefix that most files give their servers.
    entry["http_tools"] = [_tool(tool) for tool in leave_room(tools, len(f"{name}_"))]
    lines = [f"{len(tools)} operations of {source}."]
    lines += [f"No tool: {skip.operation}: {skip.reason}." for skip in imported.skipped]
    lines += imported.notes
    content = {"version": 1, "servers": {name: entry}}
    comments = "".join(f"# {ascii(line)[1:-1]}\n" for line in lines)
    return comments + yaml_text(content)


def _security(imported: Imported, server: str) -> dict[str, Any]:
    """Return the first credential for each header, query parameter and cookie."""
    written: dict[str, Any] = {}
    targets: set[str] = set()
    for name, scheme in imported.schemes.items():
        if scheme.kind is None or scheme.target in targets:
            continue
        targets.add(scheme.target)
        secret = re.sub(r"[^a-z0-9]+", "_", f"{server} {name}".lower()).strip("_")
        credential: dict[str, Any] = {"type": scheme.kind}
        if scheme.name:
            credential["name"] = scheme.name
        written[name] = credential | {"value": {"secret": secret[:128]}}
    return written


def _set_names(security: dict[str, Any]) -> SetNames:
    """Return what credentials set, which no tool may have as a parameter."""
    named: dict[str, set[str]] = {"header": set(), "query": set(), "cookie": set()}
    for credential in security.values():
        if credential["type"] in named:
            named[credential["type"]].add(credential["name"])
    headers = {name.lower() for name in named["header"]}
    return SetNames(headers=headers, query=named["query"], cookies=named["cookie"])


def _tool(tool: HttpTool) -> dict[str, Any]:
    written: dict[str, Any] = {"name": tool.name}
    for key in ("title", "description"):
        if getattr(tool, key):
            written[key] = getattr(tool, key)
    written |= {"method": tool.method, "endpoint": tool.endpoint}
    if tool.base_url:
        written["base_url"] = tool.base_url
    if tool.parameters:
        written["parameters"] = [_parameter(parameter) for parameter in tool.parameters]
    if tool.body != "json":
        written["body"] = tool.body
    if tool.content_type:
        written["content_type"] = tool.content_type
    if tool.is_anonymous:
        written["security"] = []
    return written


def _parameter(parameter: HttpParameter) -> dict[str, Any]:
    written: dict[str, Any] = {"name": parameter.name, "position": parameter.position}
    if parameter.required:
        written["required"] = True
    if parameter.wire_name:
        written["as"] = parameter.wire_name
    if parameter.style != "repeat":
        written["style"] = parameter.style
    if parameter.explode:
        written["explode"] = True
    if parameter.allow_reserved:
        written["allow_reserved"] = True
    if parameter.is_body:
        written["whole_body"] = True
    schema = dict(parameter.parsed)
    # `required` is a key of the parameter itself, so an object's list of names needs `schema`.
    is_inside = "required" in schema
    if not has_levels(schema, _LEVELS - is_inside):
        references = References({})
        reader = SchemaReader(references, Objects(references))
        schema = reader.cut(schema, MAX_SCHEMA, _LEVELS - is_inside)
    return written | ({"schema": schema} if is_inside else schema)
