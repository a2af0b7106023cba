"""Resources as the configuration of a whole system, against a real API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.system import eventually, kit
from tests.kubernetes.cluster import Cluster, resources
from tests.kubernetes.processes import Planes

from leaseway.control_plane.config.kubernetes.api import KubernetesRefusal, open_api
from leaseway.control_plane.config.kubernetes.resources import parse_resource
from leaseway.sdk import AsyncClient, ToolNotFound


@pytest.fixture
async def planes(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Planes]:
    """Return a control plane that watches the namespace, and a worker."""
    async with Planes(cluster, namespace, tmp_path) as made:
        await made.control_plane()
        await made.worker("worker-1")
        yield made


def stdio(root: Path, **settings: object) -> dict[str, object]:
    return {**kit(root), "truely-stateless": True, **settings}


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    listed = found.get("status", {}).get("conditions", [])
    return {condition["type"]: (condition["status"], condition["message"]) for condition in listed}


class Watched:
    """A resource of a namespace."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, plural: str) -> None:
        self._cluster = cluster
        self._path = f"{resources(plural, namespace)}/{name}"
        self._events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        self._name = name

    async def get(self) -> dict[str, Any]:
        found = await asyncio.to_thread(self._cluster.request, "GET", self._path)
        assert isinstance(found, dict)
        return found

    async def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def holds() -> bool:
            found.clear()
            found.update(await self.get())
            return bool(condition(found))

        try:
            await eventually(holds)
        except TimeoutError:
            pytest.fail(f"The resource stays at {found}")
        return found

    async def until_condition(self, kind: str, status: str) -> str:
        found = await self.until(lambda one: conditions(one).get(kind, ("", ""))[0] == status)
        return conditions(found)[kind][1]

    async def until_event(self, kind: str, reason: str) -> None:
        """Wait for an event, which is created after the status is written."""

        async def is_recorded() -> bool:
            listed = await asyncio.to_thread(self._cluster.request, "GET", self._events)
            return any(
                (item["type"], item["reason"]) == (kind, reason)
                for item in listed["items"]
                if item["regarding"]["name"] == self._name
            )

        await eventually(is_recorded)


async def test_a_resource_is_served_and_its_status_reports_that(
    cluster: Cluster, namespace: str, planes: Planes, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "time", stdio(tmp_path), namespace=namespace)
    watched = Watched(cluster, namespace, "time", "mcpservers")

    await watched.until_condition("Ready", "True")

    found = await watched.get()
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"] == 1
    assert found["status"]["tools"] > 0
    assert conditions(found)["Accepted"][0] == "True"
    assert conditions(found)["Degraded"][0] == "False"
    await watched.until_event("Normal", "Ready")
    async with AsyncClient(planes.address) as client:
        result = await client.call_tool("current_time", {"timezone": "UTC"})
        assert not result.is_error


async def test_a_status_is_not_written_to_a_later_resource_of_the_same_name(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cluster.apply("MCPTenant", "acme", {"servers": {}}, namespace=namespace)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("admin", namespace)))
    resource = parse_resource("MCPTenant", found)
    watched = Watched(cluster, namespace, "acme", "mcptenants")
    async with open_api(namespace) as api:
        await api.write_status(replace(resource, uid="of-an-earlier-one"), {"servers": 7})
        assert (await watched.get())["status"] == found["status"]
        await api.write_status(resource, {"servers": 7})
        assert (await watched.get())["status"] == {"servers": 7}

        with pytest.raises(KubernetesRefusal, match="should be greater than or equal to 0"):
            await api.write_status(resource, {"servers": -1})


async def test_an_invalid_edit_is_reported_and_changes_no_server(
    cluster: Cluster, namespace: str, planes: Planes, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "one", stdio(tmp_path), namespace=namespace)
    cluster.apply(
        "MCPServer", "two", stdio(tmp_path, transform=[{"prefix": "two_"}]), namespace=namespace
    )
    one, two = (Watched(cluster, namespace, name, "mcpservers") for name in ("one", "two"))
    await one.until_condition("Ready", "True")
    await two.until_condition("Ready", "True")

    wrong = stdio(tmp_path, env={"A": {"envv": "B"}})
    cluster.apply("MCPServer", "one", wrong, namespace=namespace)
    said = await one.until_condition("Accepted", "False")

    assert "last valid version stays in force" in said
    await one.until_event("Warning", "Rejected")
    assert (await one.get())["status"]["observedGeneration"] == 2
    assert conditions(await two.get())["Accepted"][0] == "True"
    async with AsyncClient(planes.address) as client:
        for tool in ("current_time", "two_current_time"):
            assert not (await client.call_tool(tool, {"timezone": "UTC"})).is_error

    cluster.apply("MCPServer", "one", stdio(tmp_path), namespace=namespace)
    await one.until_condition("Accepted", "True")
    await one.until_condition("Degraded", "False")


async def test_a_deleted_resource_is_removed_and_its_calls_finish(
    cluster: Cluster, namespace: str, planes: Planes, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "time", stdio(tmp_path), namespace=namespace)
    watched = Watched(cluster, namespace, "time", "mcpservers")
    await watched.until_condition("Ready", "True")

    async with AsyncClient(planes.address) as client:
        calls = [
            asyncio.create_task(client.call_tool("current_time", {"timezone": "UTC"}))
            for _ in range(20)
        ]
        await asyncio.gather(*calls[:1])
        path = f"{resources('mcpservers', namespace)}/time"
        await asyncio.to_thread(cluster.request, "DELETE", path)
        for result in await asyncio.gather(*calls):
            assert not result.is_error

        async def gone() -> bool:
            try:
                await client.call_tool("current_time", {"timezone": "UTC"})
            except ToolNotFound:
                return True
            return False

        await eventually(gone)


async def test_a_tenant_sees_the_servers_of_its_resource(
    cluster: Cluster, namespace: str, planes: Planes, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "time", stdio(tmp_path), namespace=namespace)
    await Watched(cluster, namespace, "time", "mcpservers").until_condition("Ready", "True")
    cluster.apply(
        "MCPTenant", "acme", {"servers": {"time": {"enabled": False}}}, namespace=namespace
    )
    watched = Watched(cluster, namespace, "acme", "mcptenants")

    await watched.until_condition("Ready", "True")

    assert (await watched.get())["status"]["servers"] == 1
    async with AsyncClient(planes.address, tenant="acme") as client:
        with pytest.raises(ToolNotFound):
            await client.call_tool("current_time", {"timezone": "UTC"})
    async with AsyncClient(planes.address) as client:
        assert not (await client.call_tool("current_time", {"timezone": "UTC"})).is_error


async def test_an_undeclared_server_of_a_tenant_is_reported(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    cluster.apply("MCPTenant", "acme", {"servers": {"tiem": {}}}, namespace=namespace)

    watched = Watched(cluster, namespace, "acme", "mcptenants")
    said = await watched.until_condition("Accepted", "False")

    assert conditions(await watched.get())["Ready"][0] == "False"
    assert "names the server 'tiem', which no layer below declares" in said


async def test_an_outage_of_the_api_changes_nothing_and_the_watch_resumes(
    cluster: Cluster, namespace: str, planes: Planes, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "time", stdio(tmp_path), namespace=namespace)
    watched = Watched(cluster, namespace, "time", "mcpservers")
    await watched.until_condition("Ready", "True")

    await asyncio.to_thread(cluster.stop_api)
    try:
        async with AsyncClient(planes.address) as client:
            for _ in range(20):
                assert not (await client.call_tool("current_time", {"timezone": "UTC"})).is_error
    finally:
        await asyncio.to_thread(cluster.start_api)

    cluster.apply("MCPServer", "later", stdio(tmp_path, start="lazy"), namespace=namespace)
    await Watched(cluster, namespace, "later", "mcpservers").until_condition("Ready", "True")
    assert not (await watched.get())["metadata"].get("deletionTimestamp")


async def test_missing_rights_of_a_control_plane_are_named_until_granted(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.apply("MCPServer", "time", stdio(tmp_path), namespace=namespace)
    async with Planes(cluster, namespace, tmp_path, user="nobody") as made:
        plane = await made.control_plane()
        await made.worker("worker-1")

        await eventually(lambda: any("did not list mcpservers" in line for line in plane.log))
        assert any("Give its service account that right" in line for line in plane.log)

        role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        cluster.grant(role, "nobody", [("leaseway.dev", ["*"], ["list", "watch", "patch"])])
        async with AsyncClient(made.address) as client:

            async def served() -> bool:
                return bool(await client.list_tools())

            await eventually(served)
