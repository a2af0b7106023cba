"""Types and names of uploaded files, which many APIs judge a file by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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


def file_type(declared: str, content: bytes) -> str:
    """Return a file's media type: the declared one, or else what its first bytes say."""
    if declared and media_type(declared) != BYTES:
        return declared
    return type_of_bytes(content) or BYTES


def file_name(field: str, kind: str) -> str:
    """Return the name of a file that has none: its field's, with the extension of its type.

    Args:
        field: The name of the part.
        kind: Its media type; without an extension if that is not known.
    """
    bare = media_type(kind)
    extension = _EXTENSIONS.get(bare) or extension_of(bare)
    return field if extension == _NO_EXTENSION else f"{field}.{extension}"
