"""What a fake tool returns or raises, converted to an MCP result or a fault."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from leaseway.sdk.errors import LeasewayError
from leaseway.wire.errors import Fault, Reason

_STARTED: Final = frozenset(
    {
        Reason.SERVER_ERROR,
        Reason.SERVER_LOST,
        Reason.FATE_UNKNOWN,
        Reason.RESULT_TOO_LARGE,
        Reason.DEADLINE_EXCEEDED,
        Reason.CANCELLED,
        Reason.INTERNAL,
    }
)
"""Reasons for which a call fails only after the server has started it."""


@dataclass(frozen=True)
class Media:
    """An image or sound that a fake tool returns.

    Attributes:
        data: Its bytes.
        mime_type: Its MIME type; `audio/…` makes it a sound, any other type an image.
    """

    data: bytes
    mime_type: str = "image/png"

    @property
    def item(self) -> dict[str, Any]:
        """The content item as an MCP server sends it."""
        kind = "audio" if self.mime_type.startswith("audio/") else "image"
        data = base64.b64encode(self.data).decode()
        return {"type": kind, "data": data, "mimeType": self.mime_type}


@dataclass(frozen=True)
class Reply:
    """A complete result of a fake tool, for what a plain return value cannot express.

    Attributes:
        content: Texts, `Media`, and MCP content items as dicts.
        structured: The structured result, or None.
        is_error: Whether the tool reports that it failed.
        meta: The result's `_meta`, or empty.
    """

    content: Sequence[str | Media | Mapping[str, Any]] = ()
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


def build_result(value: Any) -> dict[str, Any]:
    """Return the MCP result for a fake tool's return value.

    Text, `Media`, or a list with `Media` in it becomes content, and a `Reply` its parts. Every
    other value must be serializable as JSON (pydantic models and dataclasses are) and becomes the
    structured result and its text. A structured result that is not an object is wrapped as
    `{"result": …}`.

    Raises:
        TypeError: The value cannot be serialized as JSON.
    """
    if isinstance(value, Reply):
        return _build_reply(value)
    if value is None:
        return {"content": []}
    if isinstance(value, str | Media):
        return {"content": [_build_item(value)]}
    if isinstance(value, list | tuple) and any(isinstance(part, Media) for part in value):
        return {"content": [_build_item(part) for part in value]}
    plain = _to_json(value)
    structured = plain if isinstance(plain, dict) else {"result": plain}
    text = json.dumps(plain, ensure_ascii=False)
    return {"content": [_build_item(text)], "structuredContent": structured}


def build_error_result(error: BaseException) -> dict[str, Any]:
    """Return the result of a tool that raised: the exception's text, for the model."""
    return {"content": [_build_item(str(error) or type(error).__name__)], "isError": True}


def fault_from_error(error: LeasewayError) -> Fault:
    """Return an injected or raised error as a worker sends it."""
    started = error.started == "no" and error.reason in _STARTED
    return Fault(
        reason=error.reason,
        message=error.message,
        started="yes" if started else error.started,
        metadata=error.metadata,
        retry_delay=error.retry_after,
        violations=tuple((entry.field, entry.message) for entry in error._violations),
    )


def _build_reply(reply: Reply) -> dict[str, Any]:
    result: dict[str, Any] = {"content": [_build_item(part) for part in reply.content]}
    if reply.structured is not None:
        result["structuredContent"] = _to_json(reply.structured)
    if reply.is_error:
        result["isError"] = True
    if reply.meta:
        result["_meta"] = dict(reply.meta)
    return result


def _build_item(part: str | Media | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, Media):
        return part.item
    return {"type": "text", "text": part} if isinstance(part, str) else dict(part)


def _to_json(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(
            f"A fake tool returned a {type(value).__name__}, which JSON cannot hold. Return text, "
            "Media, numbers, booleans, None, lists, dicts, dataclasses, pydantic models or a Reply."
        ) from error
