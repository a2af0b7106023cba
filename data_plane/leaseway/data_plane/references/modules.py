"""Where the module of a `python` server is, so that an edited one is followed like a file.

Only what people edit is looked at: the worker's own folder and PYTHONPATH, not the packages that
are installed beside the worker. Nothing is imported: a module runs in its server's process alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from leaseway.spec.model import ServerSpec
from leaseway.spec.references import UnresolvedReference, expand

_MOST_FOLDERS: Final = 8
_LARGEST: Final = 4 << 20
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


def code_mark(files: tuple[Path, ...]) -> str:
    """Return a digest of the first of some files that is there, or an empty text."""
    for path in files:
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST)
        except OSError:
            continue
        return hashlib.sha256(b"\0".join((os.fsencode(path), content))).hexdigest()
    return ""


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
