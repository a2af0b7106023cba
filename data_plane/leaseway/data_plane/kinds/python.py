"""Finds the module files of a `python` server, so that edits restart it.

Only files that people edit are read: in the worker's folder and PYTHONPATH, not the packages that
are installed beside the worker. No module is imported here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from leaseway.spec.kinds.python import PythonPart
from leaseway.spec.references import UnresolvedReference, expand

_MAX_FOLDERS: Final = 8
_MAX_FILES: Final = 256
_MAX_NAMES: Final = 1024
"""Names of imported modules to search for, including those of installed packages."""
_MAX_BYTES: Final = 4 << 20
"""Bytes of all files of one server."""
_IMPORT: Final = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]{0,8192}\)|[^\n;]+)"
    rb"|import[ \t]+([^\n;]+))",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(rb"#[^\n]*")
_PATH: Final = "PYTHONPATH"


def module_files(part: PythonPart, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the candidate files of a `python` server's module, in search order."""
    inner = Path(*part.module.split("."))
    return tuple(
        folder / name
        for folder in islice(_folders(part, environment), _MAX_FOLDERS)
        for name in (inner / "__init__.py", inner.with_suffix(".py"))
    )


class Code(NamedTuple):
    """The editable files of a `python` server: its module and all that it imports.

    Attributes:
        digest: Of the files' content, or empty if there are none.
        files: Their paths.
    """

    digest: str = ""
    files: tuple[Path, ...] = ()


def read_code(part: PythonPart, environment: Mapping[str, str]) -> Code:
    """Read the module of a `python` server and what it imports from the same folders."""
    folders = tuple(islice(_folders(part, environment), _MAX_FOLDERS))
    digest, files, budget = hashlib.sha256(), list[Path](), _MAX_BYTES
    names = dict.fromkeys(_with_parents(part.module))
    waiting = deque(names)
    while waiting and len(files) < _MAX_FILES and budget > 0:
        name = waiting.popleft()
        found = _read(folders, name, budget)
        if found is None:
            continue
        path, content = found
        budget -= len(content)
        files.append(path)
        for content_part in (os.fsencode(path), content):
            digest.update(b"%d:" % len(content_part) + content_part)
        for imported in _imports(content, name, is_package=path.stem == "__init__"):
            for module in _with_parents(imported):
                if module not in names and len(names) < _MAX_NAMES:
                    names[module] = None
                    waiting.append(module)
    return Code(digest.hexdigest() if files else "", tuple(files))


def _read(folders: tuple[Path, ...], name: str, limit: int) -> tuple[Path, bytes] | None:
    """Return the first file of a module and its content, or None if there is none."""
    inner = Path(*name.split("."))
    for folder in folders:
        for path in (folder / inner / "__init__.py", folder / inner.with_suffix(".py")):
            with suppress(OSError, ValueError), path.open("rb") as file:
                return path, file.read(limit)
    return None


def _imports(content: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Return the names of the modules that a module may import."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for source, names, plain in _IMPORT.findall(content.replace(b"\\\n", b" ")):
        words = [
            part.split()[0].decode(errors="replace")
            for part in _COMMENT.sub(b"", names or plain).strip(b"()").split(b",")
            if part.split()
        ]
        if plain:
            yield from words
            continue
        text = source.decode(errors="replace")
        inner = text.lstrip(".")
        level = len(text) - len(inner)
        if level > len(package) + 1:
            continue
        base = package[: len(package) - level + 1] if level else []
        base += inner.split(".") if inner else []
        if base:
            yield ".".join(base)
        yield from (".".join([*base, word]) for word in words)


def _with_parents(name: str) -> Iterator[str]:
    """Return the packages of a module and the module itself; nothing for an invalid name."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _folders(part: PythonPart, environment: Mapping[str, str]) -> Iterator[Path]:
    cwd = Path.cwd() / _expanded(part.cwd, environment)
    yield cwd
    configured = part.env.get(_PATH)
    text = environment.get(_PATH, "")
    if configured is not None and configured.kind == "literal":
        text = _expanded(configured.text, environment)
    elif configured is not None:
        text = environment.get(configured.text, "") if configured.kind == "env" else ""
    for folder in text.split(os.pathsep):
        if folder:
            yield cwd / folder


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    try:
        return expand(text, environment)
    except UnresolvedReference:
        return ""
