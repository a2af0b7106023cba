"""The package: one namespace in five roots, one wheel, and imports that stay apart."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.conftest import ROOTS

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = (
    "v1",
    "runbook",
    "integrations",
    "wire",
    "identity",
    "spec",
    "templates",
    "telemetry",
    "vault",
    "sdk",
    "cli",
    "control_plane",
    "data_plane",
    "server",
    "front",
)
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("root", ROOTS)
def test_no_root_has_an_init_file_in_the_namespace(root: str) -> None:
    # An __init__.py there would hide the other roots at run time; type checks do not detect it.
    assert (REPOSITORY / root / "leaseway").is_dir()
    assert not (REPOSITORY / root / "leaseway" / "__init__.py").exists()


def test_every_part_of_the_namespace_can_be_imported_together() -> None:
    names = [f"leaseway.{name}" for name in PACKAGES]
    assert _python(f"import {', '.join(names)}; print('fine')") == "fine"


def test_the_namespace_runs_as_the_command(tmp_path: Path) -> None:
    said = [
        subprocess.run(
            [sys.executable, "-m", name, "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for name in ("leaseway", "leaseway.cli.main")
    ]
    assert said[0] == said[1]
    assert said[0].startswith("Usage: leaseway ")


def test_importing_the_sdk_imports_neither_planes_nor_their_dependencies() -> None:
    unwanted = [
        "leaseway.control_plane",
        "leaseway.data_plane",
        "leaseway.cli",
        "mcp",
        "pydantic",
        "aiohttp",
        "yaml",
        "click",
        "cryptography",
        "rich",
        "uvloop",
        "opentelemetry.sdk",
        "opentelemetry.exporter",
    ]
    code = f"import leaseway.sdk, sys; print([n for n in {unwanted!r} if n in sys.modules])"
    assert _python(code) == "[]"


def test_the_sdk_imports_only_four_packages() -> None:
    names = {line.split(">")[0] for line in PROJECT["project"]["dependencies"]}
    assert names == {
        "grpcio",
        "protobuf",
        "googleapis-common-protos",
        "opentelemetry-api",
    }


def test_generated_code_runs_on_the_oldest_supported_runtime() -> None:
    code = (REPOSITORY / "sdk/leaseway/v1/catalog_pb2_grpc.py").read_text()
    generated = code.partition("GRPC_GENERATED_VERSION = '")[2].partition("'")[0]
    [promised] = [d for d in PROJECT["project"]["dependencies"] if d.startswith("grpcio>=")]
    assert _version(generated) <= _version(promised.removeprefix("grpcio>="))

    code = (REPOSITORY / "sdk/leaseway/v1/catalog_pb2.py").read_text()
    generated = code.partition("# Protobuf Python Version: ")[2].partition("\n")[0]
    [promised] = [d for d in PROJECT["project"]["dependencies"] if d.startswith("protobuf>=")]
    assert _version(generated) <= _version(promised.removeprefix("protobuf>="))


def _version(text: str) -> tuple[int, ...]:
    parts = [int(part) for part in text.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=250,
        check=True,
    )
    [path] = folder.glob("leaseway-*.whl")
    return zipfile.ZipFile(path).namelist()


def test_the_wheel_contains_all_roots(wheel: list[str]) -> None:
    for name in (
        "leaseway/__main__.py",
        "leaseway/v1/catalog_pb2.py",
        "leaseway/wire/errors.py",
        "leaseway/sdk/__init__.py",
        "leaseway/cli/main.py",
        "leaseway/control_plane/app.py",
        "leaseway/data_plane/app.py",
        "leaseway/data_plane/kit/__main__.py",
    ):
        assert name in wheel


def test_every_part_of_the_wheel_is_typed(wheel: list[str]) -> None:
    assert {f"leaseway/{name}/py.typed" for name in PACKAGES} <= set(wheel)


def test_the_wheel_contains_only_the_package(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"leaseway"}
    assert "leaseway/__init__.py" not in wheel
    assert not [name for name in wheel if "__pycache__" in name or _is_test(name)]


def _is_test(name: str) -> bool:
    """Return whether a file is a test of Leaseway; `leaseway.sdk.testing` is for users."""
    return "test" in name.lower() and not name.startswith("leaseway/sdk/testing/")


def test_no_cache_is_tracked() -> None:
    done = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        pytest.skip("This is no git checkout.")
    unwanted = ("__pycache__", ".pyc", ".venv/", ".build/", "node_modules", "_cache/", ".whl")
    assert [n for n in done.stdout.splitlines() if any(part in n for part in unwanted)] == []


def test_the_import_rules_name_real_modules() -> None:
    rules = PROJECT["tool"]["importlinter"]
    named = {
        module.strip()
        for contract in rules["contracts"]
        for key in ("layers", "source_modules", "forbidden_modules")
        for line in contract.get(key, ())
        for module in line.split("|")
        if module.strip().startswith("leaseway.")
    }
    assert set(rules["root_packages"]) == {f"leaseway.{name}" for name in PACKAGES}
    for module in named | set(rules["root_packages"]):
        path = module.removesuffix(".*").replace(".", "/")
        found = [
            root
            for root in ROOTS
            if (REPOSITORY / root / path).is_dir() or (REPOSITORY / root / f"{path}.py").is_file()
        ]
        assert found, f"An import rule names {module}, which does not exist."


def test_the_changelog_has_the_version_of_the_project() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    assert f"## {PROJECT['project']['version']}" in changelog
