"""The chart against a real API: it is accepted, and its Role has exactly the necessary rights."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.system import eventually, kit
from tests.kubernetes.cluster import CHART, TOOLS, ApiRefused, Cluster, resources
from tests.kubernetes.processes import Planes
from tests.kubernetes.rights import grant, without

from leaseway.sdk import AsyncClient

_LEASE = "leaseway-control-plane"
_ISSUER = ("name", "kind", "group")
_EVERY_POD = (
    "--set=front.enabled=true",
    "--set=front.service.type=LoadBalancer",
    *(
        f"--set-json={component}.podSpec="
        '{"priorityClassName":"high","dnsConfig":{"options":[{"name":"ndots","value":"2"}]},'
        '"initContainers":[{"name":"wait","image":"wait:1"}]}'
        for component in ("controlPlane", "workerDefaults", "front")
    ),
    '--set-json=networkPolicy.frontClients=[{"ipBlock":{"cidr":"10.1.0.0/16"}}]',
    f'--set-json=workerDefaults.secretFiles=["token","tls.example.com-{"x" * 60}"]',
)
_TLS = (
    "--set=front.enabled=true",
    "--set=tls.certManager.enabled=true",
    "--set=tls.certManager.issuerRef.name=ca",
)


def role(helm: str, namespace: str) -> list[dict[str, Any]]:
    """Return the rules of the chart's Role."""
    made = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--namespace", namespace],
        check=True,
        capture_output=True,
        text=True,
    )
    found = next(
        condition for condition in yaml.safe_load_all(made.stdout) if condition["kind"] == "Role"
    )
    return list(found["rules"])


def install_certificates(cluster: Cluster) -> None:
    """Install the part of cert-manager's definition that the chart uses."""
    text = {"type": "string"}
    texts = {"type": "array", "items": text}
    issuer = {"type": "object", "required": ["name"], "properties": dict.fromkeys(_ISSUER, text)}
    key = {
        "type": "object",
        "properties": {
            "algorithm": {"type": "string", "enum": ["RSA", "ECDSA", "Ed25519"]},
            "rotationPolicy": {"type": "string", "enum": ["Never", "Always"]},
            "size": {"type": "integer"},
        },
    }
    spec = {
        "type": "object",
        "required": ["issuerRef", "secretName"],
        "properties": {
            **dict.fromkeys(("secretName", "commonName", "duration", "renewBefore"), text),
            **dict.fromkeys(("dnsNames", "usages"), texts),
            "issuerRef": issuer,
            "privateKey": key,
        },
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "certificates.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"kind": "Certificate", "plural": "certificates"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.request("POST", path, definition)


async def test_the_api_accepts_the_chart_with_tls_by_cert_manager(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path
) -> None:
    install_certificates(cluster)
    certificates = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates"

    async def served() -> bool:
        try:
            await asyncio.to_thread(cluster.request, "GET", certificates)
        except ApiRefused:
            return False
        return True

    await eventually(served)
    made = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--namespace", namespace, *_TLS],
        check=True,
        capture_output=True,
        text=True,
    )
    kubectl = shutil.which("kubectl") or str(TOOLS / "kubectl")
    apply = [kubectl, "apply", "--validate=strict", "-n", namespace, "-f", "-"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig()),
        "HOME": str(tmp_path),  # the cache of kubectl
    }

    outcome = await asyncio.to_thread(
        lambda: subprocess.run(
            apply, input=made.stdout, check=False, capture_output=True, text=True, env=environment
        )
    )

    assert outcome.returncode == 0, outcome.stderr
    assert "Warning" not in outcome.stderr
    (found,) = cluster.request("GET", certificates)["items"]
    assert found["spec"]["secretName"] == "leaseway-tls"


def test_helm_installs_the_chart_on_the_server(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path
) -> None:
    install = [helm, "install", "leaseway", str(CHART), "--namespace", namespace, "--skip-crds"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig()), "HOME": str(tmp_path)}

    outcome = subprocess.run(
        [*install, "--dry-run=server", "--set=front.enabled=true"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )

    assert outcome.returncode == 0, outcome.stderr
    assert "kind: Deployment" in outcome.stdout


def apply(
    cluster: Cluster, namespace: str, text: str, home: Path
) -> subprocess.CompletedProcess[str]:
    """Return what the API says about these objects, which it does not create."""
    kubectl = shutil.which("kubectl") or str(TOOLS / "kubectl")
    return subprocess.run(
        [kubectl, "apply", "--dry-run=server", "--validate=strict", "-n", namespace, "-f", "-"],
        input=text,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig()), "HOME": str(home)},
    )


@pytest.mark.parametrize("options", [(), _EVERY_POD], ids=["as it is", "with values of pods"])
def test_the_api_accepts_the_chart_without_a_warning(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    made = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--namespace", namespace, *options],
        check=True,
        capture_output=True,
        text=True,
    )

    outcome = apply(cluster, namespace, made.stdout, tmp_path)

    assert outcome.returncode == 0, outcome.stderr
    assert "Warning" not in outcome.stderr


def test_a_namespace_of_restricted_pods_with_quotas_accepts_all_pods(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path
) -> None:
    path = f"/api/v1/namespaces/{namespace}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
    merge = "application/merge-patch+json"
    cluster.request("PATCH", path, {"metadata": {"labels": labels}}, kind=merge)
    hard = {"requests.cpu": "9", "requests.memory": "9Gi", "limits.memory": "19Gi"}
    quota = {"metadata": {"name": "team"}, "spec": {"hard": hard}}
    cluster.request("POST", f"{path}/resourcequotas", quota)
    used = dict.fromkeys(hard, "0")  # a controller, which does not run here, writes that
    status = {"status": {"hard": hard, "used": used}}
    cluster.request("PATCH", f"{path}/resourcequotas/team/status", status, kind=merge)
    options = ("--set=front.enabled=true", "--set=workers.pods.images=true")
    made = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--namespace", namespace, *options],
        check=True,
        capture_output=True,
        text=True,
    )
    pods = []
    for manifest in yaml.safe_load_all(made.stdout):
        if manifest["kind"] == "Deployment":
            name = manifest["metadata"]["name"]
            template = manifest["spec"]["template"]
            metadata = {**template["metadata"], "name": name}
            pods.append({**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata})
        elif manifest["kind"] == "Pod":
            pods.append(manifest)
    assert len(pods) == 5

    outcome = apply(cluster, namespace, yaml.safe_dump_all(pods), tmp_path)

    assert outcome.returncode == 0, outcome.stderr
    assert "Warning" not in outcome.stderr


async def test_the_role_of_the_chart_is_sufficient(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path
) -> None:
    grant(cluster, namespace, role(helm, namespace))
    spec = {**kit(tmp_path), "truely-stateless": True}
    cluster.apply("MCPServer", "time", spec, namespace=namespace)
    async with Planes(cluster, namespace, tmp_path, user="plane", lease=_LEASE) as made:
        await made.control_plane()
        await made.worker("worker-1")

        path = f"{resources('mcpservers', namespace)}/time"
        await eventually(lambda: holds(cluster, path, "Ready"))
        events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

        async def told() -> bool:
            found = await asyncio.to_thread(cluster.request, "GET", events)
            return any(item["reason"] == "Ready" for item in found["items"])

        await eventually(told)


_DENIED = [
    ("mcpservers", "list", "did not list mcpservers", False),
    ("mcpservers", "watch", "did not watch mcpservers", True),
    ("mcptenants", "list", "did not list mcptenants", False),
    ("mcptenants", "watch", "did not watch mcptenants", True),
    ("mcpservers/status", "patch", "did not write the status of MCPServer", True),
    ("mcptenants/status", "patch", "did not write the status of MCPTenant", True),
    ("events", "create", "did not create an event about MCP", True),
    ("leases", "get", "did not read the Lease", False),
    ("leases", "create", "did not create the Lease", False),
    ("leases", "update", "did not write the Lease", False),
]
"""Each right of the chart's Role, the message without it, and whether servers still work."""


def test_each_right_of_the_role_is_denied_in_turn(helm: str) -> None:
    granted = {
        (resource, verb)
        for rule in role(helm, "tools")
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert {(resource, verb) for resource, verb, _, _ in _DENIED} == granted


@pytest.mark.parametrize(("resource", "verb", "message", "serves"), _DENIED)
async def test_a_missing_right_is_named_and_affects_only_its_feature(
    cluster: Cluster,
    namespace: str,
    helm: str,
    tmp_path: Path,
    resource: str,
    verb: str,
    message: str,
    serves: bool,
) -> None:
    rules = role(helm, namespace)
    if (resource, verb) == ("leases", "update"):  # there is a Lease of another holder
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        cluster.request("POST", path, {"metadata": {"name": _LEASE}, "spec": {}})
    grant(cluster, namespace, without(rules, resource, verb))
    spec = {**kit(tmp_path), "truely-stateless": True}
    cluster.apply("MCPServer", "time", spec, namespace=namespace)
    cluster.apply("MCPTenant", "acme", {"servers": {"time": {}}}, namespace=namespace)
    async with Planes(cluster, namespace, tmp_path, user="plane", lease=_LEASE) as made:
        plane = await made.control_plane()
        await made.worker("worker-1")

        def lines() -> list[str]:
            return [line for line in plane.log if message in line]

        await eventually(lines)
        assert "Give its service account that right" in lines()[0]
        if not serves:
            return
        async with AsyncClient(made.address) as client:
            result = await client.call_tool("time:current_time", {"timezone": "UTC"}, timeout=30)
            assert not result.is_error
            # Changes are still watched, and everything else is written.
            cluster.apply("MCPServer", "later", spec, namespace=namespace)
            await eventually(lambda: serves_tools_of(client, "later"))
        for kind, name, condition in (
            ("mcpservers", "later", "Ready"),
            ("mcptenants", "acme", "Accepted"),
        ):
            if resource != f"{kind}/status":
                path = f"{resources(kind, namespace)}/{name}"
                await eventually(lambda at=path, what=condition: holds(cluster, at, what))
        assert len(lines()) <= 2, "It is logged once, not with every attempt."


async def serves_tools_of(client: AsyncClient, server: str) -> bool:
    return any(tool.server_id == server for tool in await client.list_tools())


async def holds(cluster: Cluster, path: str, condition: str) -> bool:
    found = await asyncio.to_thread(cluster.request, "GET", path)
    listed = found.get("status", {}).get("conditions", [])
    return any(
        each_condition["type"] == condition and each_condition["status"] == "True"
        for each_condition in listed
    )
