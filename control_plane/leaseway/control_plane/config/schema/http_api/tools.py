"""Reader of `http_tools`: tools that are HTTP requests, each mistake with its place (DESIGN §2)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import (
    Key,
    keyed,
    mapping,
    read_table,
    record,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import (
    Reader,
    boolean,
    choice,
    duration,
    integer,
    kind_of,
    list_schema,
    plain_text,
    suggestion,
    takes,
    text_of,
    text_schema,
)
from leaseway.control_plane.config.tree.yaml_tree import Entry, Items, Leaf, Table, Tree
from leaseway.spec.http_tools import (
    BODIES,
    MAX_PARAMETERS,
    MAX_RETRIES,
    MAX_TOOLS,
    METHODS,
    POSITIONS,
    READING,
    STYLES,
    HttpParameter,
    HttpTool,
    Position,
    TemplateEngine,
    faults,
    placeholders,
)
from leaseway.templates.engine import ENGINES, Template
from leaseway.templates.go_nodes import TemplateSyntaxError
from leaseway.templates.limits import MAX_TEMPLATE
from leaseway.wire.names import is_valid_name

_DAY: Final = 86_400.0
_INSTANT: Final = 0.001
_LONGEST_TEXT: Final = 8_192
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_KEYWORDS: Final = (
    "type", "title", "description", "default", "enum", "const", "format", "pattern", "minLength",
    "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "items", "prefixItems", "contains", "minItems", "maxItems", "uniqueItems", "properties",
    "patternProperties", "propertyNames", "additionalProperties",
    "minProperties", "maxProperties", "anyOf", "oneOf", "allOf", "not", "examples",
    "contentEncoding", "contentMediaType",
)  # fmt: skip
_NESTED: Final = ("items", "contains", "propertyNames", "additionalProperties", "not")
_NESTED_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


def _http_tools(node: Tree, where: Where) -> tuple[HttpTool, ...] | None:
    """Read a server's tools; those with a mistake are left out, having been reported."""
    if not isinstance(node, Items):
        message = f"{shown(where.key)} must be a list of tools, but it is {kind_of(node)}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    if len(node.items) > MAX_TOOLS:
        message = f"{shown(where.key)} has {len(node.items)} tools; {MAX_TOOLS} are allowed."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    tools: dict[str, HttpTool] = {}
    for index, item in enumerate(node.items):
        place = where.item(index, item.at)
        tool = _tool(item, place)
        if tool is None:
            continue
        if tool.name in tools:
            message = f"The tool {shown(tool.name)} is defined twice; rename or remove one."
            place.error(item.at, IssueReason.DUPLICATE_KEY, message)
            continue
        tools[tool.name] = tool
        _check(tool, item, place)
    return tuple(tools.values())


def _tool(node: Tree, where: Where) -> HttpTool | None:
    table = mapping(node, where)
    if table is None:
        return None
    entries = unique_entries(table, where)
    values = read_table(entries, _TOOL_KEYS, where, "a tool")
    given = {entry.name for entry in entries}
    for name in ("name", "method", "endpoint"):
        if name not in given:
            where.missing(node.at, name, f"The tool needs {name!r}.")
    if not {"name", "method", "endpoint"} <= values.keys():
        return None
    if not is_valid_name(values["name"]):
        message = (
            f"The tool's name {shown(values['name'])} is not valid: write 1 to 64 characters of"
            " a-z, A-Z, 0-9, '_' and '-'."
        )
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    return _with_positions(HttpTool(**values))


def _check(tool: HttpTool, node: Tree, where: Where) -> None:
    """Report what makes a tool inconsistent, and a template that does not compile."""
    places = where.log.places
    for found in faults(tool):
        key = f"{where.key}.{found.about}"
        if found.parameter is not None:
            key = f"{where.key}.parameters[{found.parameter}]"
        message = f"The tool {shown(tool.name)} {found.message}."
        at = places.get(key, node.at)
        replace(where, key=key).error(at, IssueReason.BAD_HTTP_TOOL, message)
    if not tool.response_template:
        return
    fault = _template_fault(tool.response_template, tool.template_engine)
    if fault:
        key = f"{where.key}.response_template"
        message = f"The response template of the tool {shown(tool.name)} does not compile: {fault}."
        at = places.get(key, node.at)
        replace(where, key=key).error(at, IssueReason.BAD_TEMPLATE, message)


@functools.lru_cache(maxsize=4_096)
def _template_fault(text: str, engine: TemplateEngine) -> str:
    """Return why a template does not compile, or an empty text; each is tried once."""
    try:
        Template(text, engine)
    except TemplateSyntaxError as error:
        return f"line {error.line} of it: {error.message}"
    return ""


def _with_positions(tool: HttpTool) -> HttpTool:
    """Return a tool whose parameters without a position have the one that is meant.

    A placeholder's is the path; others are in the body where the method has one, else in the query.
    """
    wanted = placeholders(tool.path)
    rest: Position = "query" if tool.method in (*READING, "DELETE") else "body"

    def placed(parameter: HttpParameter) -> HttpParameter:
        if parameter.position != _UNPLACED:
            return parameter
        return replace(parameter, position="path" if parameter.sent_as in wanted else rest)

    return replace(tool, parameters=tuple(placed(each) for each in tool.parameters))


_UNPLACED: Final[Any] = ""


def _parameters(node: Tree, where: Where) -> tuple[HttpParameter, ...] | None:
    if not isinstance(node, Items) or len(node.items) > MAX_PARAMETERS:
        message = f"{shown(where.key)} must be a list of at most {MAX_PARAMETERS} parameters."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
        return None
    read = [_parameter(item, where.item(index, item.at)) for index, item in enumerate(node.items)]
    return tuple(parameter for parameter in read if parameter is not None)


def _parameter(node: Tree, where: Where) -> HttpParameter | None:
    table = mapping(node, where)
    if table is None:
        return None
    entries = unique_entries(table, where)
    own = [entry for entry in entries if entry.name in _PARAMETER_KEYS]
    values = read_table(own, _PARAMETER_KEYS, where, "a parameter")
    if not any(entry.name == "name" for entry in own):
        where.missing(node.at, "name", "The parameter needs 'name'.")
    schema = _schema([entry for entry in entries if entry not in own], where, "a parameter")
    schema |= values.pop("schema", {})
    if "name" not in values:
        return None
    text = json.dumps(schema, ensure_ascii=False)
    return HttpParameter(**{"position": _UNPLACED, **values}, schema=text)


def _schema(entries: Sequence[Entry], where: Where, what: str) -> dict[str, Any]:
    """Return the JSON Schema that entries are; what is no keyword is reported."""
    schema: dict[str, Any] = {}
    for entry in entries:
        place = where.child(entry.name, entry.value.at)
        if entry.name not in _KEYWORDS:
            known = (*_KEYWORDS, *(_PARAMETER_KEYS if what == "a parameter" else ("required",)))
            message = f"{shown(entry.name)} is no key of {what}: {suggestion(entry.name, known)}"
            place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
            continue
        schema[entry.name] = _keyword(entry, place)
    required = _required_members(entries)
    return schema | ({"required": required} if required else {})


def _keyword(entry: Entry, where: Where) -> Any:
    name, node = entry.name, entry.value
    if name == "type":
        return _type(node, where)
    if name in ("properties", "patternProperties") and isinstance(node, Table):
        return {
            each.name: _nested(each.value, where.child(each.name, each.value.at))
            for each in unique_entries(node, where)
        }
    if name in _NESTED and isinstance(node, Table):
        return _nested(node, where)
    if name in _NESTED_LISTS and isinstance(node, Items):
        return [_nested(item, where.item(i, item.at)) for i, item in enumerate(node.items)]
    wanted = _WANTED.get(name)
    value = plain(node)
    if wanted is not None and (not isinstance(value, wanted[0]) or value is True):
        message = f"{shown(where.key)} must be {wanted[1]}, but it is {kind_of(node)}."
        where.error(node.at, IssueReason.WRONG_TYPE, message)
    return value


@takes({"type": "object"})
def _nested(node: Tree, where: Where) -> Any:
    table = mapping(node, where)
    if table is None:
        return {}
    entries = [each for each in unique_entries(table, where) if each.name != "required"]
    schema = _schema(entries, where, "a schema")
    # Either a list of names, as JSON Schema has it, or true in the member itself.
    listed = next((each.value for each in table.entries if each.name == "required"), None)
    if isinstance(listed, Items):
        names = [plain(item) for item in listed.items]
        schema["required"] = [*schema.get("required", []), *names]
    return schema


def _required_members(entries: Sequence[Entry]) -> list[str]:
    """Return the members of an object that say `required: true` themselves."""
    members = [
        member
        for entry in entries
        if entry.name == "properties" and isinstance(entry.value, Table)
        for member in entry.value.entries
    ]
    return [member.name for member in members if _says_required(member.value)]


def _says_required(node: Tree) -> bool:
    return isinstance(node, Table) and any(
        each.name == "required" and plain(each.value) is True for each in node.entries
    )


def _type(node: Tree, where: Where) -> Any:
    names = plain(node)
    for name in names if isinstance(names, list) else [names]:
        if name not in _TYPES:
            hint = suggestion(str(name), _TYPES) if isinstance(name, str) else "write a word"
            message = f"{shown(where.key)} can't be {shown(str(name))}: {hint}"
            where.error(node.at, IssueReason.BAD_VALUE, message)
    return names


def plain(node: Tree) -> Any:
    """Return a tree as the value that it writes."""
    match node:
        case Leaf():
            return node.value
        case Items():
            return [plain(item) for item in node.items]
        case Table():
            return {entry.name: plain(entry.value) for entry in node.entries}


def _sorted_hints(**hints: bool) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted(hints.items()))


@takes({"type": "array", "maxItems": 0, "items": {"type": "string"}})
def _anonymous(node: Tree, where: Where) -> bool | None:
    """Read `security: []`, as OpenAPI says that a request needs no credential."""
    if isinstance(node, Items) and not node.items:
        return True
    message = (
        "The 'security' of a tool may only be '[]': its requests go without the credentials of "
        "the server's own 'security'. Leave it out to send them."
    )
    where.error(node.at, IssueReason.BAD_VALUE, message)
    return None


@takes(text_schema(longest=MAX_TEMPLATE))
def _template(node: Tree, where: Where) -> str | None:
    # Not `plain_text`: a template may hold `${` of its own, which is no reference here.
    return text_of(node, where, longest=MAX_TEMPLATE)


@takes(text_schema(longest=_LONGEST_TEXT))
def _text(node: Tree, where: Where) -> str | None:
    # Shown as it is, so that a `${` of its own is no reference either.
    return text_of(node, where, longest=_LONGEST_TEXT)


_NUMBER: Final = ((int, float), "a number")
_COUNT: Final = (int, "a whole number")
_WANTED: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    "title": (str, "text"),
    "description": (str, "text"),
    "format": (str, "text"),
    "pattern": (str, "text"),
    "contentEncoding": (str, "text"),
    "contentMediaType": (str, "text"),
    "enum": (list, "a list"),
    "examples": (list, "a list"),
    "properties": (dict, "a mapping"),
    "anyOf": (list, "a list"),
    "oneOf": (list, "a list"),
    "allOf": (list, "a list"),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBER
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _COUNT,
    ),
}


def _matching(pattern: str, *, longest: int) -> Reader[str]:
    """Return a reader of text whose pattern is for editors; its rule is checked with the tool."""
    text = plain_text(longest=longest, empty=False)
    return Reader(text, text.schema | {"pattern": pattern})


_PARAMETER_KEYS: Final = keyed(
    Key("name", plain_text(longest=128, empty=False), "name"),
    Key("position", choice(*POSITIONS), "position"),
    Key("required", boolean, "required"),
    Key("as", plain_text(longest=256, empty=False), "wire_name"),
    Key("style", choice(*STYLES), "style"),
    Key("whole_body", boolean, "is_body"),
    Key("schema", _nested, "schema"),
)
_PARAMETER: Final = Reader(
    _parameter,
    schema_of(_PARAMETER_KEYS, required=("name",))
    | {
        "description": "Further keys are those of JSON Schema: type, description, default, enum …",
        "additionalProperties": True,
    },
)

_TOOL_KEYS: Final = keyed(
    Key("name", _matching("^[a-zA-Z0-9_-]{1,64}$", longest=1_024), "name"),
    Key("title", _text, "title"),
    Key("description", _text, "description"),
    Key("method", choice(*METHODS), "method"),
    Key("endpoint", _matching("^/(?!/)", longest=4_096), "endpoint"),
    Key(
        "parameters",
        Reader(_parameters, list_schema(_PARAMETER.schema, MAX_PARAMETERS)),
        "parameters",
    ),
    Key("body", choice(*BODIES), "body"),
    Key("content_type", plain_text(longest=256, empty=False), "content_type"),
    Key("response_template", _template, "response_template"),
    Key("template_engine", choice(*ENGINES), "template_engine"),
    Key("timeout", duration(_INSTANT, _DAY), "timeout"),
    Key("retries", integer(0, MAX_RETRIES), "retries"),
    Key(
        "annotations",
        record(
            keyed(*(Key(name, boolean, name) for name in _HINTS)), _sorted_hints, "'annotations'"
        ),
        "annotations",
    ),
    Key("security", _anonymous, "is_anonymous"),
)

http_tools: Final = Reader(
    _http_tools,
    list_schema(schema_of(_TOOL_KEYS, required=("name", "method", "endpoint")), MAX_TOOLS),
)
"""Reads a server's tools; those with a mistake are left out, having been reported."""
