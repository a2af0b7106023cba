"""Results of prompts, resources and completions; parsed when they are first read."""

from __future__ import annotations

from reprlib import Repr
from typing import Any, Final

from leaseway.sdk.calls.media import (
    Media,
    ModelContent,
    blobs_in,
    media_in,
    model_items,
    resource_items,
)
from leaseway.sdk.calls.results import McpResult
from leaseway.sdk.errors import InternalError
from leaseway.wire.text.base64_text import decoded

_short: Final = Repr()
_short.maxstring = 80


class PromptResult(McpResult):
    """A prompt with its arguments filled in."""

    __slots__ = ()

    @property
    def description(self) -> str:
        """The prompt's description, or empty."""
        return _text(self.raw.get("description"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in order: `role`, and `content` as one MCP content item."""
        return _dicts(self.raw.get("messages"))

    @property
    def text(self) -> str:
        """The texts of the messages, joined by line breaks; empty without text."""
        return "\n".join(
            _text(item.get("text")) for item in self._items if item.get("type") == "text"
        )

    @property
    def media(self) -> list[Media]:
        """The images and sounds of the messages, in order; see `ToolResult.media`."""
        return media_in(self._items)

    def for_model(self) -> ModelContent:
        """Return the messages' content for a model; see `ToolResult.for_model`.

        Returns:
            One item per message, in order, because each message holds one MCP content item. The
            roles are in `messages`.
        """
        return ModelContent(model_items(self._items), self._reader, self._session)

    @property
    def _items(self) -> list[dict[str, Any]]:
        """The content items of the messages; a server may send several in one message."""
        items: list[dict[str, Any]] = []
        for message in self.messages:
            content = message.get("content")
            items += _dicts(content if isinstance(content, list) else [content])
        return items

    def _summary(self) -> str:
        return f"description={_short.repr(self.description)}, messages={len(self.messages)}"


class ResourceResult(McpResult):
    """The content of a resource."""

    __slots__ = ()

    @property
    def contents(self) -> list[dict[str, Any]]:
        """The parts in order: `uri`, `mimeType` if known, and `text` or `blob` (base64)."""
        return _dicts(self.raw.get("contents"))

    @property
    def text(self) -> str:
        """The texts of the parts, joined by line breaks; empty without text."""
        return "\n".join(
            part["text"] for part in self.contents if isinstance(part.get("text"), str)
        )

    @property
    def blob(self) -> bytes | None:
        """The bytes of the first binary part, or None if every part is text.

        Raises:
            InternalError: The part is not valid base64.
        """
        for part in self.contents:
            if isinstance(part.get("blob"), str):
                try:
                    return decoded(part["blob"])
                except ValueError as error:
                    raise InternalError(
                        f"The server sent a blob that is not base64 ({error}); see `.contents`.",
                        started="yes",
                    ) from None
        return None

    @property
    def media(self) -> list[Media]:
        """The images and sounds in order, by the `mimeType` of their parts, without invalid ones.

        Other binary parts are in `contents`.
        """
        return blobs_in(self.contents)

    def for_model(self) -> ModelContent:
        """Return the parts for a model; see `ToolResult.for_model`.

        Nothing has to be read: the items are available at once in both clients.
        """
        return ModelContent(resource_items(self.contents), self._reader, self._session)

    def _summary(self) -> str:
        return f"uris={_short.repr([_text(part.get('uri')) for part in self.contents])}"


class Completion(McpResult):
    """Proposed values for an argument."""

    __slots__ = ()

    @property
    def values(self) -> list[str]:
        """The proposals, best first; MCP allows at most 100."""
        values = self._completion.get("values")
        if not isinstance(values, list):
            return []
        return [value for value in values if isinstance(value, str)]

    @property
    def total(self) -> int | None:
        """The number of possible values, or None if the server did not send it."""
        total = self._completion.get("total")
        return total if isinstance(total, int) and not isinstance(total, bool) else None

    @property
    def has_more(self) -> bool:
        """Whether the server has more values than it sent."""
        return self._completion.get("hasMore") is True

    def _summary(self) -> str:
        return f"values={_short.repr(self.values)}"

    @property
    def _completion(self) -> dict[str, Any]:
        completion = self.raw.get("completion")
        return completion if isinstance(completion, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
