"""Print rooms, floors, arrows and circles of each folder, measured from the imports.

A room is a module or a package directly in a folder; an arrow is an import from one room to
another; floors are the length of the longest chain of arrows; a circle is a set of rooms that
import one another. Exits with 1 where a folder has a circle, or more than 14 rooms without a reason
in `REASONS`.

    python tools/rooms.py            one line a folder
    python tools/rooms.py FOLDER     the arrows of one folder, such as leaseway.data_plane
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("sdk", "control_plane", "data_plane")
MOST_ROOMS = 14
# A folder may have more rooms than that only with the reason here.
REASONS = {
    "leaseway.data_plane": "the folders of a worker, with the kit and its own processes",
    "leaseway": "the packages of the product, one contract over all",
}


def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name, generated ones left out."""
    found = {}
    for root in ROOTS:
        base = REPOSITORY / root
        for path in sorted((base / "leaseway").rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            if parts[1] == "v1":
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the product's modules that one module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name in known}


def arrows_by_folder(known: dict[str, Path]) -> dict[str, set[tuple[str, str]]]:
    """Return, for each folder, the imports between two of its rooms."""
    arrows: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for name, path in known.items():
        for target in imports(path, known):
            source_parts, target_parts = name.split("."), target.split(".")
            depth = 0
            while (
                depth < min(len(source_parts), len(target_parts))
                and source_parts[depth] == target_parts[depth]
            ):
                depth += 1
            if depth < len(source_parts) and depth < len(target_parts):
                folder = ".".join(source_parts[:depth])
                arrows[folder].add((source_parts[depth], target_parts[depth]))
    return arrows


def rooms_by_folder(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return the names of the rooms of each folder."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for name in known:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            rooms[".".join(parts[:depth])].add(parts[depth])
    return rooms


def circles(rooms: set[str], arrows: set[tuple[str, str]]) -> list[set[str]]:
    """Return the sets of rooms that import one another."""
    targets: dict[str, set[str]] = defaultdict(set)
    for source, target in arrows:
        targets[source].add(target)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        rest = [start]
        while rest:
            for target in targets[rest.pop()] - seen:
                seen.add(target)
                rest.append(target)
        return seen

    reached = {room: reach(room) for room in rooms}
    found: list[set[str]] = []
    for room in sorted(rooms):
        if room in reached[room] and not any(room in circle for circle in found):
            found.append({other for other in reached[room] if room in reached[other]})
    return found


def floors(rooms: set[str], arrows: set[tuple[str, str]]) -> int:
    """Return the length of the longest chain of rooms; the folder has no circle."""
    targets: dict[str, set[str]] = defaultdict(set)
    for source, target in arrows:
        targets[source].add(target)

    @cache
    def height(room: str) -> int:
        return 1 + max((height(target) for target in targets[room]), default=0)

    return max(map(height, rooms))


def main() -> int:
    """Print the table, or one folder's arrows; return the exit status."""
    known = modules()
    arrows, rooms = arrows_by_folder(known), rooms_by_folder(known)
    if len(sys.argv) > 1:
        for source, target in sorted(arrows[sys.argv[1]]):
            print(f"{source} -> {target}")
        return 0
    status = 0
    print(f"{'folder':<48}{'rooms':>6}{'floors':>7}{'arrows':>7}")
    for folder in sorted(rooms):
        found = circles(rooms[folder], arrows[folder])
        height = "-" if found else floors(rooms[folder], arrows[folder])
        print(f"{folder:<48}{len(rooms[folder]):>6}{height:>7}{len(arrows[folder]):>7}")
        for circle in found:
            print(f"  circle: {', '.join(sorted(circle))}")
            status = 1
        if len(rooms[folder]) > MOST_ROOMS and folder not in REASONS:
            print(f"  {len(rooms[folder])} rooms, and no reason in tools/rooms.py")
            status = 1
    print(f"{len(known)} files")
    return status


if __name__ == "__main__":
    sys.exit(main())
