"""Converts the result of `list_tools` to tools.

Pydantic makes the schemas of methods from their type hints, and converts their arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from leaseway.server.base import Tool, ToolError, find_mark
from leaseway.server.faults import InvalidValueError, location_of

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_TOOLS: Final = 10_000
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_MCP_KEYS: Final[Mapping[str, str]] = {
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
}
_FIELDS: Final = frozenset(
    {"name", "description", "input_schema", "output_schema", "title", "annotations"}
)


def tools_by_name(listed: Any) -> dict[str, Tool]:
    """Return the result of `list_tools` as tools by name.

    Raises:
        InvalidValueError: It is no list of tools; the message names the invalid entry.
    """
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise InvalidValueError(f"list_tools() returned {_kind(listed)}; return a list of tools")
    tools: dict[str, Tool] = {}
    for entry in listed:
        tool = _tool(entry)
        if not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
            raise InvalidValueError(
                f"list_tools() has a tool named {tool.name!r:.80}; a name is 1 to 64 of a-z, A-Z,"
                " 0-9, '_' and '-'",
                location_of(tool.function),
            )
        if tool.name in tools:
            raise InvalidValueError(
                f"list_tools() has the tool {tool.name!r} twice", location_of(tool.function)
            )
        tools[tool.name] = tool
        if len(tools) > _MAX_TOOLS:
            raise InvalidValueError(f"list_tools() has more than {_MAX_TOOLS} tools")
    return tools


def _tool(entry: Any) -> Tool:
    if isinstance(entry, Tool):
        return entry
    if isinstance(entry, Mapping):
        fields = {_MCP_KEYS.get(name, name): value for name, value in entry.items()}
        unknown = sorted(str(name) for name in fields if name not in _FIELDS)
        if unknown or "name" not in fields:
            error = f"the unknown key {unknown[0]!r}" if unknown else "no 'name'"
            raise InvalidValueError(f"list_tools() has a tool with {error}")
        return Tool(**fields)
    if callable(entry):
        return tool_of(entry)
    raise InvalidValueError(
        f"list_tools() has {_kind(entry)}, which is no tool: return a Tool or a method"
    )


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool, with schemas from its type hints.

    Raises:
        InvalidValueError: Its parameters have no schema.
    """
    mark = find_mark(function)
    name = mark.name if mark else getattr(function, "__name__", "")
    description = mark.description if mark else None
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise InvalidValueError(
            f"a type hint of the tool {name!r} is unknown: {error}", location_of(function)
        ) from None
    try:
        model = arguments_model(name, signature.parameters.values())
        schema: dict[str, Any] = model.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidValueError(
            f"the tool {name!r} has a type that JSON can't hold: {error}", location_of(function)
        ) from None
    except InvalidValueError as error:
        error.location = location_of(function)
        raise
    schema.pop("title", None)

    @functools.wraps(function)
    def call(arguments: Mapping[str, Any]) -> Any:
        try:
            model_values = model.model_validate(arguments)
        except ValidationError as error:  # such as an invalid date: schemas do not check formats
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise ToolError(f"The argument {path} is wrong: {first['msg']}.") from None
        values = {key: getattr(model_values, key) for key in model.model_fields}
        return function(**values, **(model_values.model_extra or {}))

    return Tool(
        name=name,
        description=description if description is not None else inspect.getdoc(function) or "",
        input_schema=schema,
        output_schema=_output_schema(signature.return_annotation),
        title=mark.title if mark else None,
        annotations=mark.annotations if mark else {},
        function=async_like(function, call),
    )


def async_like(function: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of a function, as an async function if the called function is async."""
    if not inspect.iscoroutinefunction(function):
        return call

    @functools.wraps(call)
    async def run(*arguments: Any) -> Any:
        return await call(*arguments)

    return run


def arguments_model(name: str, parameters: Iterable[inspect.Parameter]) -> Any:
    """Return a pydantic model of a tool's parameters; raises `InvalidValueError`."""
    fields: dict[str, Any] = {}
    extra: Any = "forbid"
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind not in _NAMED or parameter.name.startswith("_"):
            raise InvalidValueError(
                f"The parameter {parameter.name!r} of tool {name!r} cannot be an argument:"
                " arguments are passed by name, and names do not start with an underscore."
            )
        empty = inspect.Parameter.empty
        kind = Any if parameter.annotation is empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is empty else parameter.default)
    return create_model(name, __config__=ConfigDict(extra=extra), **fields)


def _output_schema(returned: Any) -> dict[str, Any] | None:
    """Return the schema of a return type with named fields, else None."""
    if returned in (inspect.Signature.empty, None, Any):
        return None
    try:
        schema = TypeAdapter(returned).json_schema(mode="serialization")
    except (PydanticUserError, TypeError):
        return None  # such as ToolResult
    if schema.get("type") != "object" or "properties" not in schema:
        return None
    schema.pop("title", None)
    return schema


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
