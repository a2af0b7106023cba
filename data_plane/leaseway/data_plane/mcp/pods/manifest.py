"""From a server with an image to the objects that run it on Kubernetes. Pure."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leaseway.data_plane.core.problems import LIMIT_NOT_ENFORCED
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.spec.model import Limits, ServerSpec

Manifest = dict[str, Any]

CONTAINER: Final = "server"
"""The container that is talked to; a template's one of that name is merged into it."""

OWNER_LABEL: Final = "leaseway.dev/owner"
RUN_LABEL: Final = "leaseway.dev/run"
_SERVER: Final = "leaseway.dev/server"
_NETWORK: Final = "leaseway.dev/network"
_GRACE: Final = 5


@dataclass(frozen=True)
class Owner:
    """Whose the objects are: a worker's pod, and the process in it.

    Attributes:
        name: The pod's name.
        uid: Its uid; with it go the objects that it owns.
        run: Tells this process from those before it in the same pod.
    """

    name: str
    uid: str
    run: str

    @property
    def earlier(self) -> str:
        """A selector of what earlier processes of the pod left behind."""
        return f"{OWNER_LABEL}={self.uid},{RUN_LABEL}!={self.run}"


def object_name(server: str) -> str:
    """Return a name for one instance's pod and secret."""
    plain = re.sub("[^a-z0-9-]", "-", server.lower())[:40].strip("-")
    return f"leaseway-{plain or 'server'}-{secrets.token_hex(5)}"


def secret_manifest(name: str, owner: Owner, variables: Mapping[str, str]) -> Manifest:
    """Return the secret with a pod's variables, so that no pod's manifest shows their values."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, owner, {}),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(variables),
    }


def pod_manifest(name: str, owner: Owner, spec: ServerSpec, resolved: ResolvedValues) -> Manifest:
    """Return the pod of one instance: what the template has, and over it what `spec` says.

    Args:
        name: What it is called; its secret has the same name.
        owner: Whose it is.
        spec: The server.
        resolved: What its references stand for; an empty command is the image's own.
    """
    template: Manifest = json.loads(spec.pod_template) if spec.pod_template else {}
    metadata = _owned(name, owner, template.get("metadata") or {})
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        _SERVER: str(spec.key),
    }
    isolated = spec.sandbox.enabled and not spec.sandbox.network
    metadata["labels"][_NETWORK] = "none" if isolated else "any"
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE,
        **(template.get("spec") or {}),
        "restartPolicy": "Never",
    }
    others = list(pod.get("containers") or [])
    mine: Manifest = next((each for each in others if each.get("name") == CONTAINER), {})
    volumes = list(pod.get("volumes") or [])
    container = _container(name, spec, resolved, mine)
    if spec.sandbox.enabled:
        _confine(spec, container, volumes)
    pod["containers"] = [container, *(each for each in others if each is not mine)]
    if volumes:
        pod["volumes"] = volumes
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def pod_warnings(limits: Limits) -> tuple[tuple[str, str], ...]:
    """Return (reason, sentence) about limits that no pod can have."""
    found = {"open_files": limits.open_files, "processes": limits.processes}
    texts = [f"limits.{key} ({value}) is not enforced" for key, value in found.items() if value]
    if not texts:
        return ()
    why = "Kubernetes has no such limit for one pod. Set it on the node, or remove it."
    return ((LIMIT_NOT_ENFORCED, f"{'; '.join(texts)}: {why}"),)


def _owned(name: str, owner: Owner, metadata: Mapping[str, Any]) -> Manifest:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
    return {
        **metadata,
        "name": name,
        "labels": {
            **(metadata.get("labels") or {}),
            "app.kubernetes.io/managed-by": "leaseway",
            OWNER_LABEL: owner.uid,
            RUN_LABEL: owner.run,
        },
        "ownerReferences": [reference],
    }


def _container(
    name: str,
    spec: ServerSpec,
    resolved: ResolvedValues,
    template: Manifest,
) -> Manifest:
    made: Manifest = {
        **template,
        "name": CONTAINER,
        "image": resolved.image,
        "stdin": True,
        "stdinOnce": True,
        "tty": False,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            **(template.get("securityContext") or {}),
        },
    }
    if resolved.command:
        made["command"] = [resolved.command]
    if resolved.args:
        made["args"] = list(resolved.args)
    if resolved.cwd:
        made["workingDir"] = resolved.cwd
    if resolved.env:
        made["envFrom"] = [*(template.get("envFrom") or []), {"secretRef": {"name": name}}]
    bounds = {}
    if spec.limits.memory_bytes is not None:
        bounds["memory"] = str(spec.limits.memory_bytes)
    if spec.limits.cpu_cores is not None:
        bounds["cpu"] = f"{spec.limits.cpu_cores:g}"
    if bounds:
        resources = dict(template.get("resources") or {})
        made["resources"] = {**resources, "limits": {**(resources.get("limits") or {}), **bounds}}
    return made


def _confine(spec: ServerSpec, container: Manifest, volumes: list[Manifest]) -> None:
    container["securityContext"] |= {
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if spec.sandbox.strict:
        container["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    mounts = list(container.get("volumeMounts") or [])
    there = {each.get("mountPath") for each in mounts}
    wanted = ("/tmp", *spec.sandbox.writable_paths)  # noqa: S108 - inside of it
    for number, path in enumerate(each for each in wanted if each not in there):
        volumes.append({"name": f"leaseway-{number}", "emptyDir": {}})
        mounts.append({"name": f"leaseway-{number}", "mountPath": path})
    container["volumeMounts"] = mounts
