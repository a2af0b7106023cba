"""Which control-group hierarchies a process is in, and where. Reads two files of /proc."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

__all__ = ["SELF", "Hierarchy", "find_hierarchies"]

SELF: Final = Path("/proc/self")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy.

    Attributes:
        version: Of its interface.
        controllers: What it can limit where the process is.
        path: The folder of the cgroup that the process is in.
    """

    version: Literal[1, 2]
    controllers: frozenset[str]
    path: Path


def find_hierarchies(proc: Path = SELF) -> list[Hierarchy]:
    """Return the hierarchies; empty where there are none (no Linux, nothing mounted).

    Args:
        proc: The process's folder in /proc.
    """
    try:
        memberships = (proc / "cgroup").read_text().splitlines()
        mounts = (proc / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    places: dict[str, PurePosixPath] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        places |= {name: PurePosixPath(path) for name in controllers.split(",")}
    found = (_hierarchy(line, places) for line in mounts)
    return [each for each in found if each is not None]


def _hierarchy(mount: str, places: dict[str, PurePosixPath]) -> Hierarchy | None:
    before, _, after = mount.partition(" - ")
    fields, kind = before.split(), after.split()
    if kind[0] == "cgroup2" and "" in places:
        path = _folder(fields, places[""])
        try:
            controllers = (path / "cgroup.controllers").read_text().split()
        except OSError:
            return None
        return Hierarchy(2, frozenset(controllers), path)
    if kind[0] == "cgroup":
        names = frozenset(kind[-1].split(",")) & places.keys()
        if names:
            return Hierarchy(1, names, _folder(fields, places[min(names)]))
    return None


def _folder(fields: list[str], place: PurePosixPath) -> Path:
    root = PurePosixPath(_plain(fields[3]))
    mounted = Path(_plain(fields[4]))
    # A container may see its place on the host, and its own cgroup mounted as the whole.
    if ".." in place.parts or not place.is_relative_to(root):
        return mounted
    return mounted / place.relative_to(root)


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
