"""A file of another client, written as a native one."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from leaseway.control_plane.config.exporting import kubernetes_text, native_text
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.filters.names import NameFilter

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
FILES = sorted(
    path
    for path in CORPUS.rglob("*")
    if path.suffix in (".json", ".yaml") and path.parent.name != "tenants"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORPUS)))
def test_the_native_file_gives_the_same_servers_without_errors(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    written, parsed = native_text(text, str(path))
    again = parse_text(written, "out.yaml")
    assert again.servers == parsed.servers == parse_text(text, str(path)).servers
    assert [issue for issue in again.issues if issue.severity == "error"] == []


def test_what_is_not_taken_over_is_a_comment() -> None:
    path = CORPUS / "vscode" / "mcp.json"
    written, parsed = native_text(path.read_text(encoding="utf-8"), str(path))
    assert parsed.rejected == {"tracker"}
    assert "# warning, line 3: The file has inputs" in written
    assert "# error, line 10: 'servers.tracker.headers.Authorization' needs" in written
    assert "  # tracker:\n" in written
    assert list(yaml.safe_load(written)["servers"]) == ["local", "events"]


def test_a_disabled_server_stays_disabled() -> None:
    text = '{"mcpServers": {"a": {"command": "x", "disabled": true}}}'
    written, _ = native_text(text, "mcp.json")
    assert yaml.safe_load(written)["servers"]["a"]["enabled"] is False


def test_defaults_are_kept() -> None:
    text = (
        "version: 1\ndefaults: {transform: [{prefix: {remove: a, add: '{server}_'}}]}\n"
        "servers: {b: {transport: stdio, command: x}}\n"
    )
    written, parsed = native_text(text, "mcp.yaml")
    assert parse_text(written, "out.yaml").servers == parsed.servers


def test_a_server_keeps_names_of_its_own_that_its_file_implies() -> None:
    servers = {"a": {"command": "x", "disabledTools": ["rm_all"]}, "b": {"command": "y"}}
    text = json.dumps({"mcpServers": servers})
    written, parsed = native_text(text, "mcp.json")
    again = parse_text(written, "out.yaml").servers
    assert again.keys() == parsed.servers.keys()
    for key, spec in parsed.servers.items():
        assert replace(again[key], tools=NameFilter()) == replace(spec, tools=NameFilter())
        for tool in ("rm_all", "rm.all", "rm/all", "ls"):  # names that the client writes alike
            assert again[key].tools.passes(tool) == spec.tools.passes(tool)


def test_a_broken_file_gives_nothing() -> None:
    written, parsed = native_text("{", "mcp.json")
    assert (written, parsed.broken) == ("", True)


@pytest.mark.parametrize("convert", [native_text, kubernetes_text])
def test_grants_that_are_not_converted_are_an_error_and_a_comment(
    convert: Callable[[str, str], tuple[str, ParsedConfig]],
) -> None:
    text = (
        "version: 1\n"
        "servers: { a: { transport: stdio, command: x } }\n"
        "tenants: { acme: { servers: [a] } }\n"
    )
    written, parsed = convert(text, "mcp.yaml")
    (issue,) = parsed.issues
    assert (issue.line, issue.severity, issue.reason) == (3, "error", "KEY_NOT_TAKEN_OVER")
    assert f"# error, line 3: {issue.message}\n" in written
