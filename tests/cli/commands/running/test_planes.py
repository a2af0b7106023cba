"""`control-plane` and `worker`: their options, and how the processes exit."""

from __future__ import annotations

import errno
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.conftest import BOUND

from leaseway.cli.errors import os_failure
from leaseway.cli.options.store import StoreOptions
from leaseway.control_plane import app as control_plane_app
from leaseway.control_plane.config.layers.sources import Source
from leaseway.control_plane.store.references import DsnReference
from leaseway.data_plane import app as worker_app
from leaseway.data_plane.core.artifacts.index import ArtifactLimits
from leaseway.data_plane.worker import WorkerOptions
from leaseway.vault.key import VaultPlace
from leaseway.wire.channels.endpoint import Endpoint, Endpoints

Run = Callable[..., Result]


class _Plane:
    """A fake of a plane's `run`: records its options and returns at once."""

    def __init__(self) -> None:
        self.options: Any = None
        self.status = 0
        self.error: Exception | None = None

    async def run(self, options: Any, *, ready: Callable[[str], None]) -> int:
        self.options = options
        if self.error is not None:
            raise self.error
        ready("127.0.0.1:4711")
        return self.status


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> _Plane:
    made = _Plane()
    monkeypatch.setattr(control_plane_app, "run", made.run)
    monkeypatch.setattr(worker_app, "run", made.run)
    return made


def test_a_control_plane_gets_its_options_and_prints_its_address(run: Run, plane: _Plane) -> None:
    done = run(
        "control-plane", "--config", "x.yaml", "--listen", "127.0.0.1:0", "--expect-workers", "2"
    )
    assert (done.exit_code, done.stdout) == (0, "ready 127.0.0.1:4711\n")
    assert plane.options == control_plane_app.ControlPlaneOptions(
        config=(Source("native", Path("x.yaml")),),
        listen=Endpoint("127.0.0.1", 0),
        key=None,
        expect_workers=2,
    )


def test_a_control_plane_of_one_file_gets_the_prefix_of_its_tools(run: Run, plane: _Plane) -> None:
    assert run("control-plane", "--config", "mcp.json", "--prefix", "none").exit_code == 0
    assert plane.options.config == (Source("native", Path("mcp.json"), bare=True),)


@pytest.mark.parametrize(
    ("words", "data", "store"),
    [
        (["--data", "/var/lib/leaseway"], Path("/var/lib/leaseway"), None),
        (["--store", "env:DSN"], None, DsnReference("env", "DSN")),
        (["--store", "file:/run/dsn"], None, DsnReference("file", "/run/dsn")),
    ],
)
def test_a_control_plane_gets_its_store(
    run: Run,
    plane: _Plane,
    words: list[str],
    data: Path | None,
    store: DsnReference | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSN", "postgresql://host/x")
    assert run("control-plane", "--config", "x.yaml", *words).exit_code == 0
    assert (plane.options.data, plane.options.store) == (data, store)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--data", "x", "--store", "file:dsn"], "exclude each other"),
        (["--store", "env:NO_SUCH_DSN"], "The variable NO_SUCH_DSN is not set."),
        (["--store", "postgresql://user:hunter22@host/x"], "can be read by others"),
        (["--store", "env:"], "can be read by others"),
    ],
)
def test_a_store_that_is_not_named_well_is_a_usage_error(
    run: Run, plane: _Plane, words: list[str], why: str
) -> None:
    done = run("control-plane", "--config", "x.yaml", *words)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
    assert "hunter22" not in done.stderr


def test_the_children_of_up_get_only_their_part_of_the_store() -> None:
    variable = StoreOptions(None, DsnReference("env", "DSN"))
    assert variable.as_arguments() == ["--store", "env:DSN"]
    assert (variable.variables, variable.own_paths) == (frozenset({"DSN"}), [])
    file = StoreOptions(None, DsnReference("file", "/run/dsn"))
    assert (file.variables, file.own_paths) == (frozenset[str](), ["--own-path", "/run/dsn"])
    folder = StoreOptions(Path("/data"), None)
    assert (folder.as_arguments(), folder.own_paths) == (
        ["--data", "/data"],
        ["--own-path", "/data"],
    )


def test_a_worker_gets_its_options_and_prints_its_address(run: Run, plane: _Plane) -> None:
    done = run(
        *("worker", "--control-plane", "cp:1", "--listen", "0.0.0.0:0", "--advertise", "w1:0"),
        *("--id", "w1", "--capacity", "3", "--label", "zone=a", "--label", "gpu=x=y"),
        *("--concurrent-starts", "5"),
        *("--vault", "/v/vault", "--vault-key-file", "/v/key"),
        env={"LEASEWAY_KEY": "a-key-of-16-characters"},
    )
    assert (done.exit_code, done.stdout) == (0, "ready 127.0.0.1:4711\n")
    assert plane.options == WorkerOptions(
        control_planes=Endpoints(Endpoint("cp", 1)),
        listen=Endpoint("0.0.0.0", 0),
        advertise=Endpoint("w1", 0),
        id="w1",
        capacity=3,
        concurrent_starts=5,
        key="a-key-of-16-characters",
        labels={"zone": "a", "gpu": "x=y"},
        vault=VaultPlace(Path("/v/vault"), Path("/v/key")),
    )


def test_a_plane_returns_its_exit_status(run: Run, plane: _Plane) -> None:
    plane.status = 1
    assert run("worker", "--id", "w").exit_code == 1


def test_an_unusable_address_is_an_error(run: Run, plane: _Plane) -> None:
    plane.error = OSError("Cannot listen on 127.0.0.1:1.")
    done = run("control-plane")
    assert done.exit_code == 1
    assert done.stderr == "leaseway: Cannot listen on 127.0.0.1:1.\n"


@pytest.mark.parametrize("command", ["control-plane", "worker", "up"])
def test_listening_beyond_loopback_without_a_key_is_rejected(
    run: Run, plane: _Plane, command: str
) -> None:
    done = run(command, "--listen", "0.0.0.0:0")
    assert done.exit_code == 2
    assert "LEASEWAY_KEY" in done.stderr
    assert plane.options is None


@pytest.mark.parametrize("variable", ["LEASEWAY_KEY", "LEASEWAY_WORKER_KEY"])
@pytest.mark.parametrize(
    ("length", "address", "status"), [(15, "0.0.0.0", 2), (16, "0.0.0.0", 0), (1, "127.0.0.1", 0)]
)
def test_beyond_loopback_a_key_needs_at_least_sixteen_characters(
    run: Run, plane: _Plane, variable: str, length: int, address: str, status: int
) -> None:
    environment = {"LEASEWAY_KEY": "k" * 16, variable: "s" * length}
    done = run("control-plane", "--listen", f"{address}:0", env=environment)
    assert done.exit_code == status, done.stderr
    assert (f"{variable} has 15 characters" in done.stderr) is (status == 2)
    assert (plane.options is None) is (status == 2)


@pytest.mark.parametrize("command", ["control-plane", "worker"])
def test_the_metrics_url_is_printed_after_the_address(
    run: Run, plane: _Plane, command: str
) -> None:
    done = run(command, "--metrics", "127.0.0.1:0")
    assert done.exit_code == 0
    ready, metrics = done.stdout.splitlines()
    assert ready == "ready 127.0.0.1:4711"
    assert metrics == f"metrics {plane.options.metrics.url}"
    assert metrics.startswith("metrics http://127.0.0.1:")
    assert metrics.endswith("/metrics")
    assert plane.options.metrics.admit is None


@pytest.mark.parametrize("command", ["control-plane", "worker", "up"])
def test_metrics_beyond_loopback_need_a_key(run: Run, plane: _Plane, command: str) -> None:
    done = run(command, "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0")
    assert done.exit_code == 2
    assert "LEASEWAY_KEY" in done.stderr
    assert plane.options is None


def test_metrics_require_the_key_if_there_is_one(run: Run, plane: _Plane) -> None:
    done = run("worker", "--metrics", "0.0.0.0:0", env={"LEASEWAY_KEY": "a-key-of-16-characters"})
    assert done.exit_code == 0
    assert plane.options.metrics.admit is not None


def test_a_used_metrics_port_is_an_error(run: Run, plane: _Plane) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("control-plane", "--metrics", address)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"leaseway: Cannot serve metrics on {address}: ")
    assert plane.options is None


def test_workers_need_metrics_ports_after_the_control_planes(run: Run, plane: _Plane) -> None:
    done = run("up", "--workers", "2", "--metrics", "127.0.0.1:65534")
    assert done.exit_code == 2
    assert "leaves no ports for 2 workers" in done.stderr


def test_an_invalid_label_is_a_usage_error(run: Run, plane: _Plane) -> None:
    done = run("worker", "--label", "loose")
    assert done.exit_code == 2
    assert "KEY=VALUE" in done.stderr


def test_a_log_file_that_cannot_be_written_is_a_usage_error(run: Run, plane: _Plane) -> None:
    done = run("worker", "--log-file", "/nowhere/at/all.log")
    assert done.exit_code == 2
    assert "/nowhere/at/all.log" in done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.yaml"
    path.write_text("version: 1\nservers: {}\n")
    return path


def _start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "leaseway.cli.main", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("leak_guard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_control_plane_exits_with_0_after_a_signal(config: Path, number: signal.Signals) -> None:
    process = _start("control-plane", "--config", str(config), "--listen", "127.0.0.1:0")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready 127.0.0.1:")
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


@pytest.mark.usefixtures("leak_guard")
def test_a_child_of_up_exits_when_its_stdin_closes(config: Path) -> None:
    process = _start(
        *("control-plane", "--config", str(config)),
        *("--listen", "127.0.0.1:0", "--exit-with-stdin"),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready ")
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.usefixtures("leak_guard")
def test_a_used_port_is_an_error(config: Path) -> None:
    first = _start("control-plane", "--config", str(config), "--listen", "127.0.0.1:0")
    assert first.stdout is not None
    address = first.stdout.readline().split()[1]
    second = _start("control-plane", "--config", str(config), "--listen", address)
    _, err = second.communicate(timeout=60)
    first.terminate()
    first.communicate(timeout=60)
    assert second.returncode == 1
    assert f"leaseway: Cannot listen on {address}" in err
    assert "Traceback" not in err


def test_a_worker_gets_its_artifact_options_and_prints_the_url(run: Run, plane: _Plane) -> None:
    done = run(
        *("worker", "--artifacts", "/var/shots", "--artifact-age", "90"),
        *("--artifact-space", "512MiB", "--artifacts-http", "127.0.0.1:0"),
        *("--metrics", "127.0.0.1:0"),
    )
    assert done.exit_code == 0
    ready, metrics, artifacts = done.stdout.splitlines()
    assert (ready, metrics) == ("ready 127.0.0.1:4711", f"metrics {plane.options.metrics.url}")
    assert artifacts == f"artifacts {plane.options.artifacts_http.url}"
    assert artifacts.endswith("/artifacts/")
    assert plane.options.artifacts == Path("/var/shots")
    assert plane.options.retention == ArtifactLimits(max_age=90, max_bytes=512 << 20)


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("2GB", 2 * 10**9), ("2 GiB", 2 << 30), ("7KB", 7000), ("9B", 9)]
)
def test_the_space_of_artifacts_has_a_unit_or_is_in_bytes(
    run: Run, plane: _Plane, text: str, size: int
) -> None:
    assert run("worker", "--artifact-space", text).exit_code == 0
    assert plane.options.retention.max_bytes == size


@pytest.mark.parametrize("text", ["0", "-1", "2 parsecs", "GiB", "1.5GiB", ""])
def test_an_invalid_size_is_rejected(run: Run, plane: _Plane, text: str) -> None:
    done = run("worker", "--artifact-space", text)
    assert done.exit_code == 2
    assert "512MiB" in done.stderr
    assert plane.options is None


def test_artifacts_for_other_machines_need_a_key_and_ports(run: Run, plane: _Plane) -> None:
    for command in ("worker", "up"):
        done = run(command, "--listen", "127.0.0.1:0", "--artifacts-http", "0.0.0.0:0")
        assert done.exit_code == 2
        assert "LEASEWAY_KEY" in done.stderr
    done = run("up", "--workers", "3", "--artifacts-http", "127.0.0.1:65534")
    assert "leaves no ports for 2 workers" in done.stderr
    assert plane.options is None


@pytest.mark.parametrize(
    ("soft", "hard", "raised"), [(64, 4096, 4096), (64, 100, 100), (4096, 4096, 4096)]
)
def test_a_process_asks_for_the_files_that_the_system_lets_it_open(
    soft: int, hard: int, raised: int
) -> None:
    code = (
        "import resource\n"
        "from leaseway.cli.commands.running.processes import raise_file_limit\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "raise_file_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=BOUND
    )
    assert done.stdout.split() == [str(raised), str(hard)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Raise the limit, by `ulimit -n`"),
        (
            FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"),
            "Mount a folder at /tmp",
        ),
        (OSError("A sentence of our own."), "A sentence of our own."),
    ],
)
def test_an_error_of_the_system_that_ends_a_process_says_what_to_do(
    error: OSError, advice: str
) -> None:
    assert advice in os_failure(error)
    assert "[Errno" not in os_failure(error)
