"""What prompts, resources and completions return; parsed when first looked at."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from reprlib import Repr
from typing import Any, Final, Self

from leaseway.sdk.calls.media import (
    Media,
    MediaReader,
    ModelContent,
    blobs_in,
    content_of_resources,
    media_in,
    model_items,
)
from leaseway.sdk.calls.results import ToolResult, parse_result
from leaseway.sdk.errors import InternalError
from leaseway.sdk.leases.book import Lease

_short: Final = Repr()
_short.maxstring = 80


class McpResult(ABC):
    """The result of one request.

    Attributes:
        payload: The MCP `result` object as UTF-8 JSON, as the server sent it.
        new_lease: The lease that this request acquired, or None.
    """

    __slots__ = ("_raw", "_reader", "_session", "new_lease", "payload")

    def __init__(
        self,
        payload: bytes,
        new_lease: Lease | None = None,
        _reader: MediaReader | None = None,
        _session: str = "",
    ) -> None:
        self.payload = payload
        self.new_lease = new_lease
        self._raw: dict[str, Any] | None = None
        self._reader = _reader
        self._session = _session

    @classmethod
    def _of(cls, answer: ToolResult) -> Self:
        """Return what a request was answered with, whatever it was taken for on its way."""
        return cls(answer.payload, answer.new_lease, answer._reader, answer._session)

    @property
    def raw(self) -> dict[str, Any]:
        """The whole MCP `result` object, members unknown to this version included."""
        if self._raw is None:
            self._raw = parse_result(self.payload)
        return self._raw

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payload, self.new_lease)  # its client stays here

    def __repr__(self) -> str:
        try:
            shown = self._shown()
        except InternalError:
            shown = "not readable"
        return f"{type(self).__name__}({len(self.payload)} bytes, {shown})"

    @abstractmethod
    def _shown(self) -> str:
        """Return what tells this result from others, in short."""


class PromptResult(McpResult):
    """A prompt with its arguments filled in."""

    __slots__ = ()

    @property
    def description(self) -> str:
        """What the prompt is for; empty where the server does not say."""
        return _text(self.raw.get("description"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages in order: `role`, and `content` as one MCP content item."""
        return _dicts(self.raw.get("messages"))

    @property
    def text(self) -> str:
        """The texts of its messages, joined by line breaks; empty where there are none."""
        return "\n".join(
            _text(item.get("text")) for item in self._items if item.get("type") == "text"
        )

    @property
    def media(self) -> list[Media]:
        """The images and sounds of its messages, in order; see `ToolResult.media`."""
        return media_in(self._items)

    def for_model(self) -> ModelContent:
        """Return what a model can be shown of its messages; see `ToolResult.for_model`.

        Returns:
            An item for each message, in order, as each holds one of MCP's content items: who
            speaks is said by `messages`.
        """
        return ModelContent(model_items(self._items), self._reader, self._session)

    @property
    def _items(self) -> list[dict[str, Any]]:
        """The content items of its messages, in order; a server may send a message with several."""
        found: list[dict[str, Any]] = []
        for message in self.messages:
            content = message.get("content")
            found += _dicts(content if isinstance(content, list) else [content])
        return found

    def _shown(self) -> str:
        said = _short.repr(self.description)
        return f"description={said}, messages={len(self.messages)}"


class ResourceResult(McpResult):
    """The content of a resource."""

    __slots__ = ()

    @property
    def contents(self) -> list[dict[str, Any]]:
        """Its parts in order: `uri`, `mimeType` where known, and `text` or `blob` (base64)."""
        return _dicts(self.raw.get("contents"))

    @property
    def text(self) -> str:
        """The texts of its parts, joined by line breaks; empty where there are none."""
        return "\n".join(
            part["text"] for part in self.contents if isinstance(part.get("text"), str)
        )

    @property
    def blob(self) -> bytes | None:
        """The bytes of its first part that is no text; None where all are.

        Raises:
            InternalError: The server's part is no base64.
        """
        for part in self.contents:
            if isinstance(part.get("blob"), str):
                try:
                    return base64.b64decode(part["blob"])
                except (binascii.Error, ValueError) as error:
                    raise InternalError(
                        f"The server sent a blob that is no base64 ({error}); see `.contents`.",
                        started="yes",
                    ) from None
        return None

    @property
    def media(self) -> list[Media]:
        """Its images and sounds in order, in place; those whose data cannot be read are left out.

        A part is one by its `mimeType`; others with bytes are in `contents`.
        """
        return blobs_in(self.contents)

    def for_model(self) -> ModelContent:
        """Return what a model can be shown of its parts; see `ToolResult.for_model`.

        Nothing has to be read for it: the items are there at once in both clients.
        """
        return ModelContent(content_of_resources(self.contents), self._reader, self._session)

    def _shown(self) -> str:
        return f"uris={_short.repr([_text(part.get('uri')) for part in self.contents])}"


class Completion(McpResult):
    """What an argument may be completed to."""

    __slots__ = ()

    @property
    def values(self) -> list[str]:
        """Proposals, the best first; at most 100, as MCP has it."""
        values = self._found.get("values")
        return (
            [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
        )

    @property
    def total(self) -> int | None:
        """How many there are, where the server says so."""
        total = self._found.get("total")
        return total if isinstance(total, int) and not isinstance(total, bool) else None

    @property
    def has_more(self) -> bool:
        """Whether the server has more than it sent."""
        return self._found.get("hasMore") is True

    def _shown(self) -> str:
        return f"values={_short.repr(self.values)}"

    @property
    def _found(self) -> dict[str, Any]:
        found = self.raw.get("completion")
        return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
