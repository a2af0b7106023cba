"""Converts the result of `list_tools` to tools.

The official package makes the schemas of methods from their type hints, and converts arguments and
structured results. Three of its habits are left out, as they change data: it reads text arguments
as JSON, takes a parameter without a type hint for a text, and puts a result that is no object into
one, besides its text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, Literal

import jsonschema_rs
import mcp_types as types
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata, func_metadata
from pydantic import ValidationError, create_model
from pydantic.errors import PydanticUserError

from leaseway.server.base import Tool, ToolError, ToolResult, find_mark
from leaseway.server.faults import InvalidValueError, located, location_of
from leaseway.wire.names import is_valid_name

_MAX_TOOLS: Final = 10_000
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class ServedTool:
    """A tool as it is listed and called.

    Attributes:
        definition: Its entry in `tools/list`.
        function: Handles a call; takes keyword arguments if there is `metadata`, else a mapping.
        metadata: The parameters and the result of a function with type hints, else None.
    """

    definition: types.Tool
    function: Callable[..., Any]
    metadata: FuncMetadata | None = None

    @cached_property
    def _validator(self) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(self.definition.input_schema)

    def bind(self, arguments: dict[str, Any]) -> Callable[[], Any]:
        """Return the call with these arguments; raises `ToolError` if they are invalid."""
        if self.metadata is not None:
            try:
                return partial(self.function, **convert(self.metadata.arg_model, arguments))
            except ValidationError as error:
                fault = error.errors(include_url=False)[0]
                raise _invalid_argument(fault["loc"], fault["msg"]) from None
        for wrong in self._validator.iter_errors(arguments):
            raise _invalid_argument(wrong.instance_path, wrong.message)
        return partial(self.function, arguments)


def tools_by_name(
    listed: Any, handle: Callable[[str, dict[str, Any]], Any]
) -> dict[str, ServedTool]:
    """Return the result of `list_tools` as tools by name.

    Args:
        listed: The result.
        handle: Handles calls of tools without a function, given the tool's name.

    Raises:
        InvalidValueError: It is no list of tools; the message names the invalid entry.
    """
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise InvalidValueError(f"list_tools() returned {_kind(listed)}; return a list of tools")
    tools: dict[str, ServedTool] = {}
    for entry in listed:
        tool = _tool(entry, handle)
        name, fault = tool.definition.name, None
        if not is_valid_name(name):
            fault = f"a tool named {name!r:.80}; a name is 1 to 64 of a-z, A-Z, 0-9, '_' and '-'"
        elif name in tools:
            fault = f"the tool {name!r} twice"
        elif len(tools) == _MAX_TOOLS:
            fault = f"more than {_MAX_TOOLS} tools"
        if fault is not None:
            raise InvalidValueError(f"list_tools() has {fault}", location_of(tool.function))
        tools[name] = tool
    return tools


def _tool(entry: Any, handle: Callable[[str, dict[str, Any]], Any]) -> ServedTool:
    if callable(entry):
        return _tool_of(entry)
    if not isinstance(entry, Tool | Mapping):
        raise InvalidValueError(
            f"list_tools() has {_kind(entry)}, which is no tool: return a Tool or a method"
        )
    fields = vars(entry) if isinstance(entry, Tool) else dict(entry)
    try:
        definition = types.Tool.model_validate(fields)
    except ValidationError as error:
        raise InvalidValueError(f"list_tools() has an invalid tool: {error!s:.300}") from None
    return ServedTool(definition, fields.get("function") or partial(handle, definition.name))


def _tool_of(function: Callable[..., Any]) -> ServedTool:
    marked = find_mark(function) or Tool(function.__name__)
    with located(function):
        try:
            metadata = describe(marked.name, inspect.signature(function, eval_str=True))
            schema = input_schema(metadata.arg_model)
        except (NameError, PydanticUserError) as error:
            raise InvalidValueError(
                f"the type hints of the tool {marked.name!r} have no JSON Schema: {error}"
            ) from None
    definition = types.Tool(
        name=marked.name,
        title=marked.title,
        description=marked.description or inspect.getdoc(function),
        input_schema=schema,
        output_schema=metadata.output_schema,
        annotations=types.ToolAnnotations.model_validate(marked.annotations),
    )
    return ServedTool(definition, function, metadata)


def describe(name: str, signature: inspect.Signature) -> FuncMetadata:
    """Return the models of a tool's arguments and of its result.

    Unknown arguments are invalid unless the signature has `**` parameters. Only a result with named
    fields has a model.

    Raises:
        InvalidValueError: A parameter is positional, or its name begins with an underscore, is
            one of pydantic's for models, or cannot be told from another.
        PydanticUserError: The type hint of a parameter is no type of pydantic's.
    """
    extra: Literal["allow", "forbid"] = "forbid"
    named = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind not in _NAMED or parameter.name.startswith("_"):
            raise InvalidValueError(
                f"The parameter {parameter.name!r} of tool {name!r} cannot be an argument:"
                " arguments are passed by name, and names do not start with an underscore."
            )
        elif _is_of_models(parameter.name):
            raise InvalidValueError(
                f"The parameter {parameter.name!r} of tool {name!r} cannot be an argument: pydantic"
                " uses this name for all models."
            )
        elif parameter.annotation is inspect.Parameter.empty:
            named.append(parameter.replace(annotation=Any))  # the package would call it a text
        else:
            named.append(parameter)
    function = _Described(name, signature.replace(parameters=named))
    structured = False if signature.return_annotation is ToolResult else None
    try:
        metadata = func_metadata(function, structured_output=structured)
    except PydanticUserError:  # the result's type, such as an iterator, or a parameter's
        metadata = func_metadata(function, structured_output=False)
    if len(metadata.arg_model.model_fields) < len(named):  # such as `json` and `field_json`
        raise InvalidValueError(
            f"Two parameters of tool {name!r} have names that the official package cannot tell"
            " apart: it names a parameter that is called like a method of models `field_NAME`."
            " Rename one of them."
        )
    model = create_model(name, __base__=metadata.arg_model, __cls_kwargs__={"extra": extra})
    if metadata.wrap_output:  # the text is enough
        return FuncMetadata(arg_model=model)
    return metadata.model_copy(update={"arg_model": model})


def _is_of_models(name: str) -> bool:
    """Return whether a name is that of data of each model, which would become a default.

    The package gives other names to parameters that are called like methods.
    """
    return hasattr(ArgModelBase, name) and not callable(getattr(ArgModelBase, name))


def input_schema(model: type[ArgModelBase]) -> dict[str, Any]:
    """Return the JSON Schema of arguments; raises `PydanticUserError`."""
    schema = model.model_json_schema()
    del schema["title"]
    return schema


def convert(model: type[ArgModelBase], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as the types of the parameters; raises pydantic's `ValidationError`."""
    values = model.model_validate(arguments)
    return {**values.model_dump_one_level(), **(values.model_extra or {})}


class _Described:
    """A function with an evaluated signature, which may lack parameters of the original."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self.__name__ = name
        self.__signature__ = signature

    def __call__(self) -> None: ...


def _invalid_argument(path: Iterable[object], message: str) -> ToolError:
    argument = ".".join(str(part) for part in path)
    subject = f"The argument {argument} is wrong" if argument else "The arguments are wrong"
    return ToolError(f"{subject}: {message}.")


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
