"""Count lambdas, late wiring, values by position, and what tests may not do; fail if more.

A part that gets its collaborators late can be used before it is complete, and a reader must search
for the place that completes it. So a part takes them in its constructor. Counted as late wiring is
an assignment to an attribute of an object other than `self` or `cls`,

- in a constructor,
- or of a callback: an attribute named `on_...`, or a value that is a lambda, a `partial`, or the
  name of a function or method of the product,
- or of a part: an object of a class of the product that has an own constructor, which is new or
  which `self` has made for itself.

State that changes while the product runs, such as the fields of a record, is not counted. Nor is a
line that ends with `# wired late: REASON`, for objects of libraries that take it in no other way.

A value of more than four fields (a dataclass or named tuple) is built by keyword, in tests and
benchmarks, too: a reader cannot tell what a fifth position means.

What test modules share is in a module beside them: they import no `test_*` module.

A wait of a test for what must happen lasts `BOUND` (`tests/conftest.py`) or more: on a busy machine
a few seconds are too short. A number is written only where the wait may time out.

    python tools/wiring.py            the numbers of each root, and what is found
    python tools/wiring.py --lambdas  each lambda, too
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
ROOTS = ("sdk", "cli", "front", "control_plane", "data_plane")
USERS = ("tests", "benchmarks")
# The most that the product may have. Lower them as the numbers fall; never raise them.
MAX_LAMBDAS = 68
MAX_LATE = 0
MAX_BY_POSITION = 0
MAX_TEST_IMPORTS = 0
MAX_SHORT_WAITS = 0
_MOST_POSITIONS = 4
_CONSTRUCTORS = frozenset({"__init__", "__post_init__"})
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Names:
    """What the product defines: functions and methods, names of values, and parts."""

    functions: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)

    def add(self, tree: ast.Module) -> None:
        """Add the definitions of a module."""
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                is_property = any("property" in ast.unparse(d) for d in node.decorator_list)
                (self.values if is_property else self.functions).add(node.name)
                self.values |= {argument.arg for argument in _arguments(node)}
            elif isinstance(node, ast.ClassDef):
                methods = {member.name for member in node.body if isinstance(member, _FUNCTIONS)}
                if "__init__" in methods:
                    self.parts.add(node.name)
            elif isinstance(node, ast.AnnAssign):
                self.values.add(_last_name(node.target))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.values.add(node.attr)

    def is_callback(self, value: ast.expr) -> bool:
        """Return whether a value is a function, or named like nothing but a function."""
        if isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            return _last_name(value.func) == "partial"
        name = _last_name(value)
        return name in self.functions and name not in self.values

    def is_part(self, value: ast.expr) -> bool:
        """Return whether a value is a new object of a class with an own constructor."""
        return isinstance(value, ast.Call) and _last_name(value.func) in self.parts


def lambdas(tree: ast.Module) -> Iterator[ast.Lambda]:
    """Yield the lambdas of a module."""
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Lambda))


def late_wiring(tree: ast.Module, names: Names) -> Iterator[ast.stmt]:
    """Yield the assignments of a module that wire an object after its construction."""
    made = {
        id(method): _made_parts(node, names)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
    }
    for function in ast.walk(tree):
        if not isinstance(function, _FUNCTIONS):
            continue
        own_parts = made.get(id(function), frozenset())
        for node in _own_nodes(function):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, value in _pairs(targets, node.value):
                if not isinstance(target, ast.Attribute) or _is_own(target):
                    continue
                if (
                    function.name in _CONSTRUCTORS
                    or target.attr.startswith("on_")
                    or names.is_callback(value)
                    or names.is_part(value)
                    or (isinstance(value, ast.Attribute) and ast.unparse(value) in own_parts)
                ):
                    yield node


def _made_parts(node: ast.ClassDef, names: Names) -> frozenset[str]:
    """Return the attributes of `self` to which a class assigns nothing but new parts."""
    assigned: dict[str, list[ast.expr]] = {}
    for statement in ast.walk(node):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            single = isinstance(statement, ast.AnnAssign)
            targets = [statement.target] if single else statement.targets
            for target, value in _pairs(targets, statement.value):
                if isinstance(target, ast.Attribute) and _is_own(target):
                    assigned.setdefault(ast.unparse(target), []).append(value)
    return frozenset(name for name, values in assigned.items() if all(map(names.is_part, values)))


def by_position(trees: Mapping[Path, ast.Module]) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls that build a record of more than four fields by position."""
    records: set[str] = set()
    others: set[str] = set()
    calls: list[tuple[Path, ast.Call]] = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                (records if _is_record(node) else others).add(node.name)
            elif isinstance(node, ast.Call) and len(node.args) > _MOST_POSITIONS:
                calls.append((path, node))
    for path, call in calls:
        is_spread = any(isinstance(argument, ast.Starred) for argument in call.args)
        if not is_spread and _last_name(call.func) in records - others:
            yield path, call


def test_imports(trees: Mapping[Path, ast.Module]) -> Iterator[tuple[Path, ast.stmt]]:
    """Yield the imports of test modules, or of names from them."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
                modules = [f"tests.{name}" for name in modules] if node.level else modules
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                continue
            if any(name.startswith("tests.") and ".test_" in name for name in modules):
                yield path, node


def short_waits(trees: Mapping[Path, ast.Module]) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the waits of tests with a number of seconds, unless they may time out."""
    for path, tree in trees.items():
        may_end = {
            id(node)
            for block in ast.walk(tree)
            if _takes_timeout(block)
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and id(node) not in may_end and _has_seconds(node):
                yield path, node


def _takes_timeout(block: ast.AST) -> bool:
    """Return whether a block expects, or takes, that a wait in it times out."""
    if isinstance(block, ast.With | ast.AsyncWith):
        return any("TimeoutError" in ast.unparse(item) for item in block.items)
    if isinstance(block, ast.Try):
        return any("TimeoutError" in ast.unparse(h.type) for h in block.handlers if h.type)
    return False


def _has_seconds(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name not in ("asyncio.timeout", "asyncio.wait_for"):
        return False
    seconds = [*call.args[name == "asyncio.wait_for" :], *(word.value for word in call.keywords)]
    return any(isinstance(value, ast.Constant) and value.value is not None for value in seconds)


def _is_record(node: ast.ClassDef) -> bool:
    marks = [ast.unparse(mark) for mark in (*node.decorator_list, *node.bases)]
    return any(mark.startswith("dataclass") or mark == "NamedTuple" for mark in marks)


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    given = function.args
    yield from (*given.posonlyargs, *given.args, *given.kwonlyargs)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions in it."""
    rest = list(ast.iter_child_nodes(function))
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, _FUNCTIONS | ast.ClassDef):
            rest += ast.iter_child_nodes(node)


def _pairs(targets: list[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in targets:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, of in zip(target.elts, value.elts, strict=False):
                yield from _pairs([part], of)
        elif isinstance(target, ast.Tuple):
            yield from ((part, value) for part in target.elts)
        else:
            yield target, value


def _is_own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def _last_name(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""


def _has_reason(path: Path, node: ast.stmt) -> bool:
    line = path.read_text().splitlines()[(node.end_lineno or node.lineno) - 1]
    return bool(line.partition("# wired late: ")[2].strip())


def _modules(root: str) -> dict[Path, ast.Module]:
    folder = REPOSITORY / root
    paths = sorted((folder / "leaseway" if root in ROOTS else folder).rglob("*.py"))
    return {
        path: ast.parse(path.read_text())
        for path in paths
        if "v1" not in path.relative_to(REPOSITORY).parts
    }


def _print(path: Path, node: ast.stmt | ast.expr) -> None:
    text = " ".join(ast.unparse(node).split())
    print(f"  {path.relative_to(REPOSITORY)}:{node.lineno}: {text[:100]}")


def main() -> int:
    """Print the numbers; return the exit status."""
    gc.disable()  # it would walk all trees again and again, which takes most of the time
    trees = {root: _modules(root) for root in ROOTS}
    names = Names()
    for modules in trees.values():
        for tree in modules.values():
            names.add(tree)
    found_lambdas = found_late = 0
    for root, modules in trees.items():
        of_root = [(path, node) for path, tree in modules.items() for node in lambdas(tree)]
        late = [
            (path, node)
            for path, tree in modules.items()
            for node in late_wiring(tree, names)
            if not _has_reason(path, node)
        ]
        print(f"{root:<16}{len(of_root):>5} lambdas{len(late):>5} wired late")
        for path, node in late:
            _print(path, node)
        if "--lambdas" in sys.argv[1:]:
            for path, node in of_root:
                _print(path, node)
        found_lambdas, found_late = found_lambdas + len(of_root), found_late + len(late)
    users = [_modules(root) for root in USERS]
    positional = list(by_position(ChainMap(*trees.values(), *users)))
    of_tests = list(test_imports(ChainMap(*users)))
    waits = list(short_waits(users[USERS.index("tests")]))
    for path, node in (*positional, *of_tests, *waits):
        _print(path, node)
    status = 0
    for found, most, what, instead in (
        (found_lambdas, MAX_LAMBDAS, "lambdas", "Pass a bound method, a partial or a function"),
        (found_late, MAX_LATE, "late wirings", "Give a part what it needs in its constructor"),
        (len(positional), MAX_BY_POSITION, "values by position", "Name their fields"),
        (
            len(of_tests),
            MAX_TEST_IMPORTS,
            "imports of test modules",
            "Move what tests share into a module beside them, whose name says what it holds",
        ),
        (len(waits), MAX_SHORT_WAITS, "short waits of tests", "Wait for BOUND"),
    ):
        print(f"{found} {what}, at most {most} are allowed")
        if found > most:
            print(f"wiring: {found - most} {what} too many. {instead}.", file=sys.stderr)
            status = 1
        elif found < most:
            print(f"Lower the limit in tools/wiring.py to {found}.")
    return status


if __name__ == "__main__":
    sys.exit(main())
