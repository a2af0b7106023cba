"""CONTRIBUTING's table "to add …" is complete: what is added by its steps alone passes the checks.

Each test copies the checkout, makes the changes that one row names and no others, and runs the
checks there. Before that it makes only the first change: then the checks must fail, or the other
steps could be forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import ROOT, absent
from tests.ports import free_port

LIMIT: Final = 300.0
"""Seconds that one command may take on a busy machine."""
_ROOTS: Final = ("sdk", "cli", "front", "control_plane", "data_plane")
_LEFT_OUT: Final = shutil.ignore_patterns(".*", "benchmarks", "recorded", "dist", "node_modules")
_BIN: Final = Path(sys.executable).parent


@dataclass
class Scratch:
    """A copy of the checkout."""

    root: Path
    changed: set[str] = field(default_factory=set)

    def add(self, path: str, after: str, text: str) -> None:
        """Insert a text behind another one, which a file has once."""
        file = self.root / path
        before = file.read_text(encoding="utf-8")
        assert before.count(after) == 1, f"{path} has {before.count(after)} times: {after}"
        file.write_text(before.replace(after, after + text), encoding="utf-8")
        self.changed.add(path)

    def append(self, path: str, text: str) -> None:
        """Add a text to the end of a file."""
        with (self.root / path).open("a", encoding="utf-8") as file:
            file.write(text)
        self.changed.add(path)

    def create(self, path: str, text: str) -> None:
        """Write a new file."""
        file = self.root / path
        file.parent.mkdir(exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
        self.changed.add(path)

    def with_protos(self) -> None:
        """Use the generator of the checkout."""
        if not (ROOT / ".build/protos/stamp").exists():
            absent("protos", "the generator of protos is not installed: run `make protos`")
        (self.root / ".build").mkdir()
        (self.root / ".build/protos").symlink_to(ROOT / ".build/protos")

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a command runs the copy's code."""
        path = os.pathsep.join(str(self.root / root) for root in (*_ROOTS, "."))
        # Each command reads what the checkout, or the one before, has compiled.
        compiled = {"PYTHONDONTWRITEBYTECODE": ""}
        return {**os.environ, **compiled, "PYTHONPATH": path, "BUF": str(_BIN / "buf")}

    @contextmanager
    def started(self, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
        """Run a command with the copy's code while the block runs."""
        words = list(map(str, command))
        environment = self.environment
        with subprocess.Popen(
            words, cwd=self.root, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command with the copy's code."""
        return subprocess.run(
            list(map(str, command)),
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def make(self, goal: str) -> None:
        """Run one of the Makefile's goals with this environment."""
        tools = ("-o", ".venv/dev.stamp", "-o", ".venv/runtime.stamp", "-o", ".build/protos/stamp")
        made = self.run("make", *tools, f"BIN={_BIN}", goal)
        assert made.returncode == 0, made.stdout + made.stderr

    def failures(self, *tests: str) -> str:
        """Return which of some tests fail and why; empty if they pass."""
        quiet = ("-q", "-p", "no:cacheprovider", "--no-header", "--durations=0", "--tb=short")
        ran = self.run(sys.executable, "-m", "pytest", *quiet, *tests)
        # Uncut: where the variable CI is set, pytest does not shorten its summary, and the name of
        # a failed test may be far from the end.
        return "" if ran.returncode == 0 else ran.stdout + ran.stderr

    def check(self, *tests: str) -> None:
        failed = self.failures(*tests)
        assert not failed, failed

    def check_row(self, subject: str) -> None:
        """Check that each changed file is in a step of the row, and that no step is idle.

        A step that begins with "if" may be idle.
        """
        steps = steps_of(subject)
        strays = {
            path for path in self.changed if not any(is_in(path, places) for _, places in steps)
        }
        idle = [
            places
            for always, places in steps
            if always and not any(is_in(path, places) for path in self.changed)
        ]
        assert (strays, idle) == (set(), []), f"the row of {subject!r}"

    def check_style(self) -> None:
        """Check the form of the changed modules."""
        modules = [path for path in self.changed if path.endswith(".py")]
        for command in (["check"], ["format", "--check"]):
            ran = self.run(sys.executable, "-m", "ruff", *command, "--no-cache", *modules)
            assert ran.returncode == 0, ran.stdout + ran.stderr


def steps_of(subject: str) -> list[tuple[bool, tuple[str, ...]]]:
    """Return the steps of a row: whether every addition needs it, and where it may be made."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| {re.escape(subject)} \| (.+) \|$", page, re.MULTILINE)
    steps = [
        (
            not step.startswith("if "),
            tuple(name for name in re.findall(r"`([\w./]+)`", step) if is_place(name)),
        )
        for step in row.split("; ")
    ]
    return [step for step in steps if step[1]]


def is_place(name: str) -> bool:
    return any(True for _ in ROOT.glob(f"[!.]*/**/{name}")) or (ROOT / name).exists()


def is_in(path: str, step: tuple[str, ...]) -> bool:
    """Return whether a changed file is, or lies below, one of the places of a step."""
    return any(re.search(rf"(^|/){re.escape(name)}($|/)", path) for name in step)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    root = tmp_path / "checkout"
    shutil.copytree(ROOT, root, ignore=_LEFT_OUT)
    return Scratch(root)


def test_a_key_of_a_server_is_added_by_its_row(scratch: Scratch) -> None:
    schema = "tests/control_plane/config/schema/test_json_schema.py"
    checks = (
        f"{schema}::test_the_reference_is_written_from_the_keys",
        f"{schema}::test_each_key_has_a_sentence_and_a_reader_of_its_own_or_a_shape",
        f"{schema}::test_its_bounds_are_the_parsers",
        "tests/control_plane/config/test_change_effects.py::test_the_table_has_every_key_and_every_transport",
        "tests/kubernetes/test_chart.py::test_the_custom_resource_definitions_are_up_to_date",
    )
    scratch.add(
        "sdk/leaseway/spec/model.py",
        'description: str = setting("", Key(Text(4_096), "A sentence that lists show."))\n',
        """\
    patience: float = setting(5.0, Key(Duration(INSTANT, DAY), "How long people wait for it."))
""",
    )
    forgotten = scratch.failures(*checks)
    for noticed in ("reference_is_written", "has_every_key", "definitions_are_up_to_date"):
        assert re.search(rf"FAILED .*{noticed}", forgotten), forgotten

    changes = "tests/control_plane/config/changes"
    scratch.add(f"{changes}/values.yaml", "description: ['', other]\n", "patience: [5, 5s, 7]\n")
    scratch.with_protos()
    scratch.make("generate")
    written = scratch.run(sys.executable, "-m", "tests.control_plane.config.test_change_effects")
    assert written.returncode == 0, written.stderr
    scratch.check_row("a key of a server, or a key inside one")
    scratch.check_style()
    scratch.check(*checks)
    effects = (scratch.root / changes / "effects.txt").read_text(encoding="utf-8")
    assert 'patience: "5s"\n    nothing 54 of 54\npatience: 7\n    relists 54 of 54\n' in effects
    config = scratch.root / "mcp.yaml"
    config.write_text(
        "version: 1\nservers: {a: {transport: stdio, command: 'true', patience: 1m}}\n"
    )
    shown = scratch.run(sys.executable, "-m", "leaseway.cli", "config", "--config", config)
    assert re.search(r"patience\W+60", shown.stdout), shown.stdout + shown.stderr


@pytest.mark.soak
def test_a_kind_of_server_is_added_by_its_row(scratch: Scratch) -> None:
    effects = "tests/control_plane/config/test_change_effects.py"
    complete = "test_the_table_has_every_key_and_every_transport"
    checks = (
        f"{effects}::{complete}",
        "tests/control_plane/config/schema/test_json_schema.py",
        "tests/kubernetes/test_chart.py::test_the_custom_resource_definitions_are_up_to_date",
    )
    spec, workers = "leaseway.spec.kinds.greeter", "leaseway.data_plane.kinds.greeter.worker"
    readers = "leaseway.control_plane.config.schema.kinds.greeter"
    moved = {"greeters.kind": spec, "greeters.worker": workers, "greeters.readers": readers}

    def example(name: str) -> str:
        text = (ROOT / "tests/packages/greeters" / name).read_text(encoding="utf-8")
        return re.sub("|".join(map(re.escape, moved)), lambda found: moved[found[0]], text)

    scratch.create("sdk/leaseway/spec/kinds/greeter.py", example("kind.py"))
    table = "sdk/leaseway/spec/kinds/table.py"
    scratch.add(
        table,
        "import ContainerPart\n",
        "from leaseway.spec.kinds.greeter import GreeterPart\n",
    )
    scratch.add(table, "    BuiltinPart,\n", "    GreeterPart,\n")
    scratch.create(
        "control_plane/leaseway/control_plane/config/schema/kinds/greeter.py",
        example("readers.py"),
    )
    assert complete in scratch.failures(*checks)
    contracts = scratch.run(_BIN / "lint-imports", "--no-cache")
    assert "greeter" in contracts.stdout, contracts.stdout + contracts.stderr

    folder = "data_plane/leaseway/data_plane/kinds/greeter"
    scratch.create(f"{folder}/__init__.py", '"""Greeters, as a worker runs them."""\n')
    scratch.create(f"{folder}/worker.py", example("worker.py"))
    scratch.add("pyproject.toml", '  "builtin | container | http_api | process', " | greeter")
    scratch.add("pyproject.toml", 'layers = ["table | packages", "builtin', " | greeter")
    scratch.add("pyproject.toml", '  "container | http_api | python', " | greeter")
    scratch.add(
        "docs/kinds.md",
        "with Leaseway's own tools | [the kit](kit.md) |\n",
        "| greeter | `greeter` | an object that greets | this one |\n",
    )
    changes = "tests/control_plane/config/changes"
    scratch.append(f"{changes}/specs.yaml", "hallo: { transport: greeter, language: de }\n")
    scratch.append(
        f"{changes}/values.yaml",
        "language: [en]\nowner: ['', Ada]\nending: ['!']\nshy: [true]\n",
    )
    scratch.with_protos()
    scratch.make("generate")
    written = scratch.run(sys.executable, "-m", "tests.control_plane.config.test_change_effects")
    assert written.returncode == 0, written.stderr
    scratch.check_row("a kind of server")
    sorted_imports = ("check", "--select", "I", "--fix", "--no-cache")
    scratch.run(sys.executable, "-m", "ruff", *sorted_imports, f"{folder}/worker.py")
    scratch.check_style()
    scratch.check(*checks)
    contracts = scratch.run(_BIN / "lint-imports", "--no-cache")
    assert contracts.returncode == 0, contracts.stdout
    assert greeted(scratch) == "Hallo Bob & Ada!"


def greeted(scratch: Scratch) -> str:
    """Return what a greeter answers that the copy's `leaseway up` runs."""
    config = scratch.root / "mcp.yaml"
    entry = "transport: greeter, truely-stateless: true, language: de, owner: Ada, ending: '!'"
    config.write_text(f"version: 1\nservers: {{hallo: {{{entry}}}}}\n")
    address = f"127.0.0.1:{free_port()}"
    leaseway = (sys.executable, "-m", "leaseway.cli")
    with scratch.started(*leaseway, "up", "--config", config, "--listen", address) as system:
        assert system.stdout is not None
        assert system.stdout.readline().split() == ["ready", address]
        called = scratch.run(*leaseway, "call", "--address", address, "greet", "name=Bob")
        assert called.returncode == 0, called.stderr
        return called.stdout.strip()


def test_a_metric_is_added_by_its_row(scratch: Scratch) -> None:
    page = "test_the_operating_page_has_a_row_for_each_metric"
    checks = (f"tests/observability/test_expressions.py::{page}",)
    scratch.add(
        "data_plane/leaseway/data_plane/metrics/instruments.py",
        "        self._late_seen: dict[str, int] = {}\n",
        """\
        self._sighs = meter.counter(
            "leaseway.sighs", "{sigh}", "Sighs of a server.", Attr.SERVER
        )
""",
    )
    assert page in scratch.failures(*checks)

    scratch.add(
        "docs/operating.md",
        "| `leaseway.replies.late` | counter | `leaseway.server` | worker |\n",
        "| `leaseway.sighs` | counter | `leaseway.server` | worker |\n",
    )
    scratch.check_row("a metric")
    scratch.check(*checks)


def test_an_rpc_is_added_by_its_row(scratch: Scratch) -> None:
    scratch.with_protos()
    checks = (
        "tests/test_ungranted.py",
        "tests/identity/test_interceptor.py",
        "-k",
        "GetServerCount or row or reveals",
    )
    scratch.add(
        "protos/leaseway/v1/catalog.proto",
        "  rpc ListServers(ListServersRequest) returns (ListServersResponse);\n",
        """\
  // Counts the servers that the caller sees.
  rpc GetServerCount(GetServerCountRequest) returns (GetServerCountResponse);
""",
    )
    scratch.append(
        "protos/leaseway/v1/catalog.proto",
        """\
// Whose servers are counted.
message GetServerCountRequest {
  // The caller's package and agent.
  ClientInfo client = 1;
  // The tenant. Empty means `default`.
  string tenant = 2;
}

// How many servers a tenant has.
message GetServerCountResponse {
  // The number of servers.
  uint32 count = 1;
}
""",
    )
    assert scratch.run("tools/check_protos.sh").returncode != 0
    scratch.make("generate")
    forgotten = scratch.failures(*checks)
    assert "GetServerCount" in forgotten

    scratch.add(
        "sdk/leaseway/identity/rules.py",
        '        "CatalogService/ListServers": Rule(_LISTS, "own"),\n',
        '        "CatalogService/GetServerCount": Rule(_LISTS, "own"),\n',
    )
    assert "GetServerCount" in scratch.failures(*checks), "an RPC without a row is not noticed"
    scratch.add(
        "control_plane/leaseway/control_plane/services/catalog.py",
        "        self._watchers = watchers()\n",
        """\

    async def GetServerCount(  # noqa: N802
        self, request: catalog_pb2.GetServerCountRequest, context: _Context
    ) -> catalog_pb2.GetServerCountResponse:
        \"\"\"Count the servers of a tenant.\"\"\"
        await check_client(request.client, context, request.tenant)
        servers = self._plane.state.servers.variants_of(tenant_of(request.tenant))
        return catalog_pb2.GetServerCountResponse(count=len(servers))
""",
    )
    scratch.add(
        "tests/test_ungranted.py",
        "lambda _: catalog_pb2.ListServersRequest(tenant=POOR),\n",
        """\
    "CatalogService/GetServerCount": lambda _: catalog_pb2.GetServerCountRequest(tenant=POOR),
""",
    )
    scratch.check_row("an RPC")
    scratch.check_style()
    scratch.check(*checks)
    checked = scratch.run("tools/check_protos.sh")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.soak
def test_an_error_reason_is_added_by_its_row(scratch: Scratch) -> None:
    explained = "test_each_reason_of_an_error_is_in_the_runbook_and_the_design"
    checks = (
        "tests/sdk/test_errors.py",
        "tests/sdk/test_public_api.py::test_the_public_names_are_these",
        "tests/wire/test_status.py",
        f"tests/wire/test_states.py::{explained}",
        "tests/runbook/test_runbook.py",
    )
    scratch.add(
        "sdk/leaseway/wire/errors.py",
        '    CAPACITY = "CAPACITY"\n',
        '    SERVER_ASLEEP = "SERVER_ASLEEP"\n',
    )
    forgotten = scratch.failures(*checks)
    for noticed in (
        "test_each_reason_has_its_own_class",
        "test_status.py",
        explained,
        "test_every_reason_of_the_code_has_an_entry",
    ):
        assert re.search(rf"FAILED .*{noticed}", forgotten), forgotten

    scratch.add(
        "sdk/leaseway/wire/status.py",
        "    Reason.CAPACITY: _Code.RESOURCE_EXHAUSTED,\n",
        "    Reason.SERVER_ASLEEP: _Code.UNAVAILABLE,\n",
    )
    scratch.add(
        "sdk/leaseway/sdk/errors.py",
        "no worker has capacity for another lease; .retry_after\n",
        "      ├ ServerAsleep              the server rests\n",
    )
    scratch.append(
        "sdk/leaseway/sdk/errors.py",
        """\


class ServerAsleep(LeasewayError, reason=Reason.SERVER_ASLEEP):
    \"\"\"The server rests; try again in the morning.\"\"\"
""",
    )
    assert "test_each_class_is_public" in scratch.failures("tests/sdk/test_errors.py")
    package = "sdk/leaseway/sdk/__init__.py"
    scratch.add(package, "    ServerError,\n", "    ServerAsleep,\n")
    scratch.add(package, '    "ServerError",\n', '    "ServerAsleep",\n')
    scratch.add("tests/sdk/test_public_api.py", " ResultTypeError", "\nServerAsleep")
    scratch.add(
        "docs/design.md",
        "| RESOURCE_EXHAUSTED | RATE_LIMITED; CAPACITY |\n",
        "| the server rests | UNAVAILABLE | SERVER_ASLEEP |\n",
    )
    scratch.append(
        "sdk/leaseway/runbook/entries.toml",
        """\
[group.reasons.SERVER_ASLEEP]
cause = "The server rests."
look = "The time of day."
do = "Wait until the morning."
""",
    )
    scratch.make("runbook")
    scratch.check_row("an error reason")
    scratch.run(sys.executable, "-m", "ruff", "check", "--fix", "--no-cache", package)
    scratch.check_style()
    scratch.check(*checks)
