"""How parts are made: counts that `make wiring` guards, and one home of retry schedules."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest
from tests.conftest import ROOT, ROOTS

from leaseway.wire.timing import backoff

_PATH = ROOT / "tools" / "wiring.py"
_PARTS = """
class Engine:
    on_stop = None
    def __init__(self): self.label = ""
    def stop(self): ...
"""


def _late(code: str) -> list[str]:
    """Return the late wirings of a method of a class beside the parts."""
    wiring = runpy.run_path(str(_PATH))
    tree = ast.parse(
        _PARTS + "class Car:\n" + "\n".join("    " + line for line in code.splitlines())
    )
    names = wiring["Names"]()
    names.add(tree)
    return [ast.unparse(statement) for statement in wiring["late_wiring"](tree, names)]


@pytest.mark.parametrize(
    "statement",
    [
        "car.on_stop = other",
        "car.halt = engine.stop",
        "self.engine.halt = lambda: None",
        "car.halt = partial(print, 1)",
        "car.engine = Engine()",
        "car.engine, car.count = (Engine(), 1)",
    ],
)
def test_an_object_that_is_wired_after_its_construction_is_found(statement: str) -> None:
    assert _late(f"def drive(self, car, engine, other):\n    {statement}") == [statement]


def test_a_constructor_that_sets_attributes_of_other_objects_is_found() -> None:
    assert _late("def __init__(self, engine):\n    engine.label = 1") == ["engine.label = 1"]


def test_a_part_that_an_object_gives_to_another_one_later_is_found() -> None:
    code = "def __init__(self):\n    self._engine = Engine()\n    self._name = str(1)\n"
    given = "def drive(self, car):\n    car.name = self._name\n    car.engine = self._engine"
    assert _late(code + given) == ["car.engine = self._engine"]


@pytest.mark.parametrize(
    "statement",
    ["car.count = 1", "self.engine = Engine()", "car.count += 1", "car.label = engine.label"],
)
def test_changing_state_is_no_late_wiring(statement: str) -> None:
    assert _late(f"def drive(self, car, engine):\n    {statement}") == []


@pytest.mark.parametrize(
    ("line", "has_reason"),
    [
        ("context.sni_callback = hello  # wired late: ssl takes it in no other way\n", True),
        ("context.sni_callback = hello  # wired late:\n", False),
        ("context.sni_callback = hello\n", False),
    ],
)
def test_late_wiring_with_a_reason_is_not_counted(
    tmp_path: Path, line: str, has_reason: bool
) -> None:
    path = tmp_path / "module.py"
    path.write_text(line)
    wiring = runpy.run_path(str(_PATH))
    assert wiring["_has_reason"](path, ast.parse(line).body[0]) is has_reason


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("from tests.front.test_bounds import Sdk", True),
        ("from tests.front import test_bounds", True),
        ("from . import test_bounds", True),
        ("import tests.front.test_bounds as bounds", True),
        ("from tests.front.fakes import Sdk", False),
        ("from aiohttp.test_utils import TestServer", False),
    ],
)
def test_an_import_of_a_test_module_is_found(line: str, is_found: bool) -> None:
    wiring = runpy.run_path(str(_PATH))
    found = [node for _, node in wiring["test_imports"]({_PATH: ast.parse(line)})]
    assert [ast.unparse(node) for node in found] == [line] * is_found


@pytest.mark.parametrize(
    ("code", "is_found"),
    [
        ("async with asyncio.timeout(10):\n    await task", True),
        ("await asyncio.wait_for(task, 10)", True),
        ("await asyncio.wait_for(task, timeout=10)", True),
        ("async with asyncio.timeout(BOUND):\n    await task", False),
        ("with suppress(TimeoutError):\n    await asyncio.wait_for(task, 0.1)", False),
        ("try:\n    await asyncio.wait_for(task, 1)\nexcept TimeoutError:\n    pass", False),
    ],
)
def test_a_short_wait_of_a_test_is_found_unless_it_may_time_out(code: str, is_found: bool) -> None:
    wiring = runpy.run_path(str(_PATH))
    assert len(list(wiring["short_waits"]({_PATH: ast.parse(code)}))) == is_found


def test_each_schedule_of_retries_has_its_name_in_one_module() -> None:
    home = Path(backoff.__file__)
    modules = (path for root in ROOTS for path in (ROOT / root / "leaseway").rglob("*.py"))
    elsewhere = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules
        if path != home
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Backoff")
    ]
    assert elsewhere == []
