"""The objects that run a server as an image on Kubernetes, and what a pod's status tells."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.pods.api import is_running, placed, runs_pods, waiting
from leaseway.data_plane.mcp.pods.manifest import (
    Manifest,
    Owner,
    object_name,
    pod_manifest,
    pod_warnings,
    secret_manifest,
)
from leaseway.spec.model import Limits, Sandbox, ServerSpec, VariantKey

OWNER = Owner("worker-0", "uid-1", "run-1")


def pod(
    *command: str,
    template: Manifest | None = None,
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
    env: dict[str, str] | None = None,
    cwd: str = "",
) -> Manifest:
    spec = ServerSpec(
        VariantKey("box"),
        "stdio",
        image="a:1",
        limits=limits or Limits(),
        sandbox=sandbox or Sandbox(),
        pod_template=json.dumps(template) if template else "",
    )
    program, *arguments = command or ("",)
    resolved = ResolvedValues(program, tuple(arguments), image="a:1", env=env or {}, cwd=cwd)
    return pod_manifest("name", OWNER, spec, resolved)


def container(made: Manifest) -> Manifest:
    return next(each for each in made["spec"]["containers"] if each["name"] == "server")


def test_a_pod_is_owned_by_its_workers_pod_and_gets_no_token() -> None:
    made = pod()

    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": "uid-1"}
    ]
    assert made["spec"]["automountServiceAccountToken"] is False
    assert made["spec"]["restartPolicy"] == "Never"
    assert OWNER.earlier == "leaseway.dev/owner=uid-1,leaseway.dev/run!=run-1"


def test_what_is_run_is_the_images_own_unless_a_command_says_otherwise() -> None:
    assert "command" not in container(pod("", "--fast"))
    assert container(pod("", "--fast"))["args"] == ["--fast"]
    assert container(pod("python", "-m", "x"))["command"] == ["python"]
    assert container(pod(cwd="/srv"))["workingDir"] == "/srv"


def test_values_of_variables_are_in_the_secret_alone() -> None:
    made = pod(env={"TOKEN": "t"})

    assert container(made)["envFrom"] == [{"secretRef": {"name": "name"}}]
    assert secret_manifest("name", OWNER, {"TOKEN": "t"})["stringData"] == {"TOKEN": "t"}
    assert "envFrom" not in container(pod())


def test_a_template_adds_and_never_takes_away_what_keeps_a_pod_in_order() -> None:
    template = {
        "metadata": {"name": "x", "labels": {"team": "a", "leaseway.dev/owner": "somebody"}},
        "spec": {
            "restartPolicy": "Always",
            "nodeSelector": {"disk": "ssd"},
            "containers": [
                {"name": "server", "image": "other", "envFrom": [{"configMapRef": {"name": "c"}}]},
                {"name": "helper", "image": "h:1"},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }

    made = pod(template=template, env={"A": "b"}, sandbox=Sandbox(enabled=True))

    assert made["metadata"]["name"] == "name"
    assert made["metadata"]["labels"]["leaseway.dev/owner"] == "uid-1"
    assert made["metadata"]["labels"]["team"] == "a"
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert [each["name"] for each in made["spec"]["containers"]] == ["server", "helper"]
    assert container(made)["image"] == "a:1"
    assert len(container(made)["envFrom"]) == 2
    assert [each["name"] for each in made["spec"]["volumes"]] == ["v", "leaseway-0"]


def test_a_sandbox_is_the_pods_security() -> None:
    made = pod(sandbox=Sandbox(enabled=True, writable_paths=("/data",)))

    assert container(made)["securityContext"]["readOnlyRootFilesystem"] is True
    assert container(made)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container(made)["volumeMounts"]} == {"/tmp", "/data"}
    assert made["metadata"]["labels"]["leaseway.dev/network"] == "none"
    connected = pod(sandbox=Sandbox(enabled=True, network=True))
    assert connected["metadata"]["labels"]["leaseway.dev/network"] == "any"


def test_limits_are_the_containers_and_those_that_no_pod_has_are_told() -> None:
    limits = Limits(memory_bytes=1 << 20, cpu_cores=0.5, processes=10)

    assert container(pod(limits=limits))["resources"] == {
        "limits": {"memory": "1048576", "cpu": "0.5"}
    }
    ((reason, text),) = pod_warnings(limits)
    assert reason == "LIMIT_NOT_ENFORCED"
    assert "limits.processes (10) is not enforced" in text
    assert pod_warnings(Limits(memory_bytes=1)) == ()


@given(st.from_regex("[a-zA-Z0-9_-]{1,64}", fullmatch=True))
def test_each_server_id_makes_a_name_that_kubernetes_takes(server: str) -> None:
    name = object_name(server)

    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert name != object_name(server)


@pytest.mark.parametrize(
    ("state", "conditions", "runs", "why"),
    [
        ({"running": {}}, [], True, ("", "")),
        ({"waiting": {"reason": "ErrImagePull", "message": "m"}}, [], False, ("ErrImagePull", "m")),
        ({"terminated": {"reason": "OOMKilled"}}, [], False, ("OOMKilled", "")),
        (
            {},
            [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            False,
            ("Unschedulable", ""),
        ),
    ],
)
def test_a_status_tells_whether_a_pod_runs_and_why_not(
    state: Manifest, conditions: list[Manifest], runs: bool, why: tuple[str, str]
) -> None:
    status = {
        "containerStatuses": [{"name": "server", "state": state}],
        "conditions": conditions,
    }

    assert is_running(status) is runs
    assert waiting(status) == why
    assert not is_running({})
    assert waiting({}) == ("", "")


def test_a_worker_on_kubernetes_runs_pods_unless_it_is_told_otherwise() -> None:
    assert runs_pods({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert runs_pods({"LEASEWAY_CONTAINER_ENGINE": "kubernetes"})
    assert not runs_pods({"KUBERNETES_SERVICE_HOST": "x", "LEASEWAY_CONTAINER_ENGINE": "docker"})
    assert not runs_pods({})


def test_how_far_a_pod_came_is_told() -> None:
    assert placed({"metadata": {}}) == "no node has taken it yet"
    assert placed({"spec": {"nodeName": "n1"}}) == "the node n1 has not started it yet"
