"""Kubernetes objects for servers with images, and the status of pods."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.container.manifest import (
    Manifest,
    Owner,
    object_name,
    pod_manifest,
    pod_warnings,
    secret_manifest,
)
from leaseway.data_plane.kinds.container.pods import (
    is_running,
    refusal_hint,
    runs_pods,
    scheduling,
    waiting_reason,
)
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey

OWNER = Owner("worker-0", "uid-1", "run-1")


def pod(
    *command: str,
    template: Manifest | None = None,
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
    env: dict[str, str] | None = None,
    cwd: str = "",
) -> Manifest:
    spec = server_spec(
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


def container(manifest: Manifest) -> Manifest:
    return next(
        each_container
        for each_container in manifest["spec"]["containers"]
        if each_container["name"] == "server"
    )


def test_a_pod_is_owned_by_its_workers_pod_and_gets_no_token() -> None:
    made = pod()

    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": "uid-1"}
    ]
    assert made["spec"]["automountServiceAccountToken"] is False
    assert made["spec"]["restartPolicy"] == "Never"
    assert OWNER.earlier == "leaseway.dev/owner=uid-1,leaseway.dev/run!=run-1"


def test_the_images_own_command_runs_unless_one_is_configured() -> None:
    assert "command" not in container(pod("", "--fast"))
    assert container(pod("", "--fast"))["args"] == ["--fast"]
    assert container(pod("python", "-m", "x"))["command"] == ["python"]
    assert container(pod(cwd="/srv"))["workingDir"] == "/srv"


def test_values_of_variables_are_only_in_the_secret() -> None:
    made = pod(env={"TOKEN": "t"})

    assert container(made)["envFrom"] == [{"secretRef": {"name": "name"}}]
    assert secret_manifest("name", OWNER, {"TOKEN": "t"})["stringData"] == {"TOKEN": "t"}
    assert "envFrom" not in container(pod())


def test_a_template_adds_fields_but_does_not_override_ownership() -> None:
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
    assert [each_container["name"] for each_container in made["spec"]["containers"]] == [
        "server",
        "helper",
    ]
    assert container(made)["image"] == "a:1"
    assert len(container(made)["envFrom"]) == 2
    assert [volume["name"] for volume in made["spec"]["volumes"]] == ["v", "leaseway-0"]


def test_a_sandbox_sets_the_security_context() -> None:
    made = pod(sandbox=Sandbox(enabled=True, writable_paths=("/data",)))

    assert container(made)["securityContext"]["readOnlyRootFilesystem"] is True
    assert container(made)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {volume_mount["mountPath"] for volume_mount in container(made)["volumeMounts"]} == {
        "/tmp",
        "/data",
    }
    assert made["metadata"]["labels"]["leaseway.dev/network"] == "none"
    connected = pod(sandbox=Sandbox(enabled=True, network=True))
    assert connected["metadata"]["labels"]["leaseway.dev/network"] == "any"


def test_limits_are_set_on_the_container_or_reported_as_not_enforced() -> None:
    limits = Limits(memory_bytes=1 << 20, cpu_cores=0.5, processes=10)

    assert container(pod(limits=limits))["resources"] == {
        "limits": {"memory": "1048576", "cpu": "0.5"}
    }
    ((reason, text),) = pod_warnings(limits)
    assert reason == "LIMIT_NOT_ENFORCED"
    assert "limits.processes (10) is not enforced" in text
    assert pod_warnings(Limits(memory_bytes=1)) == ()


@given(st.from_regex("[a-zA-Z0-9_-]{1,64}", fullmatch=True))
def test_each_server_id_makes_a_valid_object_name(server: str) -> None:
    name = object_name(server)

    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert name != object_name(server)


@pytest.mark.parametrize(
    ("state", "conditions", "runs", "why"),
    [
        ({"running": {}}, [], True, ("", "")),
        ({"waiting": {"reason": "ErrImagePull", "message": "m"}}, [], False, ("ErrImagePull", "m")),
        (
            {},
            [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            False,
            ("Unschedulable", ""),
        ),
    ],
)
def test_running_and_waiting_reason_are_read_from_the_status(
    state: Manifest, conditions: list[Manifest], runs: bool, why: tuple[str, str]
) -> None:
    status = {
        "containerStatuses": [{"name": "server", "state": state}],
        "conditions": conditions,
    }

    assert is_running(status) is runs
    assert waiting_reason(status) == why
    assert not is_running({})
    assert waiting_reason({}) == ("", "")


def test_a_worker_on_kubernetes_runs_pods_unless_configured_otherwise() -> None:
    assert runs_pods({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert runs_pods({"LEASEWAY_CONTAINER_ENGINE": "kubernetes"})
    assert not runs_pods({"KUBERNETES_SERVICE_HOST": "x", "LEASEWAY_CONTAINER_ENGINE": "docker"})
    assert not runs_pods({})


def test_a_pod_without_a_waiting_reason_waits_for_a_node_or_its_start() -> None:
    assert scheduling({"metadata": {}}) == "it is not scheduled to a node yet"
    assert scheduling({"spec": {"nodeName": "n1"}}) == "the node n1 has not started it yet"


@pytest.mark.parametrize(
    "message",
    [
        'pods is forbidden: User "w" cannot create resource "pods" in API group ""',
        'pods "box" is forbidden: User "w" cannot delete resource "pods" in API group ""',
    ],
)
def test_a_missing_right_is_to_be_granted(message: str) -> None:
    assert "grant its service account this right" in refusal_hint(403, message)


@pytest.mark.parametrize(
    "message",
    [
        'pods "box" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        'pods "box" is forbidden: exceeded quota: small, used: pods=2, limited: pods=2',
        'admission webhook "g" denied the request: container <c> cannot run as root',
        'admission webhook "g" denied the request: pods is forbidden: User "w" is root',
    ],
)
def test_what_a_rule_of_the_namespace_refuses_is_no_missing_right(message: str) -> None:
    assert "a rule of its namespace" in refusal_hint(403, message)
