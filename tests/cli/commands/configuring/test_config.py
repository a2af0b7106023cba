"""`config`, `diff`, `import` and `check` with layers and files of other clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from tests.cli.memory import answering

from leaseway.cli.commands.configuring import config as configuration
from leaseway.cli.commands.configuring.config_diff import changes_to
from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.layers.document import Layer
from leaseway.sdk import ControlPlaneUnavailable, ServerInfo
from leaseway.wire.messages.states import ServerState

Run = Callable[..., Result]

CORPUS = Path(__file__).resolve().parents[3] / "corpus"
SYSTEM = """\
version: 1
servers:
  kept: { transport: stdio, command: x }
  named: { transport: stdio, command: x, description: new }
  launched: { transport: stdio, command: y }
  added: { transport: stdio, command: x }
  bad: { transport: stdio, comand: x }
"""
DOMAIN = "version: 1\nservers:\n  kept: { enabled: false }\n  named: { call_timeout: soon }\n"


def info(server_id: str, command: str = "x", tenant: str = "") -> ServerInfo:
    text = f"version: 1\nservers: {{{server_id}: {{transport: stdio, command: {command}}}}}\n"
    (spec,) = parse_config([Layer("native", "a.yaml", text)]).servers.values()
    return ServerInfo(
        id=server_id,
        tenant=tenant,
        state=ServerState.READY,
        transport="stdio",
        shared=False,
        tool_count=1,
        description="",
        problem="",
        protocol_version="",
        launch_hash=spec.launch_hash,
        exposure_hash=spec.exposure_hash,
        workers=(),
        instances=(),
    )


def test_each_variant_has_the_change_that_a_reload_makes() -> None:
    layers = [Layer("system", "s.yaml", SYSTEM), Layer("domain", "d.yaml", DOMAIN, "acme")]
    running = [info(name) for name in ("kept", "named", "launched", "bad", "gone")]
    changes = changes_to([*running, info("named", tenant="acme")], parse_config(layers))
    assert {(change.server, change.tenant): change.change for change in changes} == {
        ("kept", ""): "same",
        ("kept", "acme"): "hidden",
        ("named", ""): "exposure",
        ("named", "acme"): "rejected",
        ("launched", ""): "launch",
        ("added", ""): "added",
        ("bad", ""): "rejected",
        ("gone", ""): "removed",
    }
    assert all(bool(change.effect) == (change.change != "same") for change in changes)


def test_a_loaded_launch_that_failed_to_start_is_no_change() -> None:
    parsed = parse_config([Layer("native", "a.yaml", SYSTEM)])
    wanted = info("launched", "y").launch_hash
    serving = replace(info("launched"), state=ServerState.DEGRADED, wanted_launch_hash=wanted)
    (launched,) = [
        change for change in changes_to([serving], parsed) if change.server == "launched"
    ]
    assert launched.change == "same"
    undone = parse_config([Layer("native", "a.yaml", SYSTEM.replace("command: y", "command: x"))])
    (launched,) = [
        change for change in changes_to([serving], undone) if change.server == "launched"
    ]
    assert launched.change == "exposure", "what is tried is taken back; no process is touched"


def test_a_tenant_without_its_variant_uses_the_common_variant() -> None:
    parsed = parse_config([Layer("system", "s.yaml", SYSTEM)])
    changes = changes_to([info("kept", tenant="acme"), info("gone", tenant="acme")], parsed)
    effects = {change.server: change.effect for change in changes if change.tenant}
    assert "common variant" in effects["kept"]
    assert "rejected at once" in effects["gone"]


def test_an_entry_with_an_error_keeps_a_running_server() -> None:
    layers = [Layer("system", "s.yaml", SYSTEM), Layer("domain", "d.yaml", DOMAIN, "acme")]
    parsed = parse_config(layers)
    (bad,) = [change for change in changes_to([info("bad")], parsed) if change.server == "bad"]
    assert "stays as it is" in bad.effect
    effects = [change.effect for change in changes_to([], parsed) if change.change == "rejected"]
    assert len(effects) == 2
    assert all("does not run" in effect for effect in effects)


@pytest.mark.parametrize("json_too", [False, True])
def test_diff_with_an_error_in_an_entry_gives_1_and_prints_the_rows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, json_too: bool
) -> None:
    monkeypatch.setattr(configuration, "with_client", lambda *_: [info("kept")])
    path = tmp_path / "mcp.yaml"
    path.write_text(SYSTEM)
    done = run("diff", str(path), *(["--json"] if json_too else []))
    assert done.exit_code == 1
    assert "rejected" in done.stdout
    assert "comand" in done.stderr
    path.write_text(SYSTEM.replace("comand", "command"))
    assert run("diff", str(path)).exit_code == 2


def test_diff_of_a_broken_file_gives_1_and_of_an_unreachable_system_3(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mcp.yaml"
    missing = run("diff", str(path))
    assert (missing.exit_code, "There is no file" in missing.stderr) == (1, True)
    path.write_text("{")
    broken = run("diff", str(path))
    assert broken.exit_code == 1
    assert "would change nothing" in broken.stderr
    path.write_text("version: 1\nservers: {}\n")
    answering(monkeypatch).error = ControlPlaneUnavailable("Nobody answers.")
    assert run("diff", str(path)).exit_code == 3


def test_config_prints_the_source_of_each_value(run: Run, tmp_path: Path) -> None:
    system, domain = tmp_path / "s.yaml", tmp_path / "d.yaml"
    system.write_text(
        SYSTEM.replace("comand", "command").replace("command: x", "command: x, env: { A: a }", 1)
    )
    domain.write_text("version: 1\nservers:\n  kept: { env: { A: b } }\n")
    words = ("--config", f"system={system}", "--config", f"domain=acme:{domain}")
    done = run("config", *words)
    assert done.exit_code == 0
    assert f"kept      acme    env.A        b      domain  {domain}:3" in done.stdout
    values = json.loads(run("config", *words, "--json").stdout)
    (value,) = [
        each_value for each_value in values if each_value["key"] == "env.A" and each_value["tenant"]
    ]
    assert value == {
        "server": "kept",
        "tenant": "acme",
        "key": "env.A",
        "value": "b",
        "layer": "domain",
        "file": str(domain),
        "line": 3,
    }


def test_config_of_an_entry_with_an_error_prints_the_rest_and_gives_1(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text(SYSTEM)
    done = run("config", "--config", str(path))
    assert done.exit_code == 1
    assert "comand" in done.stderr
    assert "kept" in done.stdout


def test_config_of_a_broken_file_prints_the_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_text("servers: {}\n")
    done = run("config", "--config", str(path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "'version' is missing" in done.stderr


@pytest.mark.parametrize("command", ["config", "check", "up", "control-plane"])
def test_conflicting_layers_are_a_usage_error(run: Run, command: str) -> None:
    option = [] if command == "check" else ["--config"]
    done = run(command, *option, "domain=acme:nowhere.yaml")
    assert done.exit_code == 2
    assert "needs a system layer" in done.stderr


def test_check_accepts_layers_and_files_of_other_clients(run: Run) -> None:
    system, tenants = CORPUS / "layers" / "system.yaml", CORPUS / "layers" / "tenants"
    done = run("check", f"system={system}", f"domain={tenants}")
    assert done.exit_code == 1
    assert "[UNDECLARED_SERVER]" in done.stdout
    done = run("check", str(CORPUS / "vscode" / "mcp.json"), "--json")
    reasons = {issue["reason"] for issue in json.loads(done.stdout)}
    assert "CLIENT_INPUT" in reasons


def test_check_prints_the_schema(run: Run) -> None:
    done = run("check", "--schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["required"] == ["version", "servers"]


def test_import_writes_a_valid_native_file(run: Run, tmp_path: Path) -> None:
    source = str(CORPUS / "cursor" / "mcp.json")
    printed = run("import", source)
    assert printed.exit_code == 0
    assert list(yaml.safe_load(printed.stdout)["servers"]) == ["search", "smile"]
    out = tmp_path / ".minds" / "mcp.yaml"
    assert run("import", source, "--out", str(out)).exit_code == 0
    assert out.read_text() == printed.stdout
    assert run("check", str(out)).exit_code == 0
    again = run("import", source, "--out", str(out))
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_import_of_a_missing_file_is_a_usage_error(run: Run, tmp_path: Path) -> None:
    assert run("import", str(tmp_path / "none.json")).exit_code == 2


def test_import_of_a_document_that_is_too_large_for_a_file_says_what_to_do(
    run: Run, tmp_path: Path
) -> None:
    source, out = tmp_path / "api.json", tmp_path / "mcp.yaml"
    large = {"type": "string", "enum": [f"{number:02000}" for number in range(15)]}
    shared = {"parameters": [{"name": "q", "in": "query", "schema": large}], "get": {}}
    paths = {f"/{number}": {"$ref": "#/components/pathItems/all"} for number in range(160)}
    document = {"openapi": "3.1.0", "paths": paths, "components": {"pathItems": {"all": shared}}}
    source.write_text(json.dumps(document))
    done = run("import", "openapi", str(source), "--out", str(out))
    assert done.exit_code == 1
    assert "larger than 4 MiB. Select some with --operation" in done.stderr
    assert not out.exists()
