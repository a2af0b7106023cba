"""Converts what the methods of a server return to results of MCP."""

from __future__ import annotations

import base64
import inspect
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import mcp_types as types
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from leaseway.server.base import ToolError, ToolResult
from leaseway.server.faults import InvalidValueError

_MAX_ITEMS: Final = 100_000


def call_result(returned: Any, metadata: FuncMetadata | None = None) -> types.CallToolResult:
    """Return the result of a tool; raises `InvalidValueError`.

    Args:
        returned: What the tool returned.
        metadata: The model of its result, if it has one.
    """
    try:
        result = _call_result(returned, metadata)
    except ValidationError as error:
        raise InvalidValueError(f"a result that does not match its type ({error!s:.300})") from None
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(
            f"a result that JSON can't hold, a {type(returned).__name__} ({error!s:.300})"
        ) from None
    check_json(result, "a result")  # the writer would fail, and end the server
    return result


def _call_result(returned: Any, metadata: FuncMetadata | None) -> types.CallToolResult:
    match returned:
        case types.CallToolResult():
            return returned
        case None:
            return types.CallToolResult(content=[])
        case str():
            returned = ToolResult(returned)
        case {"content": [*blocks]} if all(_is_block(block) for block in blocks):
            return types.CallToolResult.model_validate(dict(returned))
        case ToolResult():
            pass
        case _:
            data = _to_json(returned, metadata)
            text = json.dumps(data, ensure_ascii=False, allow_nan=False)
            returned = ToolResult(text, data if isinstance(data, dict) else None)
    return types.CallToolResult(
        content=[types.TextContent(text=returned.text)],
        structured_content=returned.structured and dict(returned.structured),
        is_error=returned.is_error,
    )


def _to_json(returned: Any, metadata: FuncMetadata | None) -> Any:
    if metadata is None or metadata.output_model is None:
        return to_jsonable_python(returned)
    result = metadata.convert_result(returned)
    return result.structured_content if isinstance(result, types.CallToolResult) else None


def _is_block(block: Any) -> bool:
    return isinstance(block, Mapping) and "type" in block


def resource_contents(
    uri: str, content: Any, mime_type: str | None
) -> types.TextResourceContents | types.BlobResourceContents:
    """Return what `read_resource` returned; raises `InvalidValueError`."""
    if isinstance(content, bytes | bytearray):
        blob = base64.b64encode(content).decode()
        return types.BlobResourceContents(uri=uri, mime_type=mime_type, blob=blob)
    if isinstance(content, str):
        return types.TextResourceContents(uri=uri, mime_type=mime_type, text=content)
    raise InvalidValueError(
        f"read_resource() returned a {type(content).__name__}; return text or bytes"
    )


def check_json(value: Any, what: str) -> None:
    """Raise `InvalidValueError` if JSON can't hold a value, such as a lone surrogate."""
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidValueError(f"{what} that JSON can't hold ({error!s:.300})") from None


def call_and_list(function: Callable[[], Any]) -> Any:
    """Call a function; return its value, or the items of a generator as a list."""
    returned = function()
    if inspect.isgenerator(returned):
        return _checked(list(itertools.islice(returned, _MAX_ITEMS + 1)))
    return returned


async def list_items(generator: AsyncGenerator[Any, Any]) -> list[Any]:
    """Return the items of an asynchronous generator."""
    items: list[Any] = []
    async with aclosing(generator):
        async for item in generator:
            items.append(item)
            if len(items) > _MAX_ITEMS:
                break
    return _checked(items)


def _checked(items: list[Any]) -> list[Any]:
    if len(items) > _MAX_ITEMS:
        raise ToolError(f"The tool yields more than {_MAX_ITEMS:,} parts.")
    return items
