"""What a tool call returned.

MCP results as workers pass them on: bytes that are parsed when somebody looks at them.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from leaseway.sdk.calls.media import Media, MediaReader, ModelContent, media_in, model_content
from leaseway.sdk.errors import InternalError
from leaseway.sdk.leases.book import Lease

_decode: Final = json.JSONDecoder().decode
"""What `json.loads` does with a text, less its look at the encoding and its own parameters."""


def parse_result(payload: bytes) -> dict[str, Any]:
    """Return an MCP `result` object; an empty payload is an empty one.

    Raises:
        InternalError: It is no JSON object.
    """
    if not payload:
        return {}
    try:
        value = _decode(payload.decode())
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


class ToolResult:
    """The result of one tool call; parsed when it is first looked at.

    Attributes:
        payload: The MCP `result` object as UTF-8 JSON, as the server sent it.
        is_error: What the tool said about itself. True is not an exception: a model may read
            the text and try again.
        new_lease: The lease that this call acquired, or None.
    """

    __slots__ = ("_raw", "_reader", "_session", "is_error", "new_lease", "payload")

    def __init__(
        self,
        payload: bytes,
        is_error: bool = False,
        new_lease: Lease | None = None,
        _reader: MediaReader | None = None,
        _session: str = "",
    ) -> None:
        self.payload = payload
        self.is_error = is_error
        self.new_lease = new_lease
        self._raw: dict[str, Any] | None = None
        self._reader = _reader
        self._session = _session

    @property
    def raw(self) -> dict[str, Any]:
        """The whole MCP `result` object, members unknown to this version included."""
        raw = self._raw
        if raw is None:
            raw = self._raw = parse_result(self.payload)
        return raw

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content items in order, each as the server sent it."""
        content = self.raw.get("content")
        return cast("list[dict[str, Any]]", content) if isinstance(content, list) else []

    @property
    def text(self) -> str:
        """The text items, joined by line breaks; empty where there are none."""
        return "\n".join([str(item.get("text", "")) for item in self.content if _is_text(item)])

    @property
    def media(self) -> list[Media]:
        """The images and sounds in order; those whose data cannot be read are left out."""
        return media_in(self.content)

    def for_model(self) -> ModelContent:
        """Return what a model can be shown of the result: texts and images, in order.

        Texts stay texts, those of embedded resources too; jpeg, png, gif and webp become images
        with their bytes as base64, read from the worker where they are artifacts. Everything else
        becomes a text that says what there was: its type, its length, its reference. So does an
        image that the worker no longer keeps.

        Returns:
            Items as `{"type": "text", "text": …}` and `{"type": "image", "mime_type": …, "data":
            …}`. Await them where the client is an `AsyncClient`; one of `Client` has read all.
        """
        return ModelContent(model_content(self.raw), self._reader, self._session)

    @property
    def structured(self) -> Any:
        """The structured result (`structuredContent`), or None."""
        return self.raw.get("structuredContent")

    @property
    def reminder(self) -> str | None:
        """What to tell a model that now holds a lease, or None where no lease came with this."""
        return self.new_lease.reminder if self.new_lease is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolResult, (self.payload, self.is_error, self.new_lease)  # its client stays here

    def __repr__(self) -> str:
        return f"ToolResult({len(self.payload)} bytes, is_error={self.is_error})"


def _is_text(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "text"
