"""Servers in places of a file where no client looks, and files that are no client's."""

import json
from typing import Any

import pytest

from leaseway.control_plane.config.formats.detection import parse_config, parse_text
from leaseway.control_plane.config.layers.document import Layer
from leaseway.spec.model import VariantKey

RUN = {"command": "x"}
DESKTOP = "claude_desktop_config.json"


@pytest.mark.parametrize(
    ("name", "root", "place"),
    [
        (DESKTOP, {"mcpservers": {"s": RUN}}, "mcpservers"),
        (DESKTOP, {"mcpServer": {"s": RUN}, "theme": "dark"}, "mcpServer"),
        ("mcp.json", {"mcp": [{"name": "s"} | RUN]}, "mcp"),
        ("settings.json", {"augment": {"mcpServers": [{"name": "s"} | RUN]}}, "augment.mcpServers"),
    ],
)
def test_servers_where_their_client_does_not_look_are_named(
    name: str, root: dict[str, Any], place: str
) -> None:
    parsed = parse_text(json.dumps(root), name)
    assert parsed.broken
    (issue,) = parsed.issues
    assert f"servers under {place!r}," in issue.message


@pytest.mark.parametrize(
    "root",
    [
        {"disabledMcpServers": ["s"]},
        {"mcpServersSeen": {"s": 3}},
        {"a": {"b": {"c": {"d": {"e": {"mcpServers": {"s": RUN}}}}}}},
        {"history": [{"mcpServers": {"s": RUN}}]},
    ],
)
def test_what_only_has_a_similar_name_or_lies_deep_is_the_clients_business(
    root: dict[str, Any],
) -> None:
    parsed = parse_text(json.dumps(root), ".kode.json")
    assert (parsed.servers, parsed.issues, parsed.broken) == ({}, (), False)


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ({"mcp": {"servers": {"s": RUN}, "stdio_servers": [{"name": "t"} | RUN]}},
         "mcp.stdio_servers"),
        ({"mcpServers": {"s": RUN}, "mcp_servers": [{"name": "t"} | RUN]}, "mcp_servers"),
        ({"servers": [], "sse_servers": [{"url": "http://a/sse"}]}, "sse_servers"),
    ],
)  # fmt: skip
def test_servers_beside_those_that_are_read_are_named(root: dict[str, Any], place: str) -> None:
    warned = parse_text(json.dumps(root), "mcp.json").issues
    assert [f"under {place!r}, which are not used" in issue.message for issue in warned] == [True]


def test_a_layer_above_others_may_keep_servers_in_other_places() -> None:
    layers = [
        Layer("system", "system.json", json.dumps({"mcpServers": {"s": RUN}})),
        Layer("session", "settings.json", json.dumps({"permissions": {}, "x": {"mcpServers": {
            "t": RUN}}})),
    ]  # fmt: skip
    assert list(parse_config(layers).servers) == [VariantKey("s")]


@pytest.mark.parametrize(
    ("name", "root", "place"),
    [
        ("a.code-workspace", {"settings": {"mcp": {"servers": {"s": RUN}}}},
         "under 'settings.mcp.servers'"),
        ("servers.json", {"s": RUN, "t": {"url": "http://a/mcp"}}, "at its root"),
    ],
)  # fmt: skip
def test_a_file_of_no_client_that_has_servers_says_where_they_belong(
    name: str, root: dict[str, Any], place: str
) -> None:
    (issue,) = parse_text(json.dumps(root), name).issues
    assert place in issue.message
    assert "under 'mcpServers'" in issue.message


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\nname: docker-mcp\nregistry: { fetch: { image: mcp/fetch } }\n",
        '{"name": "x", "version": "1.0.0", "scripts": {}}',
    ],
)
def test_a_file_with_the_version_of_something_else_is_called_no_configuration(text: str) -> None:
    (issue,) = parse_text(text, "a.yaml").issues
    assert issue.message.startswith("This is not a configuration")


def test_a_comment_among_servers_is_no_server() -> None:
    root = {"mcpServers": {"_comment": "mine", "//": "off: t", "s": RUN}}
    parsed = parse_text(json.dumps(root), "mcp.json")
    assert (list(parsed.servers), parsed.issues) == ([VariantKey("s")], ())


def test_an_empty_list_of_inputs_is_no_warning() -> None:
    assert parse_text(json.dumps({"inputs": [], "servers": {"s": RUN}}), "mcp.json").issues == ()


def test_a_resource_of_kubernetes_is_called_one() -> None:
    (issue,) = parse_text("apiVersion: leaseway.dev/v1\nkind: MCPServer\n", "a.yaml").issues
    assert "kubectl apply" in issue.message


@pytest.mark.parametrize(
    ("tools", "servers"),
    [
        (["*"], {"a", "b"}),
        (["fs_read", "@a", "@a/t"], {"a"}),
        (["@builtin"], set()),
        (["@a/t"], None),
        (["fs_read"], None),
        ([], None),
    ],
)
def test_an_agents_tools_name_the_servers_that_it_may_use(
    tools: list[str], servers: set[str] | None
) -> None:
    parsed = parse_text(json.dumps({"mcpServers": {"a": RUN, "b": RUN}, "tools": tools}), "q.json")
    assert {key.server_id for key in parsed.servers} == (servers or set())
    assert parsed.rejected == (set() if servers is not None else {"a", "b"})
