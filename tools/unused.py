"""Print the functions, classes and constants of modules that nothing uses; fail if there are any.

A private name is used if its own module has it once more, any other if any module does. Tests do
not count as users of the product, unless users of the SDK may import the name. Decorated functions,
tests and hooks of pytest are used by whoever reads the decorator or the name.

    python tools/unused.py
"""

from __future__ import annotations

import ast
import re
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
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(
    r"^(?=(?:async def|def|class) |\w+(?:: [^=\n]+)? = )(?:async def |def |class )?(\w+)",
    re.MULTILINE,
)


def modules(roots: Iterable[str]) -> dict[str, str]:
    """Return the texts of the modules below some folders, except generated ones, by their paths."""
    return {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
        for root in roots
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        if "v1" not in path.parts and "node_modules" not in path.parts
    }


def defined(text: str) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines on its own level, with their lines."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.decorator_list:
                yield node.name, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((part.id, node.lineno) for part in targets if isinstance(part, ast.Name))


def unused(texts: Mapping[str, str], users: Iterable[str]) -> Iterator[str]:
    """Yield each unused name of some modules, with its place.

    Args:
        texts: The modules.
        users: Further modules that may use them.
    """
    named = {path: Counter(_WORD.findall(text)) for path, text in texts.items()}
    begun = {path: Counter(_DEFINED.findall(text)) for path, text in texts.items()}
    uses: Counter[str] = Counter()
    for path, words in named.items():
        uses.update(words)
        uses.subtract(begun[path])
    for text in users:
        uses.update(_WORD.findall(text))
    for path, text in texts.items():
        if path.startswith(FOUND):
            continue
        own = named[path] - begun[path]
        doubtful = {
            name
            for name in begun[path]
            if (own[name] if name.startswith("_") else uses[name]) <= 0
            and not name.startswith(_READ)
            and name not in FOR_TESTS
        }
        if doubtful:  # parsed only now, which takes most of the time
            for name, line in defined(text):
                if name in doubtful:
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
