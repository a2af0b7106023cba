"""Files below the allowed folders: read, written, edited, deleted and described."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from leaseway.data_plane.kit.roots import PATH_SCHEMA, Place, Roots, regular, unreachable
from leaseway.server import Tool, ToolError, ToolResult

MAX_FILE: Final = 1 << 20
"""Bytes of a file that can be read or written."""

_MAX_EDITS: Final = 100
_PATH: Final = {
    **PATH_SCHEMA,
    "description": "Relative to the first allowed folder, as notes/a.md; or absolute, below one.",
}
_READS: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_WRITES: Final = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


def read_file(roots: Roots) -> Tool:
    return Tool(
        name="read_file",
        title="Read a file",
        description=f"Reads a text file (UTF-8, at most 1 MiB). Allowed folders: {roots}.",
        input_schema=_arguments({"path": _PATH}, "path"),
        annotations=_READS,
        function=lambda arguments: _read(roots, arguments["path"]),
    )


def write_file(roots: Roots) -> Tool:
    return Tool(
        name="write_file",
        title="Write a file",
        description=(
            "Writes a text file (UTF-8, at most 1 MiB), replacing it as a whole where it exists."
            f" Allowed folders: {roots}."
        ),
        input_schema=_arguments(
            {
                "path": _PATH,
                "content": {"type": "string", "maxLength": MAX_FILE},
                "create_folders": {
                    "type": "boolean",
                    "description": "Whether to make the folders on the way. Default: false.",
                },
            },
            "path",
            "content",
        ),
        annotations={**_WRITES, "idempotentHint": True},
        function=lambda arguments: _write(roots, arguments),
    )


def edit_file(roots: Roots) -> Tool:
    text = {"type": "string", "maxLength": MAX_FILE}
    edit = _arguments(
        {
            "old": {**text, "minLength": 1, "description": "Must occur exactly once."},
            "new": {**text, "description": "What it is replaced by."},
        },
        "old",
        "new",
    )
    return Tool(
        name="edit_file",
        title="Edit a file",
        description=(
            "Replaces pieces of a text file, one after another, and shows the difference. If one"
            f" edit does not fit, none is made. Allowed folders: {roots}."
        ),
        input_schema=_arguments(
            {
                "path": _PATH,
                "edits": {"type": "array", "items": edit, "minItems": 1, "maxItems": _MAX_EDITS},
                "dry_run": {
                    "type": "boolean",
                    "description": "Whether to show the difference only. Default: false.",
                },
            },
            "path",
            "edits",
        ),
        annotations={**_WRITES, "idempotentHint": False},
        function=lambda arguments: _edit(roots, arguments),
    )


def delete_file(roots: Roots) -> Tool:
    return Tool(
        name="delete_file",
        title="Delete a file",
        description=f"Deletes a file, or a link itself; no folders. Allowed folders: {roots}.",
        input_schema=_arguments({"path": _PATH}, "path"),
        annotations={**_WRITES, "idempotentHint": True},
        function=lambda arguments: _delete(roots, arguments["path"]),
    )


def get_file_info(roots: Roots) -> Tool:
    return Tool(
        name="get_file_info",
        title="File information",
        description=f"Tells type, size, times and permissions. Allowed folders: {roots}.",
        input_schema=_arguments({"path": _PATH}, "path"),
        output_schema={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "type": {"enum": ["file", "folder", "other"]},
                "size": {"type": "integer", "description": "Bytes"},
                "modified": {"type": "string", "description": "ISO 8601, UTC"},
                "permissions": {"type": "string", "description": "As ls shows them"},
            },
            "required": ["path", "type", "size", "modified", "permissions"],
        },
        annotations=_READS,
        function=lambda arguments: _info(roots, arguments["path"]),
    )


def read_text(place: Place) -> str:
    """Return a file's text.

    Raises:
        ToolError: It is no regular file, too large, or no UTF-8.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = place.open(os.O_RDONLY | os.O_NONBLOCK)
    try:
        regular(os.fstat(descriptor), place.shown)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise unreachable(place.shown, error) from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ToolError(f"{place.shown!r} is larger than 1 MiB, the most that can be read.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{place.shown!r} is no UTF-8 text.") from None


def _read(roots: Roots, path: str) -> str:
    with _file(roots, path) as place:
        return read_text(place)


def _write(roots: Roots, arguments: Mapping[str, Any]) -> str:
    create = arguments.get("create_folders", False)
    with roots.place(arguments["path"], create=create) as place:
        size = _replace(place, arguments["content"])
        return f"Wrote {size} bytes to {place.shown}."


def _edit(roots: Roots, arguments: Mapping[str, Any]) -> str:
    with _file(roots, arguments["path"]) as place:
        before = text = read_text(place)
        for number, edit in enumerate(arguments["edits"], start=1):
            found = text.count(edit["old"])
            if found != 1:
                raise ToolError(
                    f"Edit {number} does not fit: its 'old' occurs {found} times in"
                    f" {place.shown!r}, and must occur exactly once. Nothing was changed."
                )
            text = text.replace(edit["old"], edit["new"])
        if not arguments.get("dry_run", False):
            _replace(place, text)
        lines = difflib.unified_diff(
            before.splitlines(), text.splitlines(), place.shown, place.shown, lineterm=""
        )
        return "\n".join(lines)[:MAX_FILE] or "Nothing is different."


def _delete(roots: Roots, path: str) -> str:
    with roots.place(path, follow=False) as place:
        status = place.status()
        if not stat.S_ISLNK(status.st_mode):
            regular(status, place.shown)
        try:
            os.unlink(place.name, dir_fd=place.folder)
        except OSError as error:
            raise unreachable(place.shown, error) from None
        return f"Deleted {place.shown}."


def _info(roots: Roots, path: str) -> ToolResult:
    with roots.place(path) as place:
        status = place.status()
    kind = "other"
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "folder"
    info = {
        "path": path,
        "type": kind,
        "size": status.st_size,
        "modified": datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat(),
        "permissions": stat.filemode(status.st_mode),
    }
    return ToolResult(json.dumps(info), info)


@contextlib.contextmanager
def _file(roots: Roots, path: str) -> Any:
    with roots.place(path) as place:
        if place.name == ".":
            raise ToolError(f"{path!r:.300} is no regular file, it is a folder.")
        yield place


def _replace(place: Place, text: str) -> int:
    """Replace a file as a whole: readers see the old one or the new one, links nothing."""
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolError("The text holds half of a surrogate pair, which no file can.") from None
    if len(content) > MAX_FILE:
        raise ToolError("The text is larger than 1 MiB, the most that can be written.")
    mode = 0o666
    try:
        status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise unreachable(place.shown, error) from None
    if status is not None:
        regular(status, place.shown)
        mode = stat.S_IMODE(status.st_mode) & 0o777
    fresh = f".leaseway-{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, mode, dir_fd=place.folder), "wb") as file:
            if status is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
        os.rename(fresh, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=place.folder)
        raise ToolError(f"{place.shown!r} can't be written: {error.strerror}.") from None
    return len(content)


def _arguments(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
