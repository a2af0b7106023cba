"""From what `list_tools` returns to tools that can be listed and called.

Methods get their schema from their type hints: pydantic makes it, and converts the arguments.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from leaseway.server.base import Tool, ToolError, mark_of
from leaseway.server.faults import MisfitError, place_of

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_TOOLS: Final = 10_000
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OF_MCP: Final[Mapping[str, str]] = {"inputSchema": "input_schema", "outputSchema": "output_schema"}
_FIELDS: Final = frozenset(
    {"name", "description", "input_schema", "output_schema", "title", "annotations"}
)


def tools_by_name(listed: Any) -> dict[str, Tool]:
    """Return what `list_tools` returned as tools, by name.

    Raises:
        MisfitError: It is no list of tools; the text says which entry is wrong, and why.
    """
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise MisfitError(f"list_tools() returned {_kind(listed)}; return a list of tools")
    tools: dict[str, Tool] = {}
    for entry in listed:
        made = _tool(entry)
        if not isinstance(made.name, str) or not _NAME.fullmatch(made.name):
            raise MisfitError(
                f"list_tools() has a tool named {made.name!r:.80}; a name is 1 to 64 of a-z, A-Z,"
                " 0-9, '_' and '-'",
                place_of(made.function),
            )
        if made.name in tools:
            raise MisfitError(
                f"list_tools() has the tool {made.name!r} twice", place_of(made.function)
            )
        tools[made.name] = made
        if len(tools) > _MAX_TOOLS:
            raise MisfitError(f"list_tools() has more than {_MAX_TOOLS} tools")
    return tools


def _tool(entry: Any) -> Tool:
    if isinstance(entry, Tool):
        return entry
    if isinstance(entry, Mapping):
        fields = {_OF_MCP.get(name, name): value for name, value in entry.items()}
        unknown = sorted(str(name) for name in fields if name not in _FIELDS)
        if unknown or "name" not in fields:
            wrong = f"the unknown key {unknown[0]!r}" if unknown else "no 'name'"
            raise MisfitError(f"list_tools() has a tool with {wrong}")
        return Tool(**fields)
    if callable(entry):
        return tool_of(entry)
    raise MisfitError(f"list_tools() has {_kind(entry)}, which is no tool: use Tool or a method")


def tool_of(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool, with the schemas that its type hints say.

    Raises:
        MisfitError: No schema can be made from its parameters.
    """
    marked = mark_of(function)
    name = marked.name if marked else getattr(function, "__name__", "")
    described = marked.description if marked else None
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise MisfitError(
            f"a type hint of the tool {name!r} is not known: {error}", place_of(function)
        ) from None
    try:
        model = _arguments_model(name, signature)
        schema: dict[str, Any] = model.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise MisfitError(
            f"the tool {name!r} has a type that JSON can't hold: {error}", place_of(function)
        ) from None
    except MisfitError as error:
        error.place = place_of(function)
        raise
    schema.pop("title", None)

    @functools.wraps(function)
    def call(arguments: Mapping[str, Any]) -> Any:
        try:
            made = model.model_validate(arguments)
        except ValidationError as error:  # such as a date that is none: schemas don't check formats
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ToolError(f"The argument {where} is wrong: {first['msg']}.") from None
        values = {key: getattr(made, key) for key in type(made).model_fields}
        return function(**values, **(made.model_extra or {}))

    return Tool(
        name=name,
        description=described if described is not None else inspect.getdoc(function) or "",
        input_schema=schema,
        output_schema=_output_schema(signature.return_annotation),
        title=marked.title if marked else None,
        annotations=marked.annotations if marked else {},
        # An async function's call() returns its coroutine; whoever runs it has to know before.
        function=_as_async(call) if inspect.iscoroutinefunction(function) else call,
    )


def _as_async(call: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    @functools.wraps(call)
    async def run(arguments: Mapping[str, Any]) -> Any:
        return await call(arguments)

    return run


def _arguments_model(name: str, signature: inspect.Signature) -> Any:
    fields: dict[str, Any] = {}
    extra: Any = "forbid"
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if parameter.kind not in _NAMED or parameter.name.startswith("_"):
            raise MisfitError(
                f"the parameter {parameter.name!r} of the tool {name!r} can't be an argument:"
                " arguments come by name, and no name begins with an underscore"
            )
        empty = inspect.Parameter.empty
        kind = Any if parameter.annotation is empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is empty else parameter.default)
    return create_model(name, __config__=ConfigDict(extra=extra), **fields)


def _output_schema(returned: Any) -> dict[str, Any] | None:
    """Return the schema of a return type that is an object with named fields; else None."""
    if returned in (inspect.Signature.empty, None, Any):
        return None
    try:
        schema = TypeAdapter(returned).json_schema(mode="serialization")
    except (PydanticUserError, TypeError):
        return None  # a ToolResult, for instance
    if schema.get("type") != "object" or "properties" not in schema:
        return None
    schema.pop("title", None)
    return schema


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
