"""Makes tools of the official package from what `list_tools` returns.

The package makes the schemas from type hints, and converts arguments and results. Four of its
habits are left out, as they lose data: it reads text arguments as JSON, drops unknown arguments,
takes a parameter without a type hint for a text, and flattens lists in the text of a result.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial, update_wrapper, wraps
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import jsonschema_rs
import mcp_types as types
from mcp.server.mcpserver import Audio, Image
from mcp.server.mcpserver.exceptions import InvalidSignature
from mcp.server.mcpserver.tools import Tool as McpTool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic_core import to_json, to_jsonable_python

from leaseway.server.base import Tool, ToolError, ToolResult, find_marks
from leaseway.server.faults import DefinitionError, location_of
from leaseway.wire.messages.artifact_refs import type_of_bytes
from leaseway.wire.names import is_valid_name

Run = Callable[[Callable[[], Any]], Any]
"""Calls a function of the server and awaits its result."""
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LISTED: Final = {"name", "title", "annotations", "icons", "meta"}
_BLOCKS: Final = (
    *get_args(types.ContentBlock),
    Audio,
    Image,
    types.CallToolResult,
    types.InputRequiredResult,
)

_ANY_TYPE: Final = ConfigDict(arbitrary_types_allowed=True)
_ANY_BYTES: Final = "application/octet-stream"
_BYTES: Final = (bytes, bytearray, memoryview)
_JSON_HAS_NO_BYTES: Final = (
    "bytes that are no text, which JSON does not have: return them alone or as items of a list,"
    " with a result type of bytes or none, or encode them"
)
_SCHEMALESS: Final = (*_BLOCKS, BaseModel, Mapping, inspect.Parameter.empty)


class _Metadata(FuncMetadata):
    """The parameters and the result of a function with type hints."""

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        try:
            values = self.arg_model.model_validate(arguments_to_validate)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            raise _invalid_argument(fault["loc"], fault["msg"]) from None
        return {**values.model_dump_one_level(), **(values.model_extra or {})}

    def convert_result(self, result: Any) -> types.CallToolResult | types.InputRequiredResult:
        shown = result if self.output_schema is not None else _shown(result)
        match shown:
            case ToolResult():
                converted = types.CallToolResult(
                    content=[types.TextContent(text=shown.text)],
                    structured_content=shown.structured and dict(shown.structured),
                    is_error=shown.is_error,
                )
            case {"content": [*blocks]} if all(_is_block(block) for block in blocks):
                converted = types.CallToolResult.model_validate(dict(shown))
            case _ if _is_content(shown):
                converted = self._convert(shown)
            case _:
                data = _data_of(shown)
                is_text = isinstance(data, str)  # such as a date, a path, a member of an Enum
                text = data if is_text else json.dumps(data, ensure_ascii=False, allow_nan=False)
                converted = self._convert(shown)
                converted.content = [types.TextContent(text=text)]
                if isinstance(data, dict):
                    converted.structured_content = converted.structured_content or data
        to_json(converted)  # the writer would fail, and end the server
        return converted

    def _convert(self, result: Any) -> Any:
        try:
            return super().convert_result(result)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, fault["loc"]))
            raise TypeError(
                f"a result that does not match its type: {place}: {fault['msg']}"
            ) from None


class _SchemaMetadata(_Metadata):
    """The parameters of a tool with its own schema: its function takes them as a mapping."""

    validator: Any

    def validate_arguments(self, arguments_to_validate: dict[str, Any]) -> dict[str, Any]:
        for wrong in self.validator.iter_errors(arguments_to_validate):
            raise _invalid_argument(wrong.instance_path, wrong.message)
        return {"arguments": arguments_to_validate}


def convert_tools(
    listed: Any, handle: Callable[[str, dict[str, Any]], Any], run: Run
) -> list[McpTool]:
    """Return the result of `list_tools` as tools of the official package.

    Args:
        listed: The result.
        handle: Handles calls of tools without a function, given the tool's name.
        run: Runs functions of the server.

    Raises:
        DefinitionError: It is no list of tools; the message names the invalid entry.
    """
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise DefinitionError(
            f"list_tools() returned a {type(listed).__name__}; return a list of tools."
        )
    tools: dict[str, McpTool] = {}
    for entry in listed:
        tool = _tool_of_method(entry, run) if callable(entry) else _tool(entry, handle, run)
        fault = ""
        if not is_valid_name(tool.name):
            fault = f"{tool.name!r:.80}; a name is 1 to 64 of a-z, A-Z, 0-9, '_' and '-'"
        elif tool.name in tools:
            fault = f"{tool.name!r} twice"
        if fault:
            raise DefinitionError(f"{location_of(tool.fn)}list_tools() has a tool named {fault}.")
        tools[tool.name] = tool
    return list(tools.values())


def _tool(entry: Any, handle: Callable[[str, dict[str, Any]], Any], run: Run) -> McpTool:
    if not isinstance(entry, Tool | Mapping):
        raise DefinitionError(
            f"list_tools() has a {type(entry).__name__}, which is no tool: return a Tool or a"
            " method."
        )
    fields = vars(entry) if isinstance(entry, Tool) else dict(entry)
    try:
        defined = types.Tool.model_validate(fields)
        metadata = _SchemaMetadata(
            arg_model=ArgModelBase,
            output_schema=defined.output_schema,
            validator=jsonschema_rs.validator_for(defined.input_schema),
        )
    except ValueError as error:
        raise DefinitionError(f"list_tools() has an invalid tool: {error!s:.300}") from None
    function = fields.get("function") or partial(handle, defined.name)

    async def call(arguments: dict[str, Any]) -> Any:
        return await run(partial(function, arguments))

    return McpTool(
        fn=update_wrapper(call, function),
        is_async=True,
        parameters=defined.input_schema,
        fn_metadata=metadata,
        **defined.model_dump(include=_LISTED) | {"description": defined.description or ""},
    )


def _tool_of_method(function: Callable[..., Any], run: Run) -> McpTool:
    @wraps(function)
    async def call(**arguments: Any) -> Any:
        return await run(partial(function, **arguments))

    name, about = getattr(function, "__name__", ""), inspect.getdoc(function)
    marks = {"name": name, "description": about, **find_marks(function)}
    place = location_of(function)
    if not is_valid_name(marks["name"]):
        raise DefinitionError(
            f"{place}list_tools() has a tool named {marks['name']!r:.80}; a name is 1 to 64 of"
            " a-z, A-Z, 0-9, '_' and '-', such as @tool(name=\"forecast\") gives to a lambda or a"
            " partial function."
        )
    try:
        return describe_function(call, inspect.signature(function, eval_str=True), **marks)
    except (NameError, DefinitionError) as error:
        raise DefinitionError(f"{place}{error}") from None
    except Exception as error:  # noqa: BLE001 - type hints and defaults raise what they like
        reason = f"{type(error).__name__}: {error}"
        text = f"The tool {marks['name']!r} cannot be made of its signature: {reason:.300}"
        raise DefinitionError(f"{place}{text}") from None


def describe_function(
    function: Callable[..., Any], signature: inspect.Signature, *, name: str, **marks: Any
) -> McpTool:
    """Return the tool of a function, with the schemas of its arguments and of its result.

    Unknown arguments are invalid unless the signature has `**` parameters.

    Args:
        function: Takes the parameters by keyword; its signature is set.
        signature: The parameters, and the result, with evaluated type hints.
        name: The tool's name.
        **marks: Its description and all else that the official package lists.

    Raises:
        DefinitionError: A parameter is positional, its type has no JSON Schema, or its name cannot
            be that of an argument.
    """
    extra: Literal["allow", "forbid"] = "forbid"
    named = {}
    for key, parameter in signature.parameters.items():
        # Pydantic's own data, such as `model_extra`, would take the place of the argument.
        is_taken = hasattr(ArgModelBase, key) and not callable(getattr(ArgModelBase, key))
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind not in _NAMED or key.startswith("_") or is_taken:
            reason = "arguments have names, which do not start with '_' and are none of pydantic's"
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                key, reason = f"*{key}", "arguments have names. A decorator needs functools.wraps"
            raise _no_argument(name, key, reason)
        elif parameter.annotation is inspect.Parameter.empty:
            named[key] = parameter.replace(annotation=Any)  # the package would call it a text
        else:
            named[key] = parameter
    original = inspect.unwrap(function)
    is_text = _is_shown(signature.return_annotation) or (
        inspect.isgeneratorfunction(original) or inspect.isasyncgenfunction(original)
    )
    signature = signature.replace(parameters=list(named.values()))
    function.__signature__ = signature  # type: ignore[attr-defined]
    try:
        tool = McpTool.from_function(
            function, name, structured_output=False if is_text else None, **marks
        )
        made = tool.fn_metadata
        model = create_model(name, __base__=made.arg_model, __cls_kwargs__={"extra": extra})
        schema = model.model_json_schema()
    except (PydanticUserError, InvalidSignature) as error:
        raise DefinitionError(_without_schema(name, signature, error.args[0])) from None
    arguments = {field.alias or key for key, field in model.model_fields.items()}
    for lost in named.keys() - arguments - {tool.context_kwarg, *tool.resolved_params}:
        reason = "the official package cannot tell it from another: rename one of them"
        raise _no_argument(name, lost, reason)  # such as `json` and `field_json`
    result = {} if is_text else _wrapped(name, signature.return_annotation, made)
    metadata = _Metadata.model_validate({**dict(made), "arg_model": model, **result})
    return tool.model_copy(update={"fn_metadata": metadata, "parameters": schema})


def _wrapped(name: str, hint: Any, made: FuncMetadata) -> dict[str, Any]:
    """Return fields of the metadata for a result whose class has no type hints, or none.

    The package gives such results no schema, though pydantic writes dates, paths, decimals and
    enums as JSON, or that of an empty object, as to URLs. A plain list or tuple may hold media,
    which are content and no data.
    """
    if not isinstance(hint, type):
        return {}
    if made.output_model is not None and (made.wrap_output or made.output_schema != _empty(made)):
        return {}
    if hint in (object, list, tuple) or issubclass(hint, _SCHEMALESS):
        return {}
    try:
        output = create_model(f"{name}Output", result=(hint, ...))
        schema = output.model_json_schema(mode="serialization")
    except PydanticUserError:
        return {}
    return {"output_model": output, "output_schema": schema, "wrap_output": True}


def _empty(made: FuncMetadata) -> dict[str, Any]:
    """Return the schema of an object without properties, as the package writes it."""
    return {**(made.output_schema or {}), "type": "object", "properties": {}}


def _no_argument(tool: str, parameter: str, reason: str) -> DefinitionError:
    text = f"The parameter {parameter!r} of tool {tool!r} cannot be an argument: {reason}."
    return DefinitionError(text)


def _without_schema(tool: str, signature: inspect.Signature, reason: str) -> str:
    """Return why a tool has no JSON Schema, with the parameter whose type has none."""
    for name, parameter in signature.parameters.items():
        fields: dict[str, Any] = {"value": (parameter.annotation, ...)}
        try:
            create_model(tool, __config__=_ANY_TYPE, **fields).model_json_schema()
        except PydanticInvalidForJsonSchema:
            hint = getattr(parameter.annotation, "__name__", str(parameter.annotation))
            return (
                f"The parameter {name!r} of tool {tool!r} has the type {hint}, which JSON does not"
                " have: use a dataclass, a pydantic model or a type of JSON."
            )
        except PydanticUserError:
            break
    return f"No JSON Schema can be made for tool {tool!r}: {reason}"


def _is_shown(hint: Any, *, is_item: bool = False) -> bool:
    """Return whether a result of a type may be text or media without data, so has no schema.

    It is a `ToolResult` or bytes, a union with one, or a list of them, as `_shown` finds them.
    Fields, values of mappings, items of sets and of lists in lists are data.

    Args:
        hint: The type.
        is_item: Whether it is that of a list's items.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        return isinstance(hint, type) and issubclass(hint, (ToolResult, *_BYTES))
    if origin is Annotated:
        return _is_shown(arguments[0], is_item=is_item)
    if origin in (Union, UnionType):
        return any(_is_shown(member, is_item=is_item) for member in arguments)
    is_list = not is_item and isinstance(origin, type) and issubclass(origin, Iterable)
    if is_list and not issubclass(origin, (Mapping, Set)):
        return any(_is_shown(item, is_item=True) for item in arguments)
    return False


def _shown(result: Any) -> Any:
    """Return a result with its bytes, alone or as items of a list, as texts and media."""
    if isinstance(result, _BYTES):
        return _content_of(bytes(result))
    if isinstance(result, list | tuple) and any(isinstance(item, _BYTES) for item in result):
        return [_content_of(bytes(item)) if isinstance(item, _BYTES) else item for item in result]
    return result


def _data_of(result: Any) -> Any:
    try:
        return to_jsonable_python(result)
    except UnicodeDecodeError:
        raise TypeError(_JSON_HAS_NO_BYTES) from None


def _content_of(content: bytes) -> str | types.ContentBlock:
    """Return bytes as a text if they are that, or else as MCP's content by their first bytes."""
    kind = type_of_bytes(content)
    try:
        if not kind:
            return content.decode()
    except UnicodeDecodeError:
        kind = _ANY_BYTES
    data = base64.b64encode(content).decode()
    match kind.partition("/")[0]:
        case "image":
            return types.ImageContent(data=data, mime_type=kind)
        case "audio":
            return types.AudioContent(data=data, mime_type=kind)
    blob = types.BlobResourceContents(uri="result:", mime_type=kind, blob=data)
    return types.EmbeddedResource(resource=blob)


def _is_block(block: Any) -> bool:
    return isinstance(block, Mapping) and "type" in block


def _is_content(result: Any) -> bool:
    """Return whether the package makes the content of a result without loss."""
    if isinstance(result, list | tuple):
        return any(isinstance(item, _BLOCKS) for item in result)
    return result is None or isinstance(result, (str, *_BLOCKS))


def _invalid_argument(path: Iterable[object], message: str) -> ToolError:
    argument = ".".join(map(str, path))
    subject = f"The argument {argument} is wrong" if argument else "The arguments are wrong"
    return ToolError(f"{subject}: {message}.")
