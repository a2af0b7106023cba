"""Print the modules, levels, imports and import cycles of each folder.

Counted are the modules and packages directly in a folder, and the imports between two of them.
Levels are the length of the longest chain of imports. Exits with 1 if a folder has an import cycle,
or more than 14 modules without a reason in `REASONS`, or if a file of the repository has over 600
lines.

    python tools/rooms.py            one line per folder
    python tools/rooms.py FOLDER     the imports in one folder, such as leaseway.data_plane
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("sdk", "cli", "front", "control_plane", "data_plane")
OTHERS = ("tests", "tools", "benchmarks", "deploy", "docs")
MAX_MODULES = 14
MAX_LINES = 600
# A folder with more modules needs a reason here.
REASONS = {
    "leaseway.control_plane": "the folders of a control plane, with the store beside its core",
    "leaseway.data_plane": "the folders of a worker, with the kit and its own processes",
    "leaseway.wire": "what every other part shares, each of its modules on its own",
    "leaseway": "the packages of the product, one contract over all",
}

# The fake for users' tests stands above the planes that it runs, and has its name for users' sake:
# it counts as a package of its own, as in the import contracts.
FAKE = ("leaseway", "sdk", "testing")


def modules() -> dict[str, Path]:
    """Return every module of the product by its dotted name, except generated ones."""
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
    """Return the product's modules that a module imports anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name in known}


def imports_by_folder(known: dict[str, Path]) -> dict[str, set[tuple[str, str]]]:
    """Return, for each folder, the imports between two of its modules."""
    edges: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for name, path in known.items():
        for target in imports(path, known):
            source_parts, target_parts = _place(name), _place(target)
            depth = 0
            while (
                depth < min(len(source_parts), len(target_parts))
                and source_parts[depth] == target_parts[depth]
            ):
                depth += 1
            if depth < len(source_parts) and depth < len(target_parts):
                folder = ".".join(source_parts[:depth])
                edges[folder].add((source_parts[depth], target_parts[depth]))
    return edges


def _place(module: str) -> list[str]:
    """Return the parts of a module's name, by which it belongs to a folder."""
    parts = module.split(".")
    return ["leaseway", "sdk.testing", *parts[3:]] if tuple(parts[:3]) == FAKE else parts


def modules_by_folder(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return the names of the modules of each folder."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for name in known:
        parts = _place(name)
        for depth in range(1, len(parts)):
            nodes[".".join(parts[:depth])].add(parts[depth])
    return nodes


def cycles(nodes: set[str], edges: set[tuple[str, str]]) -> list[set[str]]:
    """Return the sets of modules that import one another."""
    targets: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        targets[source].add(target)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        rest = [start]
        while rest:
            for target in targets[rest.pop()] - seen:
                seen.add(target)
                rest.append(target)
        return seen

    reached = {node: reach(node) for node in nodes}
    found: list[set[str]] = []
    for node in sorted(nodes):
        if node in reached[node] and not any(node in cycle for cycle in found):
            found.append({other for other in reached[node] if node in reached[other]})
    return found


def levels(nodes: set[str], edges: set[tuple[str, str]]) -> int:
    """Return the length of the longest chain of imports, in a folder without cycles."""
    targets: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        targets[source].add(target)

    @cache
    def height(node: str) -> int:
        return 1 + max((height(target) for target in targets[node]), default=0)

    return max(map(height, nodes))


def too_long() -> dict[str, int]:
    """Return the lines of each file that has too many for one idea, except generated ones."""
    found = {}
    for root in (*ROOTS, *OTHERS):
        for path in sorted((REPOSITORY / root).rglob("*.py")):
            lines = path.read_bytes().count(b"\n")
            if lines > MAX_LINES and "_pb2" not in path.name:
                found[str(path.relative_to(REPOSITORY))] = lines
    return found


def main() -> int:
    """Print the table, or one folder's imports; return the exit status."""
    known = modules()
    edges, nodes = imports_by_folder(known), modules_by_folder(known)
    if len(sys.argv) > 1:
        for source, target in sorted(edges[sys.argv[1]]):
            print(f"{source} -> {target}")
        return 0
    status = 0
    print(f"{'folder':<48}{'modules':>8}{'levels':>7}{'imports':>8}")
    for folder in sorted(nodes):
        found = cycles(nodes[folder], edges[folder])
        height = "-" if found else levels(nodes[folder], edges[folder])
        print(f"{folder:<48}{len(nodes[folder]):>8}{height:>7}{len(edges[folder]):>8}")
        for cycle in found:
            print(f"  import cycle: {', '.join(sorted(cycle))}")
            status = 1
        if len(nodes[folder]) > MAX_MODULES and folder not in REASONS:
            print(f"  {len(nodes[folder])} modules: split it, or give a reason in tools/rooms.py")
            status = 1
    for name, lines in too_long().items():
        print(f"{name} has {lines} lines: part it by its ideas, at most {MAX_LINES} each")
        status = 1
    print(f"{len(known)} files")
    return status


if __name__ == "__main__":
    sys.exit(main())
