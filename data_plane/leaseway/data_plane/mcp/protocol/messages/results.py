"""Looks at the result of a call: its flags, whether it has media, and whether it is MCP's. Pure.

Nearly every result passes on in the server's bytes after one decoding in C. That fails for members
that official clients reject; such a result is corrected (`core.definitions`).
"""

from __future__ import annotations

import datetime
import itertools
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from leaseway.data_plane.core.definitions.results import URI, corrected
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage
from leaseway.wire.bounds import MAX_VALUES
from leaseway.wire.messages.portable_json import has_many_values
from leaseway.wire.text.base64_text import looks_standard

_QUOTE: Final = b'"'
"""How every text begins."""
_SMALL: Final = 8 << 10
"""Bytes of a result whose texts are decoded; of larger ones their first bytes are looked at."""
TextT = TypeVar("TextT")
"""How texts and data are decoded: `str`, or `Raw`, which is not copied."""


class _Annotations(msgspec.Struct, gc=False, frozen=True):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    lastModified: Annotated[datetime.datetime, Meta(tz=True)] | UnsetType = UNSET  # noqa: N815


class _Item(msgspec.Struct, gc=False, frozen=True, tag_field="type"):
    annotations: _Annotations | UnsetType = UNSET
    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class _Text(_Item, Generic[TextT], frozen=True, kw_only=True, tag="text"):
    value: TextT = msgspec.field(name="text")


def _check_base64(value: object) -> None:
    """Check data, as a text or undecoded; what is no text is found otherwise."""
    if isinstance(value, str):
        is_fit = looks_standard(value.encode(errors="replace"))
    else:
        is_fit = not isinstance(value, Raw) or looks_standard(memoryview(value)[1:-1])
    if not is_fit:
        raise ValueError("data is no base64")


class _Image(_Item, Generic[TextT], frozen=True, kw_only=True, tag="image"):
    value: TextT = msgspec.field(name="data")
    mimeType: str  # noqa: N815 - MCP's name

    def __post_init__(self) -> None:
        _check_base64(self.value)


class _Audio(_Item, Generic[TextT], frozen=True, kw_only=True, tag="audio"):
    value: TextT = msgspec.field(name="data")
    mimeType: str  # noqa: N815 - MCP's name

    def __post_init__(self) -> None:
        _check_base64(self.value)


class _Icon(msgspec.Struct, gc=False, frozen=True):
    src: str
    mimeType: str | UnsetType = UNSET  # noqa: N815 - MCP's name
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["light", "dark"] | UnsetType = UNSET


class _Link(_Item, frozen=True, kw_only=True, tag="resource_link"):
    uri: Annotated[str, Meta(pattern=URI)]
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    mimeType: str | UnsetType = UNSET  # noqa: N815 - MCP's name
    size: int | UnsetType = UNSET
    icons: list[_Icon] | UnsetType = UNSET


class _Contents(msgspec.Struct, Generic[TextT], gc=False, frozen=True):
    uri: Annotated[str, Meta(pattern=URI)]
    text: TextT | UnsetType = UNSET
    blob: TextT | UnsetType = UNSET
    mimeType: str | UnsetType = UNSET  # noqa: N815 - MCP's name
    meta: dict[str, Raw] | UnsetType = msgspec.field(default=UNSET, name="_meta")

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("contents have neither text nor blob")
        if self.blob is not UNSET:
            _check_base64(self.blob)


class _Embedded(_Item, Generic[TextT], frozen=True, kw_only=True, tag="resource"):
    resource: _Contents[TextT]


_Content = _Text[TextT] | _Image[TextT] | _Audio[TextT] | _Link | _Embedded[TextT]


class _Message(msgspec.Struct, Generic[TextT], frozen=True):
    role: Literal["user", "assistant"]
    content: _Content[TextT]


class _Meta(msgspec.Struct, gc=False, frozen=True):
    progressToken: str | int | UnsetType = UNSET  # noqa: N815 - MCP's name


class Flags(msgspec.Struct, gc=False, frozen=True):
    """What decides about a call."""

    isError: bool = False  # noqa: N815 - MCP's name
    resultType: Any = None  # noqa: N815 - MCP's name
    content: Any = UNSET
    messages: Any = UNSET
    contents: Any = UNSET


class _FlagsAlone(Flags, frozen=True):
    content: Raw | UnsetType = UNSET  # whether there is any, however much
    messages: Raw | UnsetType = UNSET
    contents: Raw | UnsetType = UNSET


class Look(Flags, Generic[TextT], frozen=True):
    """A result that official clients accept."""

    resultType: str = "complete"  # noqa: N815 - MCP's name
    content: list[_Content[TextT]] | UnsetType = UNSET
    messages: list[_Message[TextT]] | UnsetType = UNSET
    contents: list[_Contents[TextT]] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")

    @property
    def has_media(self) -> bool:
        """Whether it has images or sounds."""
        items = itertools.chain(
            self.content or (), (message.content for message in self.messages or ())
        )
        return any(isinstance(item, _Image | _Audio) for item in items)


class SeenResponse(JsonRpcMessage, frozen=True):
    """A response with a result that was looked at when it was read."""

    look: Look[Raw] = Look()


_read_flags: Final = msgspec.json.Decoder(_FlagsAlone).decode
_read_small: Final = msgspec.json.Decoder(Look[str]).decode
_read_large: Final = msgspec.json.Decoder(Look[Raw]).decode


def has_many_objects(json: bytes) -> bool:
    """Return whether a result has more objects than can be looked at on the event loop."""
    return json.count(b"{") > MAX_VALUES and has_many_values(json)


def look_at(result: bytes | memoryview | Raw) -> Look[Raw]:
    """Return what a large result has.

    Raises:
        ValueError: Official clients would reject it.
    """
    look = _read_large(result)
    items = [*(look.content or ()), *(message.content for message in look.messages or ())]
    for item in items:
        if isinstance(item, _Text | _Image | _Audio):
            _check_text(item.value)
    embedded = (item.resource for item in items if isinstance(item, _Embedded))
    for contents in (*(look.contents or ()), *embedded):
        _check_text(contents.text if contents.blob is UNSET else contents.blob)
    return look


def _check_text(value: Raw | UnsetType) -> None:
    if value is UNSET or bytes(memoryview(value)[:1]) != _QUOTE:
        raise ValueError("a text or data is none")


def read_result(payload: bytes, *, for_client: bool = False) -> tuple[bytes, Flags, str]:
    """Return a result as clients can read it, its flags, and what was changed, in words.

    For an MCP client also types of content change that MCP does not name, and links without a URI.

    Raises:
        ValueError: It is no result of MCP.
    """
    try:
        if has_many_objects(payload):
            return payload, _read_flags(payload), ""
        return payload, (_read_small if len(payload) <= _SMALL else look_at)(payload), ""
    except ValueError:
        payload, changes = corrected(payload, for_client=for_client)
        return payload, _read_flags(payload), changes
