"""Names and lines below the allowed folders: listed, and searched for a text."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final

from leaseway.data_plane.kit.files import read_text
from leaseway.data_plane.kit.roots import PATH_SCHEMA, Place, Roots
from leaseway.server import Tool, ToolError, ToolResult

MAX_LISTED: Final = 1_000
MAX_VISITED: Final = 20_000
_MAX_MATCHES: Final = 200
_MAX_LINE: Final = 300
_MAX_SEARCHED: Final = 64 << 20
_MAX_DEPTH: Final = 64
_READS: Final = {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False}
_FOLDER: Final = {**PATH_SCHEMA, "description": "The folder. Default: the first allowed one."}
_PATTERN: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 256,
    "description": "As *.md or docs/*; * matches any run, / included.",
}


def list_files(roots: Roots) -> Tool:
    return Tool(
        name="list_files",
        title="List files",
        description=(
            "Lists a folder, folders with a slash at the end. With a pattern it lists matching"
            f" files at any depth. At most 1,000 names. Allowed folders: {roots}."
        ),
        input_schema={
            "type": "object",
            "properties": {"path": _FOLDER, "pattern": _PATTERN},
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
        annotations=_READS,
        function=lambda arguments: _list(
            roots, arguments.get("path", "."), arguments.get("pattern")
        ),
    )


def search_files(roots: Roots) -> Tool:
    return Tool(
        name="search_files",
        title="Search files",
        description=(
            "Finds the lines that hold a text, in the text files of a folder at any depth. At"
            f" most 200 lines. Allowed folders: {roots}."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 1, "maxLength": 1_000},
                "path": _FOLDER,
                "pattern": {**_PATTERN, "description": "Which files, as *.py. Default: all."},
                "ignore_case": {"type": "boolean", "description": "Default: false."},
            },
            "required": ["text"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "matches": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "path": {"type": "string"},
                            "line": {"type": "integer"},
                            "text": {"type": "string"},
                        },
                        "required": ["path", "line", "text"],
                    },
                },
                "truncated": {"type": "boolean", "description": "Whether there may be more"},
            },
            "required": ["matches", "truncated"],
        },
        annotations=_READS,
        function=lambda arguments: _search(roots, arguments),
    )


@dataclass(frozen=True)
class _Found:
    """An entry of a walk: its way from the top, its name in an open folder, whether a folder."""

    path: str
    folder: int
    name: str
    is_folder: bool


def _list(roots: Roots, path: str, pattern: str | None) -> ToolResult:
    found: list[str] = []
    truncated = False
    for visited, entry in enumerate(_walk(roots, path, deep=pattern is not None)):
        truncated = len(found) >= MAX_LISTED or visited >= MAX_VISITED
        if truncated:
            break
        if pattern is None:
            found.append(f"{entry.path}/" if entry.is_folder else entry.path)
        elif not entry.is_folder and fnmatchcase(entry.path, pattern):
            found.append(entry.path)
    found.sort()
    text = "\n".join(found) if found else "Nothing is there."
    if truncated:
        text += f"\nThere are more than {MAX_LISTED} names; narrow the path or the pattern."
    return ToolResult(
        _shown(text), {"files": [_shown(name) for name in found], "truncated": truncated}
    )


def _search(roots: Roots, arguments: Mapping[str, Any]) -> ToolResult:
    wanted, ignore_case = arguments["text"], arguments.get("ignore_case", False)
    wanted = wanted.casefold() if ignore_case else wanted
    pattern = arguments.get("pattern", "*")
    matches: list[dict[str, Any]] = []
    searched, truncated = 0, False
    for visited, entry in enumerate(_walk(roots, arguments.get("path", "."), deep=True)):
        truncated = (
            len(matches) >= _MAX_MATCHES or visited >= MAX_VISITED or searched >= _MAX_SEARCHED
        )
        if truncated:
            break
        if entry.is_folder or not fnmatchcase(entry.path, pattern):
            continue
        try:
            text = read_text(Place(entry.folder, entry.name, entry.path))
        except ToolError:
            continue  # no text, too large, a pipe, gone
        searched += len(text)
        for number, line in enumerate(text.splitlines(), start=1):
            if wanted in (line.casefold() if ignore_case else line):
                matches.append(
                    {"path": _shown(entry.path), "line": number, "text": line[:_MAX_LINE]}
                )
    truncated = truncated or len(matches) > _MAX_MATCHES
    del matches[_MAX_MATCHES:]
    text = "\n".join(f"{each['path']}:{each['line']}: {each['text']}" for each in matches)
    text = text or "No line holds it."
    if truncated:
        text += "\nNot everything was searched, or shown; narrow the path or the pattern."
    return ToolResult(text, {"matches": matches, "truncated": truncated})


def _walk(roots: Roots, path: str, *, deep: bool) -> Iterator[_Found]:
    """Yield what is below a folder, parents first; links are shown and not followed."""
    opened: list[tuple[int, str, Iterator[str]]] = []

    def push(folder: int, prefix: str) -> None:
        try:
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, MAX_VISITED + 1))
        except OSError:
            names = []
        opened.append((folder, prefix, iter(names)))

    try:
        with roots.place(path) as place:
            folder = place.open_folder()
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
            yield _Found(prefix + name, folder, name, is_folder)
            if deep and is_folder and len(opened) < _MAX_DEPTH:
                try:
                    below = Place(folder, name, name).open_folder()
                except ToolError:
                    continue
                push(below, f"{prefix}{name}/")
    finally:
        for folder, _, _ in opened:
            os.close(folder)


def _shown(name: str) -> str:
    """Return a name that JSON can hold; bytes that are no UTF-8 become question marks."""
    return name.encode(errors="replace").decode()
