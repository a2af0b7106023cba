"""Print the functions, classes and constants of modules that nothing uses; fail if there are any.

A private name is used if its own module names it once more, any other if any module does. Tests do
not count as users of the product, unless users of the SDK may import the name. Decorated functions,
tests and hooks of pytest are used by whoever reads the decorator or the name.

    python tools/unused.py
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PRODUCT = ("sdk", "cli", "front", "control_plane", "data_plane")
USERS = ("benchmarks", "tools", "deploy")
# Other programs than the repository's find these: users' own, and those that load entry points.
FOUND = (
    *("sdk/leaseway/integrations/", "sdk/leaseway/sdk/__init__.py", "data_plane/leaseway/server/"),
    *("tests/packages/", "tests/servers/"),
)
# What tests hold the product to.
FOR_TESTS = ("VOCABULARIES",)
_READ = ("test_", "Test", "pytest", "__")
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def modules(roots: Iterable[str]) -> dict[str, ast.Module]:
    """Return the modules below some folders, except generated ones, by their paths."""
    return {
        str(path.relative_to(REPOSITORY)): ast.parse(path.read_text(encoding="utf-8"))
        for root in roots
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        if "v1" not in path.parts and "node_modules" not in path.parts
    }


def defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines on its own level, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, _FUNCTIONS) and not node.decorator_list
        ):
            yield node.name, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((part.id, node.lineno) for part in targets if isinstance(part, ast.Name))


def named(tree: ast.Module) -> Counter[str]:
    """Count the names that a module reads, imports or has in its texts."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute):
            found[node.attr] += 1
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.replace(".", " ").replace(":", " ").split()
            found.update(word for word in words if word.isidentifier())
    return found


def unused(trees: Mapping[str, ast.Module], users: Iterable[ast.Module]) -> Iterator[str]:
    """Yield each unused name of some modules, with its place.

    Args:
        trees: The modules.
        users: Further modules that may use them.
    """
    uses = {path: named(tree) for path, tree in trees.items()}
    everywhere: Counter[str] = Counter()
    for found in (*uses.values(), *map(named, users)):
        everywhere.update(found)
    for path, tree in trees.items():
        for name, line in defined(tree):
            if name.startswith(_READ) or name in FOR_TESTS or path.startswith(FOUND):
                continue
            if not (uses[path] if name.startswith("_") else everywhere)[name]:
                yield f"{path}:{line}: nothing uses {name}"


def main() -> int:
    """Print the unused names; return the exit status."""
    product, users, tests = modules(PRODUCT), modules(USERS), modules(["tests"])
    found = [*unused(product, users.values()), *unused(users | tests, ())]
    for place in found:
        print(place)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
