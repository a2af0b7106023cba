"""Which files the module of a `python` server is followed by."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.specs import part

from leaseway.data_plane.kinds.python import module_files, read_code
from leaseway.data_plane.kinds.values import resolve
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value


def spec_of(module: str = "shop.prices", **env: Value) -> ServerSpec:
    return server_spec(VariantKey("s"), "python", module=module, class_name="Prices", env=env)


def test_a_module_is_searched_where_its_process_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_of(PYTHONPATH=Value("literal", "${BASE}/a:b"))
    assert [str(path) for path in module_files(part(spec), {"BASE": "/srv"})] == [
        f"{folder}/shop/prices{end}"
        for folder in (tmp_path, "/srv/a", tmp_path / "b")
        for end in ("/__init__.py", ".py")
    ]
    assert len(module_files(part(spec), {})) == 2  # what it stands for is not known
    named = spec_of(PYTHONPATH=Value("env", "WHERE"))
    assert str(module_files(part(named), {"WHERE": "/x"})[3]) == "/x/shop/prices.py"
    assert str(module_files(part(spec_of()), {"PYTHONPATH": "/y"})[3]) == "/y/shop/prices.py"


def test_an_edit_changes_the_resolved_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = spec_of("prices")
    without = resolve(spec, {})
    Path("prices.py").write_text("a = 1")
    first = resolve(spec, {})
    Path("prices.py").write_text("a = 2")
    second = resolve(spec, {})
    assert len({values.digest for values in (without, first, second)}) == 3
    assert read_code(part(spec_of("none")), {}) == ("", ())
    Path("other.py").write_text("")
    assert resolve(spec, {}).digest == second.digest


def test_imported_modules_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop" / "deep").mkdir(parents=True)
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    files = {
        "shop/__init__.py": "",
        "shop/prices.py": "import os, tax as t\nfrom . import money  # coins\nif 1:\n import a.b\n",
        "shop/money.py": "from .deep.coins import (\n    one,  # the first\n    two,\n)\n",
        "shop/deep/__init__.py": "from .. import \\\n    rates\nfrom .... import beyond\n",
        "shop/deep/coins.py": "from shop import prices\n",
        "shop/rates.py": "not python (",
        "lib/tax.py": "x = 1",
        "a.py": "import prices.missing\n",
        "unused.py": "",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    spec = spec_of(PYTHONPATH=Value("literal", "lib"))
    code = read_code(part(spec), {})
    followed = {str(path.relative_to(tmp_path)) for path in code.files}
    assert followed == files.keys() - {"unused.py"}
    assert resolve(spec, {}).modules == code.files
    digests = {code.digest}
    for name in sorted(followed):
        Path(name).write_text(files[name] + "\n# edited")
        digests.add(read_code(part(spec), {}).digest)
    assert len(digests) == len(followed) + 1
    Path("unused.py").write_text("edited")
    assert read_code(part(spec), {}).digest in digests


def test_reading_modules_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.py").write_text("".join(f"import m{number}\n" for number in range(300)))
    for number in range(300):
        Path(f"m{number}.py").write_text("from prices import (" * 100)
    assert len(read_code(part(spec_of("prices")), {}).files) == 256
    Path("prices.py").write_bytes(b"import m1\n" + b"#" * (5 << 20))
    assert len(read_code(part(spec_of("prices")), {}).files) == 1
