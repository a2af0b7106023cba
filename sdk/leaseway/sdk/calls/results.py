"""Results of calls: MCP results as workers pass them on, parsed when they are first read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Self, cast

from leaseway.sdk.calls.media import (
    Media,
    MediaReader,
    ModelContent,
    media_in,
    model_content,
    text_of,
)
from leaseway.sdk.errors import InternalError
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.plain_data import PlainData

_decode: Final = json.JSONDecoder().decode
"""`json.loads` for strings, without its detection of encodings and its parameters."""


class McpResult(PlainData):
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
    def _from_result(cls, result: McpResult) -> Self:
        """Return the result that a call returned, as an instance of this class."""
        return cls(result.payload, result.new_lease, result._reader, result._session)

    @property
    def raw(self) -> dict[str, Any]:
        """The whole MCP `result` object, including members that this version does not know.

        Raises:
            InternalError: The payload is not a JSON object.
        """
        raw = self._raw
        if raw is None:
            raw = self._raw = _parse(self.payload)
        return raw

    def to_dict(self) -> dict[str, Any]:
        """Return the MCP `result` object, as `from_dict` accepts it."""
        return dict(self.raw)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the result of an MCP `result` object; it has no lease and reads no artifacts."""
        return cls(json.dumps(dict(data)).encode())

    @classmethod
    def _validate(cls, value: Any) -> Any:
        return cls.from_dict(value) if isinstance(value, Mapping) else super()._validate(value)

    def _asdict(self) -> dict[str, Any]:
        """Return the constructor's arguments; LangGraph stores values of a graph by them."""
        return {"payload": self.payload}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.payload, self.new_lease)  # without the client, to be pickled

    def __repr__(self) -> str:
        try:
            summary = self._summary()
        except InternalError:
            summary = "not readable"
        return f"{type(self).__name__}({len(self.payload)} bytes, {summary})"

    def _summary(self) -> str:
        raise NotImplementedError


class ToolResult(McpResult):
    """The result of one tool call; parsed when it is first read.

    Attributes:
        payload: The MCP `result` object as UTF-8 JSON, as the server sent it.
        is_error: Whether the tool reported an error. This raises no exception: a model may read
            the text and try again.
        new_lease: The lease that this call acquired, or None.
    """

    __slots__ = ("is_error",)

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
        self._raw = None
        self._reader = _reader
        self._session = _session

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content items in order, each as the server sent it."""
        content = self.raw.get("content")
        return cast("list[dict[str, Any]]", content) if isinstance(content, list) else []

    @property
    def text(self) -> str:
        """The text items, joined by line breaks; empty without text."""
        return "\n".join([text_of(item) for item in self.content if _is_text(item)])

    @property
    def media(self) -> list[Media]:
        """The images and sounds in order, without those whose data is invalid."""
        return media_in(self.content)

    def for_model(self) -> ModelContent:
        """Return the content for a model: texts and images, in order.

        Texts stay texts, including those of embedded resources. JPEG, PNG, GIF and WebP images
        become images with their bytes as base64; artifacts are read from the worker. Everything
        else becomes a text with its type, length and reference, as does an image that the worker no
        longer keeps.

        Returns:
            Items as `{"type": "text", "text": …}` and `{"type": "image", "mime_type": …, "data":
            …}`. Await them with an `AsyncClient`; with a `Client` they are already read.
        """
        return ModelContent(model_content(self.raw), self._reader, self._session)

    @property
    def structured(self) -> Any:
        """The structured result (`structuredContent`), or None."""
        return self.raw.get("structuredContent")

    @property
    def reminder(self) -> str | None:
        """A text that tells a model to release the new lease, or None without one."""
        return self.new_lease.reminder if self.new_lease is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the MCP `result` object, with `isError` if the tool reported an error."""
        return {**self.raw, "isError": True} if self.is_error else dict(self.raw)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the result of an MCP `result` object; it has no lease and reads no artifacts."""
        return cls(json.dumps(dict(data)).encode(), data.get("isError") is True)

    def _asdict(self) -> dict[str, Any]:
        return {"payload": self.payload, "is_error": self.is_error}

    def __reduce__(self) -> tuple[Any, ...]:
        return ToolResult, (self.payload, self.is_error, self.new_lease)

    def _summary(self) -> str:
        return f"is_error={self.is_error}"


def _parse(payload: bytes) -> dict[str, Any]:
    if not payload:
        return {}
    try:
        value = _decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise InternalError(
            f"The worker returned a result that is not JSON ({error}); see `.payload`.",
            started="yes",
        ) from None
    if not isinstance(value, dict):
        raise InternalError(
            "The worker returned a result that is not a JSON object; see `.payload`.",
            started="yes",
        )
    return value


def _is_text(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "text"
