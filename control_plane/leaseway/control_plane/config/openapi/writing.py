"""Writes an imported OpenAPI document as a native file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.openapi.names import leave_room
from leaseway.control_plane.config.openapi.objects import Objects
from leaseway.control_plane.config.openapi.operations import Imported
from leaseway.control_plane.config.openapi.references import References
from leaseway.control_plane.config.openapi.schemas import MAX_SCHEMA, SchemaReader, has_levels
from leaseway.control_plane.config.openapi.security import Scheme
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
    tools = [
        replace(without_parameters(tool, names), security=_names_of(tool, imported, security))
        for tool in imported.tools
    ]
    # Names have room for the prefix that most files give their servers.
    entry["http_tools"] = [_tool(tool) for tool in leave_room(tools, len(f"{name}_"))]
    lines = [f"{len(tools)} operations of {source}."]
    lines += [f"No tool: {skip.operation}: {skip.reason}." for skip in imported.skipped]
    lines += imported.notes
    content = {"version": 1, "servers": {name: entry}}
    comments = "".join(f"# {ascii(line)[1:-1]}\n" for line in lines)
    return comments + yaml_text(content)


def _security(imported: Imported, server: str) -> dict[str, Any]:
    """Return the credentials that tools need, as few as possible."""
    needed: set[str] = set()
    all_asked = [tool.security for tool in imported.tools if tool.security is not None]
    for asked in all_asked if len(all_asked) == len(imported.tools) else (*all_asked, None):
        needed |= _first_of_each(asked, imported.schemes, needed)
    written: dict[str, Any] = {}
    for name, scheme in imported.schemes.items():
        if name not in needed:
            continue
        secret = re.sub(r"[^a-z0-9]+", "_", f"{server} {name}".lower()).strip("_")
        credential: dict[str, Any] = {"type": scheme.kind}
        if scheme.name:
            credential["name"] = scheme.name
        written[name] = credential | {"value": {"secret": secret[:128]}}
    return written


def _first_of_each(
    asked: Iterable[str] | None, schemes: Mapping[str, Scheme], written: Container[str]
) -> set[str]:
    """Return one scheme for each header, query parameter and cookie that a tool may need.

    Args:
        asked: The schemes that it asks for; None if its document does not say.
        schemes: Those of the document.
        written: Schemes that are taken before others.
    """
    names = [name for name in (schemes if asked is None else asked) if schemes[name].kind]
    by_target: dict[str, str] = {}
    for name in (*(name for name in names if name in written), *names):
        by_target.setdefault(schemes[name].target, name)
    return set(by_target.values())


def _names_of(
    tool: HttpTool, imported: Imported, written: Collection[str]
) -> tuple[str, ...] | None:
    """Return the names of the written credentials of a tool; None for all."""
    targets = {name: imported.schemes[name].target for name in written}
    if tool.security is None:  # none of those that set the same, as of a document that is read
        sets = Counter(targets.values())
        chosen = {name for name, target in targets.items() if sets[target] == 1}
    else:
        set_by_callers = {parameter.target for parameter in tool.parameters}
        taken = [name for name, target in targets.items() if target in set_by_callers]
        chosen = _first_of_each((*tool.security, *taken), imported.schemes, written)
    return None if chosen == set(written) else tuple(name for name in written if name in chosen)


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
    if tool.security is not None:
        written["security"] = list(tool.security)
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
