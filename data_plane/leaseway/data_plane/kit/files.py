"""The tools to read, write, edit, delete and describe files in the allowed folders."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from leaseway.data_plane.kit.roots import AllowedFolders, ResolvedPath, check_regular, path_error
from leaseway.data_plane.kit.schemas import PATH, READ_ONLY, arguments_schema, result_schema
from leaseway.server import Tool, ToolError, ToolResult

MAX_FILE: Final = 1 << 20
"""Bytes of a file."""

_MAX_EDITS: Final = 100
_MAX_COMPARED: Final = 5_000
"""Lines that are compared, between those that both texts begin and end with."""
_CONTEXT: Final = 3
_PATH: Final = {
    **PATH,
    "description": "Relative to the first allowed folder, such as notes/a.md, or absolute.",
}
_WRITES: Final = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}


def read_file(roots: AllowedFolders) -> Tool:
    return Tool(
        name="read_file",
        title="Read a file",
        description=f"Reads a text file (UTF-8, at most 1 MiB). Allowed folders: {roots}.",
        input_schema=arguments_schema({"path": _PATH}, "path"),
        annotations=READ_ONLY,
        function=partial(_read, roots),
    )


def write_file(roots: AllowedFolders) -> Tool:
    return Tool(
        name="write_file",
        title="Write a file",
        description=(
            "Writes a text file (UTF-8, at most 1 MiB), replacing an existing one."
            f" Allowed folders: {roots}."
        ),
        input_schema=arguments_schema(
            {
                "path": _PATH,
                "content": {"type": "string", "maxLength": MAX_FILE},
                "create_folders": {
                    "type": "boolean",
                    "description": "Whether to create missing folders. Default: false.",
                },
            },
            "path",
            "content",
        ),
        annotations={**_WRITES, "idempotentHint": True},
        function=partial(_write, roots),
    )


def edit_file(roots: AllowedFolders) -> Tool:
    text = {"type": "string", "maxLength": MAX_FILE}
    edit = arguments_schema(
        {
            "old": {**text, "minLength": 1, "description": "Must occur exactly once."},
            "new": {**text, "description": "The replacement."},
        },
        "old",
        "new",
    )
    return Tool(
        name="edit_file",
        title="Edit a file",
        description=(
            "Replaces parts of a text file, one after another, and returns the difference. If one"
            f" edit fails, none is made. Allowed folders: {roots}."
        ),
        input_schema=arguments_schema(
            {
                "path": _PATH,
                "edits": {"type": "array", "items": edit, "minItems": 1, "maxItems": _MAX_EDITS},
                "dry_run": {
                    "type": "boolean",
                    "description": "Whether to return the difference only. Default: false.",
                },
            },
            "path",
            "edits",
        ),
        annotations={**_WRITES, "idempotentHint": False},
        function=partial(_edit, roots),
    )


def delete_file(roots: AllowedFolders) -> Tool:
    return Tool(
        name="delete_file",
        title="Delete a file",
        description=f"Deletes a file or a link, but no folders. Allowed folders: {roots}.",
        input_schema=arguments_schema({"path": _PATH}, "path"),
        annotations={**_WRITES, "idempotentHint": True},
        function=partial(_delete, roots),
    )


def get_file_info(roots: AllowedFolders) -> Tool:
    return Tool(
        name="get_file_info",
        title="File information",
        description=f"Returns type, size, times and permissions. Allowed folders: {roots}.",
        input_schema=arguments_schema({"path": _PATH}, "path"),
        output_schema=result_schema(
            {
                "path": {"type": "string"},
                "type": {"enum": ["file", "folder", "other"]},
                "size": {"type": "integer", "description": "Bytes"},
                "modified": {"type": "string", "description": "ISO 8601, UTC"},
                "permissions": {"type": "string", "description": "As in ls"},
            }
        ),
        annotations=READ_ONLY,
        function=partial(_info, roots),
    )


def read_text(path: ResolvedPath) -> str:
    """Return a file's text; raises `ToolError` unless it is a small regular file in UTF-8."""
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = path.open(os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_regular(os.fstat(descriptor), path.shown)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise path_error(path.shown, error) from None
    finally:
        os.close(descriptor)
    if len(content) > MAX_FILE:
        raise ToolError(f"{path.shown!r} is larger than 1 MiB, the limit.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path.shown!r} is no UTF-8 text.") from None


def _read(roots: AllowedFolders, arguments: Mapping[str, Any]) -> str:
    with _file(roots, arguments["path"]) as resolved:
        return read_text(resolved)


def _write(roots: AllowedFolders, arguments: Mapping[str, Any]) -> str:
    create = arguments.get("create_folders", False)
    with roots.resolve(arguments["path"], create=create) as path:
        size = _replace(path, arguments["content"])
        return f"Wrote {size} bytes to {path.shown}."


def _edit(roots: AllowedFolders, arguments: Mapping[str, Any]) -> str:
    with _file(roots, arguments["path"]) as path:
        before = text = read_text(path)
        for number, edit in enumerate(arguments["edits"], start=1):
            count = text.count(edit["old"])
            if count != 1:
                raise ToolError(
                    f"Edit {number} failed: its 'old' occurs {count} times in {path.shown!r}, not"
                    " once. Nothing was changed."
                )
            text = text.replace(edit["old"], edit["new"])
        if not arguments.get("dry_run", False):
            _replace(path, text)
        return _difference(before, text, path.shown)[:MAX_FILE] or "No difference."


def _difference(before: str, after: str, shown: str) -> str:
    """Return the difference of two texts, or where it is if that is too long to compare.

    Lines that often occur take very long: what both begin and end with is not compared.
    """
    old, new = before.splitlines(), after.splitlines()
    start = _common(old, new)
    end = min(_common(old[::-1], new[::-1]), min(len(old), len(new)) - start)
    if max(len(old), len(new)) - start - end > _MAX_COMPARED:
        return f"Lines {start + 1} to {len(old) - end} have changed."
    start, end = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    lines = difflib.unified_diff(old, new, shown, shown, n=_CONTEXT, lineterm="")
    return "\n".join(_moved(line, start) if line.startswith("@@") else line for line in lines)


def _common(some: Sequence[str], others: Sequence[str]) -> int:
    """Return with how many equal items two lists begin."""
    pairs = zip(some, others, strict=False)
    unequal = (number for number, (one, other) in enumerate(pairs) if one != other)
    return next(unequal, min(len(some), len(others)))


def _moved(head: str, lines: int) -> str:
    """Return the head of a part of a difference with numbers of lines that are greater."""

    def moved(number: re.Match[str]) -> str:
        return str(int(number[0]) + lines)

    return re.sub(r"(?<=[-+])\d+", moved, head)


def _delete(roots: AllowedFolders, arguments: Mapping[str, Any]) -> str:
    path = arguments["path"]
    with roots.resolve(path, follow=False) as resolved:
        status = resolved.status()
        if not stat.S_ISLNK(status.st_mode):
            check_regular(status, resolved.shown)
        try:
            os.unlink(resolved.name, dir_fd=resolved.folder)
        except OSError as error:
            raise path_error(resolved.shown, error) from None
        return f"Deleted {resolved.shown}."


def _info(roots: AllowedFolders, arguments: Mapping[str, Any]) -> ToolResult:
    path = arguments["path"]
    with roots.resolve(path) as resolved:
        status = resolved.status()
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
def _file(roots: AllowedFolders, path: str) -> Iterator[ResolvedPath]:
    with roots.resolve(path) as resolved:
        if resolved.name == ".":
            raise ToolError(f"{path!r:.300} is no regular file, it is a folder.")
        yield resolved


def _replace(path: ResolvedPath, text: str) -> int:
    """Replace a file atomically; hard links to the old file keep its content."""
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolError("The text has half of a surrogate pair, which is no UTF-8.") from None
    if len(content) > MAX_FILE:
        raise ToolError("The text is larger than 1 MiB, the limit.")
    mode = 0o666
    try:
        status = os.stat(path.name, dir_fd=path.folder, follow_symlinks=False)
    except FileNotFoundError:
        status = None
    except OSError as error:
        raise path_error(path.shown, error) from None
    if status is not None:
        check_regular(status, path.shown)
        mode = stat.S_IMODE(status.st_mode) & 0o777
    temporary = f".leaseway-{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, mode, dir_fd=path.folder), "wb") as file:
            if status is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
        os.rename(temporary, path.name, src_dir_fd=path.folder, dst_dir_fd=path.folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=path.folder)
        raise ToolError(f"{path.shown!r} can't be written: {error.strerror}.") from None
    return len(content)
