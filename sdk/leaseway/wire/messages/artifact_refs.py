"""References to artifacts: images and sounds that workers store for callers (design.md#calls).

A reference is `artifacts/mcp/<server>/<tool>/<timestamp>-<uuid>.<ext>`. The first 48 bits of its
version-8 UUID are a digest of the worker's incarnation, the mark, by which a client finds the
worker, and a later run of the worker detects that the artifact is not its own. The other 74 bits
are random, so that a reference cannot be guessed. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from uuid import UUID

MAX_REFERENCE: Final = 256
"""Maximum length of a reference in characters."""

_MARK_BYTES: Final = 6
_MAX_PART: Final = 64
_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_-]")
_PART: Final = "[a-zA-Z0-9_-]{1,64}"
_REFERENCE: Final = re.compile(
    rf"artifacts/mcp/{_PART}/{_PART}/\d{{8}}T\d{{9}}Z-"
    r"(?P<mark>[0-9a-f]{8}-[0-9a-f]{4})-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\.[a-z0-9]{1,8}"
)
_IN_TEXT: Final = re.compile(_REFERENCE.pattern.encode())
_MAX_IN_TEXT: Final = 64
PREFIX: Final = b"artifacts/mcp/"
"""The beginning of every reference."""
_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}/[a-z0-9][a-z0-9!#$&^_.+-]{0,62}")
_SYNONYMS: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg"}
_EXTENSIONS: Final[Mapping[str, str]] = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "image/bmp": "bmp",
    "image/tiff": "tiff",
    "image/avif": "avif",
    "image/heic": "heic",
    "image/x-icon": "ico",
    "image/vnd.microsoft.icon": "ico",
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/mp4": "m4a",
    "audio/aac": "aac",
    "audio/ogg": "ogg",
    "audio/opus": "opus",
    "audio/flac": "flac",
    "audio/x-flac": "flac",
    "audio/webm": "webm",
}

_SIGNATURES: Final = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftyp", "video/mp4"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
)
"""Where a file of a type has which bytes; the first that fits says its type."""


def media_type(text: str) -> str:
    """Return a MIME type in lower case without parameters; empty if it is invalid."""
    bare = text.partition(";")[0].strip().lower()
    return _SYNONYMS.get(bare, bare) if _TYPE.fullmatch(bare) else ""


def extension_of(mime_type: str) -> str:
    """Return the file extension of a MIME type; `bin` for unknown types."""
    return _EXTENSIONS.get(mime_type, "bin")


def type_of_bytes(content: bytes) -> str:
    """Return the MIME type that the first bytes of a file say; empty if they say none."""
    found = (kind for at, mark, kind in _SIGNATURES if content.startswith(mark, at))
    return next(found, "")


def incarnation_mark(incarnation: str) -> str:
    """Return the mark of a worker's run in its references: 12 hexadecimal digits."""
    return hashlib.sha256(incarnation.encode()).hexdigest()[: 2 * _MARK_BYTES]


def artifact_reference(
    server_id: str, tool: str, mime_type: str, *, mark: str, stored_at: float, noise: int
) -> str:
    """Return a new reference.

    Args:
        tool: The original name of the tool or prompt; characters unsafe in a path become `_`.
        mime_type: Determines the file extension.
        mark: The worker's `incarnation_mark`.
        stored_at: Unix time in seconds.
        noise: 74 random bits or more.
    """
    bits = int(mark, 16) << 80 | noise & ((1 << 80) - 1)
    bits = bits & ~(0xF << 76) | 8 << 76  # version 8: custom bits
    bits = bits & ~(0b11 << 62) | 0b10 << 62  # the variant of RFC 9562
    when = datetime.fromtimestamp(stored_at, UTC)
    stamp = f"{when:%Y%m%dT%H%M%S}{when.microsecond // 1000:03d}Z"
    name = f"{stamp}-{UUID(int=bits)}.{extension_of(mime_type)}"
    return f"artifacts/mcp/{_safe(server_id)}/{_safe(tool)}/{name}"


def is_reference(text: str) -> bool:
    return reference_mark(text) is not None


def reference_mark(text: str) -> str | None:
    """Return the mark in a reference, or None if the text is not a reference."""
    match = _REFERENCE.fullmatch(text) if len(text) <= MAX_REFERENCE else None
    return match["mark"].replace("-", "") if match is not None else None


def marks_in(payload: bytes) -> frozenset[str]:
    """Return the marks of the first 64 references in a text."""
    matches = islice(_IN_TEXT.finditer(payload), _MAX_IN_TEXT)
    return frozenset(match["mark"].decode().replace("-", "") for match in matches)


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)[:_MAX_PART] or "_"
