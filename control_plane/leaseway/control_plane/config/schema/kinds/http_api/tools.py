"""Reader of `http_tools`: tools that are HTTP requests (design.md#configuration)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.openapi.usable import schema_fault
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import (
    entries_of,
    keys_from,
    read_table,
    record_of,
    required_of,
    schema_of,
)
from leaseway.control_plane.config.schema.values import (
    BadValue,
    Reader,
    checked,
    items_of,
    kind_of,
    list_of,
    list_schema,
    plain_text,
    reader,
    suggestion,
    text,
)
from leaseway.control_plane.config.tree.yaml_tree import Items, Table, TableEntry, Tree, plain_value
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.http_tools import (
    HINT_KEYS,
    MAX_PARAMETERS,
    MAX_TOOLS,
    READ_METHODS,
    HttpParameter,
    HttpTool,
    Position,
    find_faults,
    placeholders,
)
from leaseway.templates.engine import Template
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import MAX_TEMPLATE
from leaseway.wire.messages.json_schema import CHOICES, LISTS, PROPERTIES, TYPES
from leaseway.wire.names import is_valid_name

_MAX_TEXT: Final = 8_192
_KEYWORDS: Final = (
    "type", "title", "description", "default", "enum", "const", "format", "pattern", "minLength",
    "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "properties",
    "patternProperties", "propertyNames", "additionalProperties",
    "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "not", "examples",
    "contentEncoding", "contentMediaType",
)  # fmt: skip
_NESTED: Final = ("items", "contains", "propertyNames", "additionalProperties", "not")


def _check(tool: HttpTool, node: Tree, where: Where) -> None:
    """Report contradictions within a tool, and a template that does not compile."""
    for found in find_faults(tool):
        is_of_parameter = found.parameter is not None
        name = f"parameters[{found.parameter}]" if is_of_parameter else found.about
        place, at = where.find(name, node.at)
        message = f"The tool {quoted(tool.name)} {found.message}."
        place.error(at, IssueReason.BAD_HTTP_TOOL, message)
    if not tool.response_template:
        return
    fault = _template_fault(tool.response_template)
    if fault:
        place, at = where.find("response_template", node.at)
        message = (
            f"The response template of the tool {quoted(tool.name)} does not compile: {fault}."
        )
        place.error(at, IssueReason.BAD_TEMPLATE, message)


def _check_schemas(tool: HttpTool, node: Tree, where: Where) -> None:
    """Report parameters whose schema, or whose default, can't be used."""
    for number, parameter in enumerate(tool.parameters):
        fault = schema_fault(parameter.schema)
        if fault:
            place, at = where.find(f"parameters[{number}]", node.at)
            message = (
                f"The parameter {quoted(parameter.name)} of the tool {quoted(tool.name)} {fault}."
            )
            place.error(at, IssueReason.BAD_HTTP_TOOL, message)


@functools.lru_cache(maxsize=4_096)
def _template_fault(text: str) -> str:
    """Return why a template does not compile, or an empty text. Results are cached."""
    try:
        Template(text)
    except TemplateSyntaxError as error:
        return f"line {error.line} of it: {error.message}"
    return ""


def _with_positions(tool: HttpTool) -> HttpTool:
    """Return a tool with positions for the parameters that have none.

    A placeholder is in the path; others are in the body if the method has one, else in the query.
    """
    path = placeholders(tool.path)
    rest: Position = "query" if tool.method in (*READ_METHODS, "DELETE") else "body"

    def placed(parameter: HttpParameter) -> HttpParameter:
        if parameter.position != _UNPLACED:
            return parameter
        return replace(parameter, position="path" if parameter.sent_as in path else rest)

    return replace(tool, parameters=tuple(placed(parameter) for parameter in tool.parameters))


_UNPLACED: Final[Any] = ""


def _schema(entries: Sequence[TableEntry], where: Where, what: str) -> dict[str, Any]:
    """Return the JSON Schema that entries form; unknown keywords are reported."""
    schema: dict[str, Any] = {}
    for entry in entries:
        place = where.child(entry)
        if entry.name not in _KEYWORDS:
            known = (*_KEYWORDS, *(_PARAMETER_KEYS if what == "a parameter" else ("required",)))
            message = (
                f"{quoted(entry.name)} is not a key of {what}: {suggestion(entry.name, known)}"
            )
            place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
            continue
        schema[entry.name] = _keyword(entry, place)
    required = _required_members(entries)
    return schema | ({"required": required} if required else {})


def _keyword(entry: TableEntry, where: Where) -> Any:
    name, node = entry.name, entry.value
    if name == "type":
        return _type(node, where)
    if name in PROPERTIES and isinstance(node, Table):
        members = entries_of(node, where)
        return {member.name: _nested(member.value, where.child(member)) or {} for member in members}
    if name in _NESTED and isinstance(node, Table):
        return _nested(node, where)
    if name in LISTS and isinstance(node, Items):
        return [_nested(item, where.item(i, item.at)) or {} for i, item in enumerate(node.items)]
    expected = _EXPECTED.get(name)
    value = plain_value(node)
    if expected is not None and (not isinstance(value, expected[0]) or value is True):
        message = f"{quoted(where.key)} must be {expected[1]}, but it is {kind_of(node)}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
    return value


@reader({"type": "object"})
def _nested(node: Tree, where: Where) -> dict[str, Any]:
    entries = entries_of(node, where)
    schema = _schema([entry for entry in entries if entry.name != "required"], where, "a schema")
    # JSON Schema has a list of names here; `required: true` is in the member itself.
    listed = next((entry.value for entry in entries if entry.name == "required"), None)
    if isinstance(listed, Items):
        names = [plain_value(item) for item in listed.items]
        schema["required"] = [*schema.get("required", []), *names]
    return schema


def _required_members(entries: Sequence[TableEntry]) -> list[str]:
    """Return the names of an object's members that have `required: true`."""
    members = [
        member
        for entry in entries
        if entry.name == "properties" and isinstance(entry.value, Table)
        for member in entry.value.entries
    ]
    return [member.name for member in members if _is_required(member.value)]


def _is_required(node: Tree) -> bool:
    return isinstance(node, Table) and any(
        entry.name == "required" and plain_value(entry.value) is True for entry in node.entries
    )


def _type(node: Tree, where: Where) -> Any:
    names = plain_value(node)
    for name in names if isinstance(names, list) else [names]:
        if name not in TYPES:
            hint = suggestion(str(name), TYPES) if isinstance(name, str) else "write a word"
            message = f"{quoted(where.key)} can't be {quoted(str(name))}: {hint}"
            where.error(node.at, IssueReason.BAD_VALUE, message)
    return names


def _sorted_hints(**hints: bool) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted(hints.items()))


_NUMBER: Final = ((int, float), "a number")
_COUNT: Final = (int, "a whole number")
_EXPECTED: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "title": (str, "text"),
    "description": (str, "text"),
    "format": (str, "text"),
    "pattern": (str, "text"),
    "contentEncoding": (str, "text"),
    "contentMediaType": (str, "text"),
    "enum": (list, "a list"),
    "examples": (list, "a list"),
    "properties": (dict, "a mapping"),
    **dict.fromkeys(CHOICES, (list, "a list")),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _COUNT,
    ),
}


def _matching(pattern: str, *, longest: int) -> Reader[str]:
    """Return a reader of text with a pattern for editors; `find_faults` checks the rule."""
    plain = plain_text(longest=longest, empty=False)
    return Reader(plain.read, plain.schema | {"pattern": pattern})


_DECLARED: Final = tuple(keys_of(HttpParameter))
_PARAMETER_KEYS: Final = keys_from(_DECLARED, {"schema": _nested})


@reader(
    schema_of(_PARAMETER_KEYS, required=required_of(_DECLARED))
    | {
        "description": "Other keys are those of JSON Schema: type, description, default, enum …",
        "additionalProperties": True,
    }
)
def _parameter(node: Tree, where: Where) -> HttpParameter:
    entries = entries_of(node, where)
    own = [entry for entry in entries if entry.name in _PARAMETER_KEYS]
    values = read_table(own, _PARAMETER_KEYS, where, "a parameter")
    if not any(entry.name == "name" for entry in own):
        where.missing(node.at, "name", f"{quoted(where.key)} needs 'name'.")
    schema = _schema([entry for entry in entries if entry not in own], where, "a parameter")
    schema |= values.pop("schema", {})
    if "name" not in values:
        raise BadValue  # already reported
    written = json.dumps(schema, ensure_ascii=False)
    return HttpParameter(**{"position": _UNPLACED, **values}, schema=written)


def _tool_of(name: str, **values: Any) -> HttpTool:
    return _with_positions(HttpTool(name, **values))


def _name_fault(name: str) -> str | None:
    if is_valid_name(name):
        return None
    return f"is {quoted(name)}; write 1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'."


_NAME: Final = checked(
    plain_text(longest=1_024, empty=False), _name_fault, pattern="[a-zA-Z0-9_-]{1,64}"
)
_ANNOTATIONS: Final = record_of(HINT_KEYS, _sorted_hints, "'annotations'")
_READERS: Final[Mapping[str, Reader[Any]]] = {
    "name": _NAME,
    # Shown as they are: a `${` in these texts is not a reference.
    "title": text(longest=_MAX_TEXT),
    "description": text(longest=_MAX_TEXT),
    "response_template": text(longest=MAX_TEMPLATE),
    "endpoint": _matching("^/(?!/)", longest=4_096),
    "base_url": _matching("^(https?://|/)", longest=2_048),
    "parameters": list_of(_parameter, MAX_PARAMETERS, "parameters"),
    "annotations": _ANNOTATIONS,
}
_TOOL: Final = record_of(keys_of(HttpTool), _tool_of, "a tool", _READERS)


@reader(list_schema(_TOOL.schema, MAX_TOOLS))
def http_tools(node: Tree, where: Where) -> tuple[HttpTool, ...]:
    """Read a server's tools; those with a mistake are reported and omitted."""
    tools: dict[str, HttpTool] = {}
    for index, item in enumerate(items_of(node, where, MAX_TOOLS, "tools")):
        place = where.item(index, item.at)
        reported = where.log.count
        tool = _TOOL(item, place)
        if tool is None:
            continue
        if tool.name in tools:
            message = f"The tool {quoted(tool.name)} is defined twice; rename or remove one."
            place.error(item.at, IssueReason.DUPLICATE_KEY, message)
            continue
        tools[tool.name] = tool
        if where.log.count == reported:  # else a keyword was reported, which would be said twice
            _check_schemas(tool, item, place)
        _check(tool, item, place)
    return tuple(tools.values())
