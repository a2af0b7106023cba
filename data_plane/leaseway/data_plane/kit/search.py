"""The tools to list files, and to search their text, in the allowed folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any, Final

from leaseway.data_plane.kit.files import MAX_FILE, read_text
from leaseway.data_plane.kit.roots import AllowedFolders, ResolvedPath
from leaseway.data_plane.kit.schemas import PATH, READ_ONLY, arguments_schema, result_schema
from leaseway.server import Tool, ToolError, ToolResult

MAX_LISTED: Final = 1_000
MAX_VISITED: Final = 20_000
_MAX_MATCHES: Final = 200
_MAX_LINE: Final = 300
_MAX_SEARCHED: Final = 64 << 20
"""Bytes that a search reads, also of files that are no text."""
_MAX_DEPTH: Final = 64
_FOLDER: Final = {**PATH, "description": "The folder. Default: the first allowed folder."}
_PATTERN: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 256,
    "description": "Such as *.md or docs/*; * matches any characters, also /.",
}


def list_files(roots: AllowedFolders) -> Tool:
    return Tool(
        name="list_files",
        title="List files",
        description=(
            "Lists a folder; names of folders end with a slash. With a pattern, it lists matching"
            f" files at any depth. At most 1,000 names. Allowed folders: {roots}."
        ),
        input_schema=arguments_schema({"path": _FOLDER, "pattern": _PATTERN}),
        output_schema=result_schema(
            {
                "files": {"type": "array", "items": {"type": "string"}},
                "truncated": {"type": "boolean", "description": "Whether there are more"},
            }
        ),
        annotations=READ_ONLY,
        function=partial(_list, roots),
    )


def search_files(roots: AllowedFolders) -> Tool:
    return Tool(
        name="search_files",
        title="Search files",
        description=(
            "Finds lines with a text in the text files of a folder, at any depth. At most 200"
            f" lines. Allowed folders: {roots}."
        ),
        input_schema=arguments_schema(
            {
                "text": {"type": "string", "minLength": 1, "maxLength": 1_000},
                "path": _FOLDER,
                "pattern": {
                    **_PATTERN,
                    "description": "Files to search, such as *.py. Default: all.",
                },
                "ignore_case": {"type": "boolean", "description": "Default: false."},
            },
            "text",
        ),
        output_schema=result_schema(
            {
                "matches": {
                    "type": "array",
                    "items": result_schema(
                        {
                            "path": {"type": "string"},
                            "line": {"type": "integer"},
                            "text": {"type": "string"},
                        }
                    ),
                },
                "truncated": {"type": "boolean", "description": "Whether there may be more"},
            }
        ),
        annotations=READ_ONLY,
        function=partial(_search, roots),
    )


@dataclass(frozen=True)
class _Entry:
    """A file or folder of a walk.

    Attributes:
        path: Its path from the top folder.
        folder: The descriptor of its folder.
        name: Its name there.
        is_folder: Whether it is a folder.
        size: Its size in bytes.
    """

    path: str
    folder: int
    name: str
    is_folder: bool
    size: int


def _list(roots: AllowedFolders, arguments: Mapping[str, Any]) -> ToolResult:
    path, pattern = arguments.get("path", "."), arguments.get("pattern")
    names: list[str] = []
    truncated = False
    for visited, entry in enumerate(_walk(roots, path, deep=pattern is not None)):
        truncated = len(names) >= MAX_LISTED or visited >= MAX_VISITED
        if truncated:
            break
        if pattern is None:
            names.append(f"{entry.path}/" if entry.is_folder else entry.path)
        elif not entry.is_folder and fnmatchcase(entry.path, pattern):
            names.append(entry.path)
    names.sort()
    text = "\n".join(names) if names else "No files."
    if truncated:
        text += "\nThe list reached a limit; narrow the path or the pattern."
    return ToolResult(
        _printable(text), {"files": [_printable(name) for name in names], "truncated": truncated}
    )


def _search(roots: AllowedFolders, arguments: Mapping[str, Any]) -> ToolResult:
    query, ignore_case = arguments["text"], arguments.get("ignore_case", False)
    query = query.casefold() if ignore_case else query
    pattern = arguments.get("pattern", "*")
    matches: list[dict[str, Any]] = []
    searched, truncated = 0, False
    for visited, entry in enumerate(_walk(roots, arguments.get("path", "."), deep=True)):
        truncated = (
            len(matches) >= _MAX_MATCHES or visited >= MAX_VISITED or searched >= _MAX_SEARCHED
        )
        if truncated:
            break
        if entry.is_folder or entry.size > MAX_FILE or not fnmatchcase(entry.path, pattern):
            continue
        searched += entry.size
        try:
            text = read_text(ResolvedPath(entry.folder, entry.name, entry.path))
        except ToolError:
            continue  # no text, no regular file, deleted, or grown
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
            if query in (line.casefold() if ignore_case else line):
                matches.append(
                    {"path": _printable(entry.path), "line": number, "text": line[:_MAX_LINE]}
                )
                if len(matches) > _MAX_MATCHES:
                    break
    truncated = truncated or len(matches) > _MAX_MATCHES
    del matches[_MAX_MATCHES:]
    text = "\n".join(f"{match['path']}:{match['line']}: {match['text']}" for match in matches)
    text = text or "No matching line."
    if truncated:
        text += "\nThe search reached a limit; narrow the path or the pattern."
    return ToolResult(text, {"matches": matches, "truncated": truncated})


def _walk(roots: AllowedFolders, path: str, *, deep: bool) -> Iterator[_Entry]:
    """Yield the files and folders in a folder, parents first, without following links."""
    opened: list[tuple[int, str, Iterator[str]]] = []

    def push(folder: int, prefix: str) -> None:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_VISITED + 1))
        except OSError:
            names = []
        opened.append((folder, prefix, iter(names)))

    try:
        with roots.resolve(path) as resolved:
            folder = resolved.open_folder()
        push(folder, "")
        while opened:
            folder, prefix, names = opened[-1]
            name = next(names, None)
            if name is None:
                os.close(folder)
                opened.pop()
                continue
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            yield _Entry(
                path=prefix + name,
                folder=folder,
                name=name,
                is_folder=is_folder,
                size=status.st_size,
            )
            if deep and is_folder and len(opened) < _MAX_DEPTH:
                try:
                    below = ResolvedPath(folder, name, name).open_folder()
                except ToolError:
                    continue
                push(below, f"{prefix}{name}/")
    finally:
        for folder, _, _ in opened:
            os.close(folder)


def _printable(name: str) -> str:
    """Return a name with question marks for bytes that are no UTF-8."""
    return name.encode(errors="replace").decode()
