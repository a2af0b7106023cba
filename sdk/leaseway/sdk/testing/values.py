"""What a fake tool returns, turned into an MCP result."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python


@dataclass(frozen=True)
class Media:
    """An image or a sound that a fake tool returns.

    Attributes:
        data: Its bytes.
        mime_type: Its MIME type; one that begins with `audio/` makes it a sound.
    """

    data: bytes
    mime_type: str = "image/png"

    @property
    def item(self) -> dict[str, Any]:
        """The content item, as an MCP server would send it."""
        kind = "audio" if self.mime_type.startswith("audio/") else "image"
        data = base64.b64encode(self.data).decode()
        return {"type": kind, "data": data, "mimeType": self.mime_type}


@dataclass(frozen=True)
class Reply:
    """A result of a fake tool, part by part.

    Attributes:
        content: Texts, media, and content items as MCP has them.
        structured: The structured result, or None.
        is_error: Whether the tool says that it failed.
        meta: The result's `_meta`, or empty.
    """

    content: Sequence[str | Media | Mapping[str, Any]] = ()
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


def result_of(value: Any) -> dict[str, Any]:
    """Return the MCP result for what a fake tool returned.

    A text, `Media`, or a list of both is content; a `Reply` is taken apart; everything else has to
    be what JSON can hold (pydantic models and dataclasses too) and becomes the structured result
    and its text. A structured result that is no object is wrapped as `{"result": …}`.

    Raises:
        TypeError: JSON cannot hold it.
    """
    if isinstance(value, Reply):
        return _replied(value)
    if value is None:
        return {"content": []}
    if isinstance(value, str | Media):
        return {"content": [_item(value)]}
    parts = isinstance(value, list | tuple) and value
    if parts and any(isinstance(part, Media) for part in value):
        return {"content": [_item(part) for part in value]}
    plain = _plain(value)
    structured = plain if isinstance(plain, dict) else {"result": plain}
    text = json.dumps(plain, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def failure(error: BaseException) -> dict[str, Any]:
    """Return the result of a tool that raised: the text of its exception, for the model."""
    text = str(error) or type(error).__name__
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _replied(reply: Reply) -> dict[str, Any]:
    result: dict[str, Any] = {"content": [_item(part) for part in reply.content]}
    if reply.structured is not None:
        result["structuredContent"] = _plain(reply.structured)
    if reply.is_error:
        result["isError"] = True
    if reply.meta:
        result["_meta"] = dict(reply.meta)
    return result


def _item(part: str | Media | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(part, Media):
        return part.item
    return {"type": "text", "text": part} if isinstance(part, str) else dict(part)


def _plain(value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(
            f"A fake tool returned a {type(value).__name__}, which JSON cannot hold. Return text, "
            "Media, numbers, booleans, None, lists, dicts, dataclasses, pydantic models or a Reply."
        ) from error
