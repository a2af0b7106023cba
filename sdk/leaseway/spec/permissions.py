"""Permissions of a server: what its tools may do, and which paths their arguments may contain.

Workers judge each call (`data_plane/core/tools/paths.py`). They cannot check a path inside a text,
the target of a link, or what a tool reads below a permitted folder; a sandbox can. Pure.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Permissions:
    """What tools of a server may do.

    Attributes:
        read: Whether read-only tools may run.
        write: Whether other tools may run.
        allowed_paths: Allowed paths and everything below them, or None for all. Relative ones start
            at the server's working directory.
        denied_paths: Denied paths and everything below them; a relative one at any depth.
    """

    read: bool = True
    write: bool = True
    allowed_paths: tuple[str, ...] | None = None
    denied_paths: tuple[str, ...] = ()

    @property
    def names_paths(self) -> bool:
        return self.allowed_paths is not None or bool(self.denied_paths)


EVERYTHING: Final = Permissions()


def folders(permissions: Permissions, base: str) -> tuple[str, ...]:
    """Return the allowed paths as absolute paths, without relative ones if the base is unknown.

    Args:
        permissions: The server's permissions.
        base: The folder that relative paths start from; empty if unknown.
    """
    allowed = (_absolute(path, base) for path in permissions.allowed_paths or ())
    return tuple(dict.fromkeys(path for path in allowed if path))


def _absolute(path: str, base: str) -> str:
    if path.startswith("/"):
        return posixpath.normpath(path)
    return posixpath.normpath(posixpath.join(base, path)) if base else ""
