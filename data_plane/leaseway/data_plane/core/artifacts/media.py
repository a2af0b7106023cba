"""Images and sounds in MCP results: found, decoded and replaced by references (DESIGN §6).

Pure. A result is taken apart only where media are, and every value that stays keeps the bytes that
the server sent, unknown members included; of a result that is changed only white space between its
members is lost.
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

Kind = Literal["image", "audio"]

DATA_MARK: Final = b'"data"'
"""What each result with media has in it, and few others have."""

_UNKNOWN_TYPE: Final = "application/octet-stream"
_MAX_HEADER: Final = 256
_DECODED_AT_ONCE: Final = 1 << 20  # characters, a multiple of 4: other threads run in between
_WHITE: Final = b" \t\r\n"
_NOT_PLAIN: Final = re.compile(rb"[\\ ]")

_Members = dict[str, msgspec.Raw]
_decode_object: Final = msgspec.json.Decoder(_Members).decode
_decode_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.encode


class BadMedia(ValueError):
    """The data of an item is not base64; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a sound as it stands in a result.

    Attributes:
        kind: `image` or `audio`.
        mime_type: In lower case, without parameters; `application/octet-stream` where the server
            gave none that is one.
        text: Its base64, which may be wrong.
    """

    kind: Kind
    mime_type: str
    text: bytes | memoryview

    def parts(self) -> Iterator[bytes]:
        """Yield its bytes in parts of at most 768 KiB.

        Raises:
            BadMedia: What was read so far is not to be used.
        """
        for start in range(0, len(self.text), _DECODED_AT_ONCE):
            part = self.text[start : start + _DECODED_AT_ONCE]
            try:
                decoded = binascii.a2b_base64(part, strict_mode=True)
            except binascii.Error as error:
                raise BadMedia(str(error)) from None
            if start + len(part) < len(self.text) and bytes(part[-1:]) == b"=":
                raise BadMedia("Excess data after padding")
            yield decoded


@dataclass(frozen=True, slots=True)
class Kept:
    """Where the bytes of an item are now, and how many."""

    ref: str
    byte_length: int


class Keep(Protocol):
    """Keeps the bytes of items."""

    def __call__(self, media: Media, /) -> Kept | None:
        """Receive an item's bytes; None leaves the item as it is."""

    def full(self) -> None:
        """Called when there are more items than may be kept, which stay as they are."""


def may_hold_media(payload: bytes) -> bool:
    """Return whether a result is worth looking into, from its bytes alone."""
    # `find`, for `in` tries whether the mark is a number first, which costs three times as much.
    if payload.find(DATA_MARK) < 0:
        return False
    return payload.find(b'"image"') >= 0 or payload.find(b'"audio"') >= 0


def replace_media(payload: bytes, keep: Keep) -> bytes:
    """Return a result with its images and sounds replaced by references.

    It looks where media may stand: at the items of `content`, and at those of each of `messages`.

    Args:
        payload: The MCP `result` object.
        keep: Called for each item, in order, at most `MAX_ARTIFACTS_PER_RESULT` times; its `full`
            once where there are more.

    Returns:
        The result; the same object where nothing was replaced, or where it cannot be read.
    """
    return _Replacement(keep).result(payload)


class _Replacement:
    """One pass over one result; each method returns None where nothing is to be replaced."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._left = MAX_ARTIFACTS_PER_RESULT
        self._is_full = False

    def result(self, payload: bytes) -> bytes:
        try:
            members = _decode_object(payload)
            changed = self._member(members, "content", self._items)
            changed = self._member(members, "messages", self._messages) or changed
        except (msgspec.DecodeError, RecursionError):
            return payload  # no result that anybody could read; not for this to judge
        return _object(members) if changed else payload

    def _member(
        self, members: _Members, name: str, replace: Callable[[msgspec.Raw], bytes | None]
    ) -> bool:
        value = members.get(name)
        fresh = replace(value) if value is not None else None
        if fresh is None:
            return False
        members[name] = msgspec.Raw(fresh)
        return True

    def _messages(self, value: msgspec.Raw) -> bytes | None:
        return self._each(value, self._message)

    def _message(self, value: msgspec.Raw) -> bytes | None:
        if not _begins(value, b"{"):
            return None
        members = _decode_object(value)
        return _object(members) if self._member(members, "content", self._content) else None

    def _content(self, value: msgspec.Raw) -> bytes | None:
        return self._item(value) if _begins(value, b"{") else self._items(value)

    def _items(self, value: msgspec.Raw) -> bytes | None:
        return self._each(value, self._item)

    def _each(
        self, value: msgspec.Raw, replace: Callable[[msgspec.Raw], bytes | None]
    ) -> bytes | None:
        if not _begins(value, b"["):
            return None
        items: Sequence[msgspec.Raw] = _decode_list(value)
        replaced = [replace(item) for item in items]
        if not any(fresh is not None for fresh in replaced):
            return None
        pairs = zip(items, replaced, strict=True)
        return b"[%b]" % b",".join(old if new is None else new for old, new in pairs)

    def _item(self, value: msgspec.Raw) -> bytes | None:
        if self._is_full or not _begins(value, b"{"):
            return None
        members = _decode_object(value)
        media = _media(members)
        if media is None:
            return None
        if not self._left:
            self._is_full = True
            self._keep.full()
            return None
        self._left -= 1
        kept = self._keep(media)
        return _reference(members, media, kept) if kept is not None else None


def _begins(value: msgspec.Raw, bracket: bytes) -> bool:
    return bytes(memoryview(value)[:1]) == bracket


def _media(members: _Members) -> Media | None:
    kind = _text(members.get("type"))
    data = members.get("data")
    if kind not in ("image", "audio") or data is None or not _begins(data, b'"'):
        return None
    return _made(
        "image" if kind == "image" else "audio", _text(members.get("mimeType")), _plain(data)
    )


def media_from_text(kind: Kind, mime_type: str, text: str) -> Media:
    """Return an item's media from its parsed members."""
    return _made(kind, mime_type, text.encode().translate(None, _WHITE))


def _made(kind: Kind, mime_type: str, text: bytes | memoryview) -> Media:
    said, bare = _split_header(text)
    return Media(kind, media_type(mime_type) or media_type(said) or _UNKNOWN_TYPE, bare)


def _text(value: msgspec.Raw | None) -> str:
    return _decode_text(value) if value is not None and _begins(value, b'"') else ""


def _plain(value: msgspec.Raw) -> bytes | memoryview:
    """Return the characters of a JSON string; base64 without escapes is not copied."""
    inside = memoryview(value)[1:-1]
    if _NOT_PLAIN.search(inside):
        return _decode_text(value).encode().translate(None, _WHITE)
    return inside


def _split_header(text: bytes | memoryview) -> tuple[str, bytes | memoryview]:
    """Return the MIME type of a `data:` URL and its base64; an empty one without such a prefix."""
    start = bytes(text[:_MAX_HEADER])
    if start[:5].lower() != b"data:":
        return "", text
    header, comma, _ = start.partition(b",")
    if not comma or not header.lower().endswith(b";base64"):
        return "", text
    return header[5:].decode(errors="replace"), text[len(header) + 1 :]


def _reference(members: _Members, media: Media, kept: Kept) -> bytes:
    parts: list[bytes] = []
    if not media_type(_text(members.get("mimeType"))):
        members["mimeType"] = msgspec.Raw(_encode(media.mime_type))
    for name, value in members.items():
        if name == "data":
            parts.append(b'"byteLength":%d,"artifact":%b' % (kept.byte_length, _encode(kept.ref)))
        elif name not in ("byteLength", "artifact"):
            parts.append(b"%b:%b" % (_encode(name), value))
    return b"{%b}" % b",".join(parts)


def _object(members: _Members) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (_encode(name), raw) for name, raw in members.items())
