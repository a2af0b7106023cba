"""Where the modules of a `python` server are, so that edited ones are followed like files.

Only what people edit is looked at: the worker's own folder and PYTHONPATH, not the packages that
are installed beside the worker. Nothing is imported: a module runs in its server's process alone.
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

from leaseway.spec.model import ServerSpec
from leaseway.spec.references import UnresolvedReference, expand

_MOST_FOLDERS: Final = 8
_MOST_FILES: Final = 256
_MOST_NAMES: Final = 1024
"""Names of imported modules that are looked for, those that are installed elsewhere included."""
_LARGEST: Final = 4 << 20
"""Bytes of all files of one server that are read."""
_IMPORT: Final = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]{0,8192}\)|[^\n;]+)"
    rb"|import[ \t]+([^\n;]+))",
    re.MULTILINE,
)
_COMMENT: Final = re.compile(rb"#[^\n]*")
_PATH: Final = "PYTHONPATH"


def module_files(spec: ServerSpec, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return where the module of a `python` server may be, the first choice first."""
    if spec.transport != "python":
        return ()
    inner = Path(*spec.module.split("."))
    return tuple(
        folder / name
        for folder in islice(_folders(spec, environment), _MOST_FOLDERS)
        for name in (inner / "__init__.py", inner.with_suffix(".py"))
    )


class Code(NamedTuple):
    """What a `python` server is made of, as far as people edit it.

    Attributes:
        mark: A digest of its files, or empty where there are none.
        files: Its module and what that imports, directly or not.
    """

    mark: str = ""
    files: tuple[Path, ...] = ()


def read_code(spec: ServerSpec, environment: Mapping[str, str]) -> Code:
    """Read the module of a `python` server and those of the same folders that it imports."""
    if spec.transport != "python":
        return Code()
    folders = tuple(islice(_folders(spec, environment), _MOST_FOLDERS))
    digest, files, left = hashlib.sha256(), list[Path](), _LARGEST
    names = dict.fromkeys(_with_parents(spec.module))
    waiting = deque(names)
    while waiting and len(files) < _MOST_FILES and left > 0:
        name = waiting.popleft()
        found = _read(folders, name, left)
        if found is None:
            continue
        path, content = found
        left -= len(content)
        files.append(path)
        for part in (os.fsencode(path), content):
            digest.update(b"%d:" % len(part) + part)
        for imported in _imports(content, name, is_package=path.stem == "__init__"):
            for each in _with_parents(imported):
                if each not in names and len(names) < _MOST_NAMES:
                    names[each] = None
                    waiting.append(each)
    return Code(digest.hexdigest() if files else "", tuple(files))


def _read(folders: tuple[Path, ...], name: str, most: int) -> tuple[Path, bytes] | None:
    """Return the first file of a module and what is in it, or None where there is none."""
    inner = Path(*name.split("."))
    for folder in folders:
        for path in (folder / inner / "__init__.py", folder / inner.with_suffix(".py")):
            with suppress(OSError, ValueError), path.open("rb") as file:
                return path, file.read(most)
    return None


def _imports(content: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Return the names of what a module may import, without running it."""
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
    """Return the packages of a module, and itself; nothing for what is no name of one."""
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _folders(spec: ServerSpec, environment: Mapping[str, str]) -> Iterator[Path]:
    own = Path.cwd() / _expanded(spec.cwd, environment)
    yield own
    given = spec.env.get(_PATH)
    text = environment.get(_PATH, "")
    if given is not None and given.kind == "literal":
        text = _expanded(given.text, environment)
    elif given is not None:
        text = environment.get(given.text, "") if given.kind == "env" else ""
    for folder in text.split(os.pathsep):
        if folder:
            yield own / folder


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    try:
        return expand(text, environment)
    except UnresolvedReference:
        return ""
