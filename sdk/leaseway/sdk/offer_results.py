"""What prompts, resources and completions return; parsed when first looked at."""

from __future__ import annotations

import base64
import binascii
import json
from abc import ABC, abstractmethod
from reprlib import Repr
from typing import Any, Final

from leaseway.sdk.errors import InternalError
from leaseway.sdk.lease import Lease

__all__ = ["Completion", "PromptResult", "ResourceResult"]

_short: Final = Repr()
_short.maxstring = 80


class _Result(ABC):
    """The result of one request.

    Attributes:
        payload: The MCP `result` object as UTF-8 JSON, as the server sent it.
        new_lease: The lease that this request acquired, or None.
    """

    __slots__ = ("_raw", "new_lease", "payload")

    def __init__(self, payload: bytes, new_lease: Lease | None = None) -> None:
        self.payload = payload
        self.new_lease = new_lease
        self._raw: dict[str, Any] | None = None

    @property
    def raw(self) -> dict[str, Any]:
        """The whole MCP `result` object, members unknown to this version included."""
        if self._raw is None:
            self._raw = _parse(self.payload)
        return self._raw

    def __repr__(self) -> str:
        try:
            shown = self._shown()
        except InternalError:
            shown = "not readable"
        return f"{type(self).__name__}({len(self.payload)} bytes, {shown})"

    @abstractmethod
    def _shown(self) -> str:
        """Return what tells this result from others, in short."""


class PromptResult(_Result):
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
        contents = [message.get("content") for message in self.messages]
        return "\n".join(
            _text(content.get("text"))
            for content in contents
            if isinstance(content, dict) and content.get("type") == "text"
        )

    def _shown(self) -> str:
        said = _short.repr(self.description)
        return f"description={said}, messages={len(self.messages)}"


class ResourceResult(_Result):
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

    def _shown(self) -> str:
        return f"uris={_short.repr([_text(part.get('uri')) for part in self.contents])}"


class Completion(_Result):
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


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InternalError(
            f"The worker passed on a result that is not JSON ({error}); see `.payload`.",
            started="yes",
        ) from None
    if not isinstance(value, dict):
        raise InternalError(
            "The worker passed on a result that is not a JSON object; see `.payload`.",
            started="yes",
        )
    return value
