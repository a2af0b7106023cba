"""Servers as images on Kubernetes: a pod each, with a real API and a fake kubelet."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.system import SERVERS, System, eventually, running
from tests.kubernetes.chart import of_kind, render
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.kubelet import Kubelet, kubelet
from tests.kubernetes.rights import grant, without

from leaseway.sdk import AsyncClient, LeaseLost, ServerNotReady

IMAGE = "registry.example/boxed:1"


def role_of_workers(helm: str) -> list[dict[str, Any]]:
    """Return the rules of the chart's Role for workers that run images."""
    objects = render(helm, "--set=workers.pods.images=true")
    roles = {role["metadata"]["name"]: role["rules"] for role in of_kind(objects, "Role")}
    return list(roles["leaseway-images"])


@pytest.fixture
async def node(
    cluster: Cluster, namespace: str, helm: str, tmp_path: Path
) -> AsyncIterator[Kubelet]:
    """Return a node that runs the image `boxed`; workers have the rights of the chart's Role."""
    grant(cluster, namespace, role_of_workers(helm), "worker")
    images = {IMAGE: ("/bin/sh", str(SERVERS / "boxed.sh"))}
    async with kubelet(cluster, namespace, tmp_path, images) as node:
        yield node


@pytest.fixture
def environment(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Return the environment of a worker that is a pod of the namespace."""
    body = {"metadata": {"name": "worker-0"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    pod = cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    return {
        "KUBECONFIG": str(cluster.kubeconfig("worker", namespace)),
        "LEASEWAY_CONTAINER_ENGINE": "kubernetes",
        "LEASEWAY_POD_NAME": "worker-0",
        "LEASEWAY_POD_UID": pod["metadata"]["uid"],
        "LEASEWAY_POD_NAMESPACE": namespace,
        "HELLO": "kept out of manifests",
    }


def server(**settings: object) -> dict[str, object]:
    return {"transport": "stdio", "image": IMAGE, "startup_timeout": 60, **settings}


async def test_each_lease_has_its_own_pod(
    node: Kubelet, environment: dict[str, str], tmp_path: Path
) -> None:
    entry = server(
        args=["said"],
        env={"GREETING": {"env": "HELLO"}},
        start="lazy",
        sandbox={"writable": ["/data"]},
        limits={"memory": "64MiB"},
        podTemplate={"spec": {"nodeSelector": {"disk": "ssd"}}},
    )
    async with running(tmp_path, {"box": entry}, environment=environment) as (_, client):
        async with client.session("one") as one, client.session("two") as two:
            assert (await one.call_tool("box:next", {})).text == "1"
            assert (await one.call_tool("box:next", {})).text == "2"
            assert (await two.call_tool("box:next", {})).text == "1"
            seen = (await one.call_tool("box:look", {})).text
            pods = await node.pods()
        await eventually(node_is_empty(node))

    assert "variable=kept out of manifests argument=said" in seen
    assert len(pods) == 2
    (owner,) = pods[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == environment["LEASEWAY_POD_UID"]
    assert "kept out of manifests" not in json.dumps(pods)
    assert pods[0]["spec"]["nodeSelector"] == {"disk": "ssd"}
    (container,) = pods[0]["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["limits"]["memory"] == str(64 << 20)


async def test_pods_of_a_killed_worker_are_deleted_at_its_next_start(
    node: Kubelet, environment: dict[str, str], tmp_path: Path
) -> None:
    async with running(tmp_path, {"box": server()}, environment=environment) as (system, client):
        session = client.session("one")
        await session.call_tool("box:next", {})
        before = {pod["metadata"]["name"] for pod in await node.pods()}

        await system.workers["worker-1"].end(signal.SIGKILL)
        await restarted(system, client)

        with pytest.raises(LeaseLost):
            await session.call_tool("box:next", {})

        async def are_deleted() -> bool:
            return not before & {pod["metadata"]["name"] for pod in await node.pods()}

        await eventually(are_deleted)


async def restarted(system: System, client: AsyncClient) -> None:
    await system.start_worker("worker-1")
    await system.ready()  # the status may still be that of the killed worker

    async def is_served() -> bool:
        try:
            await session.call_tool("box:next", {})
        except ServerNotReady:
            return False
        return True

    async with client.session("another") as session:
        await eventually(is_served)


async def test_a_pod_that_exits_is_replaced(
    node: Kubelet, environment: dict[str, str], tmp_path: Path
) -> None:
    entry = server(**{"truely-stateless": True})
    async with running(tmp_path, {"box": entry}, environment=environment) as (_, client):
        assert (await client.call_tool("box:next", {})).text == "1"
        (first,) = node.running

        node.running[first].kill()

        await eventually(lambda: node.running and first not in node.running)
        assert (await client.call_tool("box:next", {}, timeout=30)).text == "1"


async def test_the_reason_of_a_pod_that_does_not_run_is_reported(
    node: Kubelet, environment: dict[str, str], tmp_path: Path
) -> None:
    entry = server(image="not-there:1", start="eager", startup_timeout=3)
    without = {**environment, "LEASEWAY_POD_UID": ""}
    async with running(tmp_path, {"box": entry}, environment=environment) as (_, client):
        message = await problem_of(client)
    async with running(tmp_path, {"box": entry}, environment=without) as (_, client):
        unknown = await problem_of(client)

    assert "ErrImagePull no such image: not-there:1" in message
    assert "LEASEWAY_POD_UID" in unknown


async def test_a_missing_right_is_named(
    cluster: Cluster, namespace: str, environment: dict[str, str], tmp_path: Path
) -> None:
    async with running(tmp_path, {"box": server()}, environment=environment) as (_, client):
        message = await problem_of(client)

    assert "(403: grant its service account this right)" in message


_RESTRICTED = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "server", "securityContext": {"capabilities": {"drop": ["ALL"]}}}],
    }
}


async def test_a_rule_of_the_namespace_is_no_missing_right_and_can_be_met(
    cluster: Cluster,
    namespace: str,
    node: Kubelet,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    path, merge = f"/api/v1/namespaces/{namespace}", "application/merge-patch+json"
    cluster.request("PATCH", path, {"metadata": {"labels": labels}}, kind=merge)

    async with running(tmp_path, {"box": server()}, environment=environment) as (_, client):
        message = await problem_of(client)
    met = server(podTemplate=_RESTRICTED)
    async with (
        running(tmp_path, {"box": met}, environment=environment) as (_, client),
        client.session("one") as session,
    ):
        assert (await session.call_tool("box:next", {})).text == "1"

    assert "violates PodSecurity" in message
    assert "which `podTemplate` and `limits` of the server can meet" in message
    assert "right" not in message


@pytest.mark.parametrize(
    ("resource", "verb", "message"),
    [
        ("pods", "create", "refused POST pods (403"),
        ("pods", "watch", "refused watch pods (403"),
        ("secrets", "create", "refused POST secrets (403"),
        ("pods/attach", "get", "can't be attached to (403"),
    ],
)
async def test_each_missing_right_is_named(
    cluster: Cluster,
    namespace: str,
    helm: str,
    node: Kubelet,
    environment: dict[str, str],
    tmp_path: Path,
    resource: str,
    verb: str,
    message: str,
) -> None:
    grant(cluster, namespace, without(role_of_workers(helm), resource, verb), "worker")
    entry = server(env={"GREETING": {"env": "HELLO"}})
    async with running(tmp_path, {"box": entry}, environment=environment) as (_, client):
        found = await problem_of(client)

    assert message in found
    assert "403: grant its service account this right" in found


@pytest.mark.parametrize(
    ("resource", "verb", "message"),
    [
        ("pods", "delete", "refused DELETE pods/leaseway-box-"),
        ("pods", "deletecollection", "refused DELETE pods (403"),
        ("secrets", "delete", "refused DELETE secrets/leaseway-box-"),
        ("secrets", "deletecollection", "refused DELETE secrets (403"),
    ],
)
async def test_a_worker_without_the_right_to_delete_pods_serves_and_logs_it(
    cluster: Cluster,
    namespace: str,
    helm: str,
    node: Kubelet,
    environment: dict[str, str],
    tmp_path: Path,
    resource: str,
    verb: str,
    message: str,
) -> None:
    grant(cluster, namespace, without(role_of_workers(helm), resource, verb), "worker")
    entry = server(env={"GREETING": {"env": "HELLO"}})
    async with running(tmp_path, {"box": entry}, environment=environment) as (system, client):
        async with client.session("one") as one:
            assert (await one.call_tool("box:next", {})).text == "1"
        log = system.workers["worker-1"].log
        await eventually(lambda: any(message in line for line in log))

    assert any(message in line and "grant its service account this right" in line for line in log)


async def test_an_unscheduled_pod_is_reported(
    cluster: Cluster, namespace: str, helm: str, environment: dict[str, str], tmp_path: Path
) -> None:
    grant(cluster, namespace, role_of_workers(helm), "worker")
    entry = server(start="eager", startup_timeout=15)
    async with running(tmp_path, {"box": entry}, environment=environment) as (_, client):
        message = await problem_of(client)

    assert "does not run: it is not scheduled to a node yet, 13.5 s after its start" in message


async def problem_of(client: AsyncClient) -> str:
    found = [problem.message for problem in await client.problems() if problem.server_id == "box"]
    return " ".join(found)


def node_is_empty(node: Kubelet) -> Any:
    async def is_empty() -> bool:
        return not await node.pods()

    return is_empty
