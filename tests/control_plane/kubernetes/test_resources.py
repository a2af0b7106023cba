"""Custom resources as documents of the native format."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from leaseway.control_plane.config.exporting import kubernetes_text
from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.kubernetes.resources import (
    MAX_RESOURCES,
    CustomResource,
    parse_resource,
    resource_text,
    within_limit,
)
from leaseway.control_plane.config.layers.document import Layer
from leaseway.control_plane.config.layers.sources import resource_source
from leaseway.control_plane.config.loading import LeftOut, parse_contents

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _server(name: str, spec: Any) -> CustomResource:
    metadata = {"name": name, "namespace": "apps", "uid": "u", "generation": 2}
    return parse_resource("MCPServer", {"metadata": metadata, "spec": spec})


def _layer(resource: CustomResource) -> Layer:
    return Layer("system", str(resource.path), resource_text(resource))


def test_a_server_becomes_a_document_with_one_entry() -> None:
    spec = {"transport": "stdio", "command": "python", "env": {"A": {"env": "B"}}}

    written = json.loads(resource_text(_server("time", spec)))

    assert written == {"version": 1, "servers": {"time": spec}}


def test_a_tenant_becomes_a_document_with_its_overrides() -> None:
    servers = {"files": {"enabled": False}}
    found = {"metadata": {"name": "acme"}, "spec": {"servers": servers}}

    written = json.loads(resource_text(parse_resource("MCPTenant", found)))

    assert written == {"version": 1, "servers": servers}


def test_an_issue_names_the_resource() -> None:
    parsed = parse_config([_layer(_server("time", {"transport": "stdio", "comand": "x"}))])

    assert not parsed.broken
    assert {issue.file for issue in parsed.issues} == {"kubernetes/apps/mcpserver/time"}
    assert any("'comand'" in issue.message for issue in parsed.issues)


@given(_ANYTHING)
def test_no_specification_breaks_the_document(found: Any) -> None:
    """A broken document would reject all other resources, too."""
    parsed = parse_config([_layer(_server("time", {"transport": "stdio", "env": found}))])

    assert not parsed.broken


def test_one_that_nests_too_deep_is_an_error_of_its_own() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": deep}

    parsed = parse_config([_layer(_server("a", {"transport": "stdio", "env": {"A": deep}}))])

    assert not parsed.broken
    assert parsed.rejected == {"a"}


def test_a_new_resource_never_takes_the_place_of_one_that_is_read() -> None:
    def created(name: str, second: int) -> CustomResource:
        time = f"2026-01-01T00:00:{second:02}Z"
        return parse_resource(
            "MCPServer", {"metadata": {"name": name, "creationTimestamp": time}, "spec": {}}
        )

    old = [created(f"s{number:05}", 1) for number in reversed(range(MAX_RESOURCES))]

    kept, others = within_limit([created("a", 2), *old])

    assert kept == old[::-1]
    assert [resource.name for resource in others] == ["a"]


def test_resources_beyond_the_limit_are_one_issue_and_reject_no_others() -> None:
    time = _server("time", {"transport": "stdio", "command": "python"})
    others = {resource_source(_server(name, {})): LeftOut() for name in ("a", "b")}

    parsed = parse_contents({resource_source(time): resource_text(time), **others})

    assert parsed.declared == {"servers.time"}
    assert not parsed.broken
    [issue] = parsed.issues
    assert issue.message.startswith("2 resources of the kind MCPServer are ignored")
    assert issue.file == "kubernetes/apps"


def test_a_change_of_status_alone_is_no_change() -> None:
    found = {"metadata": {"name": "a", "generation": 1}, "spec": {}}

    assert parse_resource("MCPServer", found) == parse_resource(
        "MCPServer", {**found, "status": {"tools": 3}}
    )


def test_times_with_fractions_become_texts_which_a_resource_can_have() -> None:
    file = """
version: 1
servers:
  time:
    { transport: stdio, command: python, startup_timeout: 0.5, call_timeout: 30.0,
      idle_timeout: 30, restart: { initial: 0.25 }, limits: { cpu: 0.5 } }
"""

    written, _ = kubernetes_text(file, "mcp.yaml")

    spec = yaml.safe_load(written)["spec"]
    assert (spec["startup_timeout"], spec["call_timeout"]) == ("0.5s", "30s")
    assert (spec["idle_timeout"], spec["restart"]) == (30, {"initial": "0.25s"})
    assert spec["limits"] == {"cpu": 0.5}


def test_a_file_becomes_resources_and_what_cannot_be_one_a_comment() -> None:
    file = """
version: 1
defaults: { transform: [ { prefix: 'x_' } ] }
servers:
  time: { transport: stdio, command: python }
  Big_One: { transport: stdio, command: python }
  wrong: { transport: stdio }
"""

    written, parsed = kubernetes_text(file, "mcp.yaml")

    documents = [document for document in yaml.safe_load_all(written) if document]
    assert [document["metadata"]["name"] for document in documents] == ["time"]
    assert documents[0]["kind"] == "MCPServer"
    assert documents[0]["spec"]["transform"] == [{"prefix": "x_"}]
    assert "The id 'Big_One' can't be the name of a" in written
    assert parsed.rejected == {"wrong"}
