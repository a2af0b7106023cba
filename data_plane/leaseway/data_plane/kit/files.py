"""Files below one folder, to be read and listed; nothing outside it can be reached."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from leaseway.data_plane.kit.tools import KitTool, Refusal, Reply

__all__ = ["list_files", "read_file"]

MAX_FILE: Final = 1 << 20
"""Bytes of a file that can be read."""

MAX_LISTED: Final = 1_000
MAX_VISITED: Final = 20_000
_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 4096}


def read_file(root: Path) -> KitTool:
    """Return the tool `read_file` for the files below a folder."""
    return KitTool(
        name="read_file",
        title="Read a file",
        description="Reads a text file (UTF-8, at most 1 MiB) below the served folder.",
        input_schema={
            "type": "object",
            "properties": {
                "path": {**_PATH, "description": "Relative to the served folder, as notes/a.md"}
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        run=lambda arguments: Reply(_read(root, arguments["path"])),
    )


def list_files(root: Path) -> KitTool:
    """Return the tool `list_files` for the files below a folder."""
    return KitTool(
        name="list_files",
        title="List files",
        description=(
            "Lists a folder below the served one, folders with a slash at the end. With a "
            "pattern it lists matching files at any depth. At most 1,000 names."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": {**_PATH, "description": "Relative to the served folder. Default: it."},
                "pattern": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 256,
                    "description": "As *.md or docs/*; * matches any run, / included.",
                },
            },
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "files": {"type": "array", "items": {"type": "string"}},
                "truncated": {"type": "boolean", "description": "Whether there are more"},
            },
            "required": ["files", "truncated"],
        },
        run=lambda arguments: _list(root, arguments.get("path", "."), arguments.get("pattern")),
    )


def _read(root: Path, path: str) -> str:
    target = _below(root, path)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise _unreachable(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refusal(f"{path!r} is no regular file; list_files shows what is in a folder.")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise Refusal(f"{path!r} is larger than 1 MiB, the most that can be read.")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Refusal(f"{path!r} is no UTF-8 text.") from None


def _list(root: Path, path: str, pattern: str | None) -> Reply:
    folder = _below(root, path)
    names = _children(folder, path) if pattern is None else _matches(folder, path, pattern)
    found: list[str] = []
    truncated = False
    for visited, name in enumerate(names):
        truncated = len(found) >= MAX_LISTED or visited >= MAX_VISITED
        if truncated:
            break
        if name:
            found.append(name)
    found.sort()
    text = "\n".join(found) if found else "Nothing is there."
    if truncated:
        text += f"\nThere are more than {MAX_LISTED} names; narrow the path or the pattern."
    return Reply(text, {"files": found, "truncated": truncated})


def _children(folder: Path, path: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                yield f"{entry.name}/" if is_folder else entry.name
    except OSError as error:
        raise _unreachable(path, error) from None


def _matches(folder: Path, path: str, pattern: str) -> Iterator[str]:
    """Yield the files below a folder that match, and an empty name for each that does not."""
    if not folder.is_dir():
        raise Refusal(f"{path!r} is no folder below the served one.")
    for parent, _, files in os.walk(folder):
        for name in files:
            relative = Path(parent, name).relative_to(folder).as_posix()
            yield relative if fnmatchcase(relative, pattern) else ""


def _below(root: Path, path: str) -> Path:
    """Return a path with its links resolved.

    Raises:
        Refusal: It leads out of the folder, by `..`, by a leading slash or by a link.
    """
    try:
        target = Path(os.path.realpath(root / path))
    except (OSError, ValueError):
        raise Refusal("That is no path.") from None
    if not target.is_relative_to(root):
        raise Refusal(f"{path!r} is outside the served folder; give a path below it.")
    return target


def _unreachable(path: str, error: OSError) -> Refusal:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return Refusal(f"There is no {path!r}; list_files shows what there is.")
    return Refusal(f"{path!r} can't be opened: {error.strerror}.")
