"""Finds images and sounds in MCP results and replaces them by references (design.md#calls). Pure.

Only the parts of a result with media are parsed. All other values keep the bytes that the server
sent, including unknown members; only white space between members of changed objects is lost.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from leaseway.wire.bounds import MAX_ARTIFACTS_PER_RESULT
from leaseway.wire.messages.artifact_refs import media_type
from leaseway.wire.text.base64_text import split_data_url, standard

MediaKind = Literal["image", "audio"]

MEDIA_TYPES: Final = ("image", "audio")
"""The types of items with media."""

DATA_MARK: Final = b'"data"'
"""Every result with media contains it, and few others do."""

_UNKNOWN_TYPE: Final = "application/octet-stream"
_PART_SIZE: Final = 1 << 20  # characters, a multiple of 4; other threads run between parts
_WHITE_SPACE: Final = b" \t\r\n"
_ESCAPED: Final = re.compile(rb"[\\ ]")

_Members = dict[str, msgspec.Raw]
_decode_object: Final = msgspec.json.Decoder(_Members).decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.encode


class InvalidMedia(ValueError):
    """The data of an item is not base64, or too large; the text is the reason."""


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """An image or a sound in a result.

    Attributes:
        kind: `image` or `audio`.
        mime_type: In lower case, without parameters; `application/octet-stream` if the server sent
            no valid one.
        text: Its base64, not yet checked.
    """

    kind: MediaKind
    mime_type: str
    text: bytes | memoryview

    def parts(self) -> Iterator[bytes]:
        """Yield its bytes in parts of at most 768 KiB.

        Raises:
            InvalidMedia: It is not base64; earlier parts must not be used either.
        """
        for start in range(0, len(self.text), _PART_SIZE):
            part = self.text[start : start + _PART_SIZE]
            try:
                decoded = binascii.a2b_base64(part, strict_mode=True)
            except binascii.Error as error:
                raise InvalidMedia(str(error)) from None
            if start + len(part) < len(self.text) and bytes(part[-1:]) == b"=":
                raise InvalidMedia("Excess data after padding")
            yield decoded


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """The reference and size of an item that was stored."""

    ref: str
    byte_length: int


class MediaWriter(Protocol):
    """Stores the bytes of items."""

    def __call__(self, media: EncodedMedia, /) -> StoredMedia | None:
        """Store an item's bytes; None leaves the item in the result."""

    def on_too_many(self) -> None:
        """Called once if there are more items than may be stored; they remain in the result."""


def may_hold_media(payload: bytes) -> bool:
    """Return False if a result certainly has no media. Does not parse it."""
    # `find` is three times as fast as `in`, which first checks whether the mark is a number.
    if payload.find(DATA_MARK) < 0:
        return False
    return payload.find(b'"image"') >= 0 or payload.find(b'"audio"') >= 0


def replace_media(payload: bytes, writer: MediaWriter) -> bytes:
    """Return a result with its images and sounds replaced by references.

    Looks at the items of `content`, and at the content of `messages`.

    Args:
        payload: The MCP `result` object.
        writer: Called for each item, in order, at most `MAX_ARTIFACTS_PER_RESULT` times.

    Returns:
        The result; the same object if nothing was replaced or it cannot be parsed.
    """
    return _Replacement(writer).result(payload)


class _Replacement:
    """One pass over one result; all methods but `result` return None for an unchanged value."""

    def __init__(self, writer: MediaWriter) -> None:
        self._writer = writer
        self._remaining = MAX_ARTIFACTS_PER_RESULT
        self._has_too_many = False

    def result(self, payload: bytes) -> bytes:
        try:
            members = _decode_object(payload)
            changed = self._member(members, "content", self._items)
            changed = self._member(members, "messages", self._messages) or changed
        except (msgspec.DecodeError, RecursionError):
            return payload  # an invalid result is passed on as it is
        return _encode_object(members) if changed else payload

    def _member(
        self, members: _Members, name: str, replace: Callable[[msgspec.Raw], bytes | None]
    ) -> bool:
        value = members.get(name)
        replaced = replace(value) if value is not None else None
        if replaced is None:
            return False
        members[name] = msgspec.Raw(replaced)
        return True

    def _messages(self, value: msgspec.Raw) -> bytes | None:
        return self._replace_each(value, self._message)

    def _message(self, value: msgspec.Raw) -> bytes | None:
        if not _starts_with(value, b"{"):
            return None
        members = _decode_object(value)
        return _encode_object(members) if self._member(members, "content", self._content) else None

    def _content(self, value: msgspec.Raw) -> bytes | None:
        return self._item(value) if _starts_with(value, b"{") else self._items(value)

    def _items(self, value: msgspec.Raw) -> bytes | None:
        return self._replace_each(value, self._item)

    def _replace_each(
        self, value: msgspec.Raw, replace: Callable[[msgspec.Raw], bytes | None]
    ) -> bytes | None:
        if not _starts_with(value, b"["):
            return None
        items: Sequence[msgspec.Raw] = _decode_list(value)
        replaced = [replace(item) for item in items]
        if all(new is None for new in replaced):
            return None
        pairs = zip(items, replaced, strict=True)
        return b"[%b]" % b",".join(old if new is None else new for old, new in pairs)

    def _item(self, value: msgspec.Raw) -> bytes | None:
        if self._has_too_many or not _starts_with(value, b"{"):
            return None
        members = _decode_object(value)
        media = _parse_media(members)
        if media is None:
            return None
        if not self._remaining:
            self._has_too_many = True
            self._writer.on_too_many()
            return None
        self._remaining -= 1
        stored = self._writer(media)
        return _encode_reference(members, media, stored) if stored is not None else None


def _starts_with(value: msgspec.Raw, character: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == character


def _parse_media(members: _Members) -> EncodedMedia | None:
    kind = _text(members.get("type"))
    data = members.get("data")
    if kind not in MEDIA_TYPES or data is None or not _starts_with(data, b'"'):
        return None
    return _build_media(
        "image" if kind == "image" else "audio", _text(members.get("mimeType")), _characters(data)
    )


def image_from_text(mime_type: str, text: str) -> EncodedMedia:
    """Return an image from the parsed members of its item."""
    return _build_media("image", mime_type, text.encode().translate(None, _WHITE_SPACE))


def _build_media(kind: MediaKind, mime_type: str, text: bytes | memoryview) -> EncodedMedia:
    url_type, base64 = split_data_url(text)
    mime_type = media_type(mime_type) or media_type(url_type) or _UNKNOWN_TYPE
    return EncodedMedia(kind, mime_type, standard(base64))


def _text(value: msgspec.Raw | None) -> str:
    return _decode_text(value) if value is not None and _starts_with(value, b'"') else ""


def _characters(value: msgspec.Raw) -> bytes | memoryview:
    """Return the characters of a JSON string; base64 without escapes is not copied."""
    raw = memoryview(value)[1:-1]
    if _ESCAPED.search(raw):
        return _decode_text(value).encode().translate(None, _WHITE_SPACE)
    return raw


def _encode_reference(members: _Members, media: EncodedMedia, stored: StoredMedia) -> bytes:
    parts: list[bytes] = []
    if not media_type(_text(members.get("mimeType"))):
        members["mimeType"] = msgspec.Raw(_encode(media.mime_type))
    for name, value in members.items():
        if name == "data":
            reference = stored.byte_length, _encode(stored.ref)
            parts.append(b'"byteLength":%d,"artifact":%b' % reference)
        elif name not in ("byteLength", "artifact"):
            parts.append(b"%b:%b" % (_encode(name), value))
    return b"{%b}" % b",".join(parts)


def _encode_object(members: _Members) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (_encode(name), raw) for name, raw in members.items())
