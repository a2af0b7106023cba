"""Compile only the modules that Leaseway can import: half of its packages' modules are unused.

Standard library only; run by the interpreter of the environment.

    python3 bytecode.py ENVIRONMENT
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path


def importable_modules(package: Path) -> Iterator[str]:
    """Yield the modules of Leaseway, and those that they import anywhere in their code."""
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        yield name.removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def main(environment: str) -> None:
    """Import these modules, then compile every module that has been loaded."""
    (site,) = Path(environment).glob("lib/python*/site-packages")
    for name in dict.fromkeys(importable_modules(site / "leaseway")):
        if name.rpartition(".")[2] != "__main__":
            with contextlib.suppress(Exception, SystemExit):  # not a module, or an optional package
                importlib.import_module(name)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for file in sorted(path for path in files if path and path.endswith(".py")):
        py_compile.compile(file, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    for main_file in (site / "leaseway").rglob("__main__.py"):
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(main_file), invalidation_mode=mode)


if __name__ == "__main__":
    main(*sys.argv[1:])
