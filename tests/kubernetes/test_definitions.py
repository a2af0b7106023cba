"""Validation by the API: schema, defaults and rules of the definitions, without a webhook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import ROOT
from tests.kubernetes.cluster import ApiRefused, Cluster

from leaseway.control_plane.config.exporting import kubernetes_text

_STDIO = {"transport": "stdio", "command": "python"}
_HTTP = {"transport": "streamable_http", "url": "http://127.0.0.1:3000/mcp"}


@pytest.mark.parametrize(
    "spec",
    [
        _STDIO,
        _HTTP,
        {**_STDIO, "env": {"A": "b", "TOKEN": {"env": "HOST_TOKEN"}, "CA": {"file": "/ca"}}},
        {**_STDIO, "sandbox": True, "limits": {"memory": "512MiB", "cpu": 0.5}},
        {**_STDIO, "sandbox": {"network": False}, "limits": {"memory": 1_000_000}},
        {"transport": "stdio", "image": "a:1", "podTemplate": {"spec": {"nodeName": "n"}}},
        {**_STDIO, "call_timeout": "1m30s", "idle_timeout": 30},
        {**_STDIO, "transform": [{"prefix": "a_"}, {"prefix": {"remove": "x"}}, {"suffix": "_b"}]},
        {
            **_STDIO,
            "transform": [{"replace": {"remove": "查询 (now)", "add": "query"}}],
            "tools": {"whitelist": ["Get Weather", "db:*"]},
            "risk": {"Get Weather": "read_only"},
            "quota": {"tools": {"查询": {"calls": "3/m"}}},
        },
        {**_HTTP, "tools": {"whitelist": ["ticket_*"]}, "headers": {"A": {"secret": "a"}}},
    ],
)
def test_entries_of_the_native_file_are_accepted(
    cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    kept = cluster.apply("MCPServer", "one", spec, namespace=namespace)["spec"]

    assert kept == {"enabled": True, "truely-stateless": False, **spec}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/examples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_servers_of_a_file_are_kept_whole_as_resources(
    cluster: Cluster, namespace: str, path: Path
) -> None:
    written, _ = kubernetes_text(path.read_text(), str(path))
    servers = [found for found in yaml.safe_load_all(written) if found]

    assert servers
    for found in servers:
        name, spec = found["metadata"]["name"], found["spec"]
        kept = cluster.apply("MCPServer", name, spec, namespace=namespace)["spec"]
        assert kept == {"enabled": True, "truely-stateless": False, **spec}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"transport": "stdio"}, "'stdio' needs 'command' or 'image'"),
        ({"transport": "sse"}, "'sse' needs 'url'"),
        ({**_HTTP, "command": "python"}, "'command' is not for"),
        ({**_STDIO, "url": "http://a"}, "'url' is not for"),
        ({**_STDIO, "start": "soon"}, 'Unsupported value: "soon"'),
        ({**_STDIO, "warm": -1}, "should be greater than or equal to 0"),
        ({**_STDIO, "call_timeout": "fast"}, "spec.call_timeout"),
        ({**_STDIO, "transform": [{"prefix": "a", "suffix": "b"}]}, "at most 1"),
        ({"command": "python"}, "spec.transport: Required value"),
    ],
)
def test_invalid_resources_are_rejected_with_a_message(
    cluster: Cluster, namespace: str, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(ApiRefused) as refused:
        cluster.apply("MCPServer", "one", spec, namespace=namespace)

    assert refused.value.code == 422
    assert said in str(refused.value)


def test_a_name_that_is_not_a_server_id_is_rejected(cluster: Cluster, namespace: str) -> None:
    for name in ("a.b", "a" * 65):
        with pytest.raises(ApiRefused, match="the name is an id"):
            cluster.apply("MCPServer", name, _STDIO, namespace=namespace)


def test_a_tenant_sets_only_fields_that_tenants_may_override(
    cluster: Cluster, namespace: str
) -> None:
    spec = {"servers": {"files": {"enabled": False}, "search": {"call_timeout": "5s", "warm": 1}}}

    assert cluster.apply("MCPTenant", "acme", spec, namespace=namespace)["spec"] == spec
    wrong = {"servers": {"files": {"transport": "sse", "domain_may": ["command"]}}}
    kept = cluster.apply("MCPTenant", "other", wrong, namespace=namespace)
    assert kept["spec"] == {"servers": {"files": {}}}  # the API drops unknown fields


def test_a_new_resource_is_in_progress_until_a_control_plane_has_seen_it(
    cluster: Cluster, namespace: str
) -> None:
    # Flux and others that wait compare the two, and take a resource without a status for done.
    for kind, spec in (("MCPServer", _STDIO), ("MCPTenant", {"servers": {}})):
        made = cluster.apply(kind, "one", spec, namespace=namespace)
        assert made["status"] == {"observedGeneration": -1}
        assert made["metadata"]["generation"] == 1


def test_status_and_specification_are_written_separately(cluster: Cluster, namespace: str) -> None:
    cluster.apply("MCPServer", "one", _STDIO, namespace=namespace)
    path = f"/apis/leaseway.dev/v1alpha1/namespaces/{namespace}/mcpservers/one"
    found = cluster.request("GET", path)

    written = {"tools": 3, "observedGeneration": 1}
    cluster.request("PUT", f"{path}/status", {**found, "status": written})

    after = cluster.request("GET", path)
    assert after["status"] == written
    assert after["metadata"]["generation"] == found["metadata"]["generation"]
