"""Kinds of servers that a package brings, in a whole system."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import BOUND
from tests.e2e.system import LEASEWAY
from tests.ports import free_port

PACKAGES = Path(__file__).parents[1] / "packages"
GREETER = {"transport": "greeter", "truely-stateless": True, "language": "de"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Install the package of greeters in a folder, and return an environment that has it."""
    return installed(tmp_path / "site")


def installed(folder: Path, entry: str = "greeter = greeters.kind:GreeterPart") -> dict[str, str]:
    shutil.copytree(PACKAGES / "greeters", folder / "greeters")
    metadata = folder / "greeters-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeters\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[leaseway.kinds]\n{entry}\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def written(folder: Path, **servers: dict[str, object]) -> Path:
    config = folder / "mcp.yaml"
    config.write_text(json.dumps({"version": 1, "servers": servers}))
    return config


def leaseway(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [*LEASEWAY, *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND, check=False
    )


@contextmanager
def running(environment: dict[str, str], config: Path) -> Iterator[str]:
    """Run a system while the block runs; yield its address."""
    address = f"127.0.0.1:{free_port()}"
    words = ["up", "--config", str(config), "--listen", address]
    with subprocess.Popen(
        [*LEASEWAY, *words], env=environment, stdout=subprocess.PIPE, text=True
    ) as system:
        try:
            assert system.stdout is not None
            assert system.stdout.readline().split() == ["ready", address]
            yield address
        finally:
            system.terminate()


def test_a_server_of_a_packages_kind_is_configured_started_and_called(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    config = written(tmp_path, hallo=GREETER | {"owner": "Ada", "ending": "!"})
    with running(environment, config) as address:
        called = leaseway(environment, "call", "--address", address, "greet", "name=Bob")
        assert called.stdout.strip() == "Hallo Bob & Ada!", called.stderr


MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"language": "fr"}, "'fr'"),
    ({"langauge": "en"}, "did you mean 'language'?"),
    ({"ending": "x"}, "ending' must be punctuation"),
    ({"command": "x"}, "'command' is not for the transport 'greeter'"),
    ({"shy": True, "owner": "Ada"}, "'owner' is greeted by no greeter that is 'shy'"),
]


def test_mistakes_in_its_keys_are_told_like_those_of_other_kinds(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    servers = {f"hallo{at}": GREETER | changes for at, (changes, _) in enumerate(MISTAKES)}
    checked = leaseway(environment, "check", str(written(tmp_path, **servers)))
    assert checked.returncode == 1
    printed = checked.stdout + checked.stderr
    assert [said for _, said in MISTAKES if said not in printed] == []


def test_a_kind_that_raises_costs_only_its_own_server(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    config = written(tmp_path, hallo=GREETER | {"owner": "nobody"}, other=GREETER)
    checked = leaseway(environment, "check", "--json", str(config))
    assert "Its kind could not check it: ZeroDivisionError" in checked.stdout
    assert "other" not in checked.stdout


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("greeter = greeters.gone:GreeterPart", "could not be imported: ModuleNotFoundError"),
        ("greeter = greeters.kind:Key", "is no dataclass that is a subclass of"),
        ("hello = greeters.kind:GreeterPart", "must have transports = ('hello',)"),
    ],
)
def test_a_kind_that_cannot_be_used_costs_only_its_own_servers(
    tmp_path: Path, entry: str, said: str
) -> None:
    environment = installed(tmp_path / "site", entry)
    servers = {"hallo": GREETER | {"transport": entry.split()[0]}}
    config = written(tmp_path, **servers, echo={"transport": "stdio", "command": sys.executable})
    checked = leaseway(environment, "check", "--json", str(config))
    told = json.loads(checked.stdout)
    assert said in checked.stdout, told
    assert "echo" not in checked.stdout.replace("mcp.yaml", "")


def test_a_kind_whose_module_for_workers_fails_costs_only_its_own_servers(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "site" / "greeters" / "worker.py").write_text("1 / 0\n")
    (tmp_path / "a.txt").write_text("still here")
    kit = {"transport": "builtin", "tools": ["read_file"], "roots": [str(tmp_path)]}
    config = written(tmp_path, hallo=GREETER, kit=kit | {"truely-stateless": True})
    with running(environment, config) as address:
        called = leaseway(environment, "call", "--address", address, "read_file", "path=a.txt")
        assert called.stdout.strip() == "still here", called.stderr
        told = leaseway(environment, "problems", "--json", "--address", address).stdout
        assert "its module greeters.worker raised ZeroDivisionError" in told
        assert '"kit"' not in told


def test_a_kind_whose_readers_fail_costs_only_its_own_servers(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "site" / "greeters" / "readers.py").write_text("1 / 0\n")
    echo: dict[str, object] = {"transport": "stdio", "command": sys.executable}
    config = written(tmp_path, hallo=GREETER | {"ending": "!"}, echo=echo)
    told = leaseway(environment, "check", "--json", str(config)).stdout
    said = "the READERS of its module greeters.readers raised ZeroDivisionError: division by zero."
    assert said in told
    assert "echo" not in told.replace("mcp.yaml", "")


def test_a_reader_that_raises_costs_only_its_own_server(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    readers = tmp_path / "site" / "greeters" / "readers.py"
    readers.write_text(readers.read_text().replace("return text", "return text[1 // 0]"))
    config = written(tmp_path, hallo=GREETER | {"ending": "!"}, other=GREETER)
    told = leaseway(environment, "check", "--json", str(config)).stdout
    assert "ending' could not be read: its kind raised ZeroDivisionError." in told
    assert "other" not in told
