"""Which files the module of a `python` server is followed by."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.data_plane.references.modules import code_mark, module_files
from leaseway.data_plane.references.resolve import resolve
from leaseway.spec.model import ServerSpec, Value, VariantKey


def spec_of(module: str = "shop.prices", **env: Value) -> ServerSpec:
    return ServerSpec(VariantKey("s"), "python", module=module, class_name="Prices", env=env)


def test_a_module_is_looked_for_as_its_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_of(PYTHONPATH=Value("literal", "${BASE}/a:b"))
    assert [str(path) for path in module_files(spec, {"BASE": "/srv"})] == [
        f"{folder}/shop/prices{end}"
        for folder in (tmp_path, "/srv/a", tmp_path / "b")
        for end in ("/__init__.py", ".py")
    ]
    assert len(module_files(spec, {})) == 2  # what it stands for is not known
    named = spec_of(PYTHONPATH=Value("env", "WHERE"))
    assert str(module_files(named, {"WHERE": "/x"})[3]) == "/x/shop/prices.py"
    assert str(module_files(spec_of(), {"PYTHONPATH": "/y"})[3]) == "/y/shop/prices.py"
    assert module_files(ServerSpec(VariantKey("s"), "stdio", command="x"), {}) == ()


def test_an_edit_makes_another_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_of("prices")
    without = resolve(spec, {})
    Path("prices.py").write_text("a = 1")
    first = resolve(spec, {})
    Path("prices.py").write_text("a = 2")
    second = resolve(spec, {})
    assert len({each.digest for each in (without, first, second)}) == 3
    assert code_mark((tmp_path / "none.py",)) == ""
    Path("other.py").write_text("")
    assert resolve(spec, {}).digest == second.digest
