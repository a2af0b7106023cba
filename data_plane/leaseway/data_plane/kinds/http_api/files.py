"""Types and names of uploaded files, which many APIs judge a file by. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from leaseway.spec.kinds.http_tools import is_media_type
from leaseway.wire.messages.artifact_refs import extension_of, media_type, type_of_bytes

BYTES: Final = "application/octet-stream"
"""The type of a file of which nothing is known."""

_NO_EXTENSION: Final = "bin"
_EXTENSIONS: Final[Mapping[str, str]] = {
    "application/pdf": "pdf",
    "application/zip": "zip",
    "application/gzip": "gz",
    "application/json": "json",
    "application/xml": "xml",
    "application/yaml": "yaml",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
    "text/xml": "xml",
    "text/yaml": "yaml",
    "video/mp4": "mp4",
    "video/webm": "webm",
}

_DATA_URL: Final = "data:"
_NAMES: Final = ("name", "filename")
"""Parameters of data URLs in which clients write the name of a file."""
_MAX_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class File:
    """A file, with its media type and name if whoever gave it said so; else empty."""

    content: bytes
    kind: str = ""
    name: str = ""


def file_of(text: str) -> File:
    """Return the file that base64 or a data URL (RFC 2397) stands for.

    Raises:
        ValueError: It is neither.
    """
    if text[: len(_DATA_URL)].lower() != _DATA_URL:
        return File(_decoded(text.encode()))
    header, comma, data = text[len(_DATA_URL) :].partition(",")
    if not comma:
        raise ValueError
    kind, *parameters = (part.strip() for part in header.split(";"))
    pairs = (parameter.partition("=") for parameter in parameters)
    names = (_usable_name(value) for key, _, value in pairs if key.lower() in _NAMES)
    content = unquote_to_bytes(data)
    if parameters and parameters[-1].lower() == "base64":
        content = _decoded(content)
    return File(content, kind if is_media_type(kind) else "", next(names, ""))


def _decoded(text: bytes) -> bytes:
    """Return the bytes of base64, also in lines, as `base64` and mail programs write it.

    Other white space shows that a text is none: without its spaces, many a sentence would be.

    Raises:
        ValueError: It is no base64.
    """
    text = text.rstrip(b"\r\n")
    if b"\n" in text:
        *whole, last = text.replace(b"\r\n", b"\n").split(b"\n")
        width = len(whole[0])
        if width % 4 == 0 and len(last) <= width and all(len(line) == width for line in whole):
            text = b"".join((*whole, last))
    return base64.b64decode(text, validate=True)


def _usable_name(written: str) -> str:
    """Return the name of a file without folders; empty if none can be sent."""
    name = unquote(written.strip('"')).replace("\\", "/").rpartition("/")[2]
    is_usable = name.isprintable() and len(name) <= _MAX_NAME and name not in (".", "..")
    return name if is_usable else ""


def body_type(declared: str, file: File) -> str:
    """Return the media type of a file that is a whole body.

    Args:
        declared: Its type, or several to choose from; empty if it may be any.
        file: The file.
    """
    kinds = [kind.strip() for kind in declared.split(",")]
    if len(kinds) == 1:
        return declared or file.kind or BYTES
    choices = {media_type(kind): kind for kind in kinds}
    known = (media_type(file.kind), type_of_bytes(file.content), BYTES)
    return next((choices[kind] for kind in known if kind in choices), kinds[0])


def file_type(declared: str, file: File) -> str:
    """Return a file's media type: the declared one, its own, or else what its first bytes say."""
    for kind in (declared, file.kind):
        if kind and media_type(kind) != BYTES:
            return kind
    return type_of_bytes(file.content) or BYTES


def file_name(field: str, kind: str) -> str:
    """Return the name of a file that has none: its field's, with the extension of its type.

    Args:
        field: The name of the part.
        kind: Its media type; without an extension if that is not known.
    """
    bare = media_type(kind)
    extension = _EXTENSIONS.get(bare) or extension_of(bare)
    return field if extension == _NO_EXTENSION else f"{field}.{extension}"
