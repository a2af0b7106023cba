"""Builds the Kubernetes objects that run a server with an image. Pure."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leaseway.data_plane.core.problems import LIMIT_NOT_ENFORCED
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.spec.kinds.confinement import Limits
from leaseway.spec.kinds.container import ContainerPart
from leaseway.spec.model import ServerSpec

Manifest = dict[str, Any]

CONTAINER: Final = "server"
"""The server's container; a template's container of this name is merged into it."""

OWNER_LABEL: Final = "leaseway.dev/owner"
RUN_LABEL: Final = "leaseway.dev/run"
_SERVER: Final = "leaseway.dev/server"
_NETWORK: Final = "leaseway.dev/network"
_GRACE: Final = 5


@dataclass(frozen=True)
class Owner:
    """The owner of the objects: a process in a worker's pod.

    Attributes:
        uid: The pod's uid; its objects are deleted with it.
        run: Distinguishes this process from earlier ones in the same pod.
    """

    name: str
    uid: str
    run: str

    @property
    def earlier(self) -> str:
        """A label selector for objects of earlier processes in the pod."""
        return f"{OWNER_LABEL}={self.uid},{RUN_LABEL}!={self.run}"


def object_name(server: str) -> str:
    """Return a name for one instance's pod and secret."""
    plain = re.sub("[^a-z0-9-]", "-", server.lower())[:40].strip("-")
    return f"leaseway-{plain or 'server'}-{secrets.token_hex(5)}"


def secret_manifest(name: str, owner: Owner, variables: Mapping[str, str]) -> Manifest:
    """Return the secret with a pod's variables: their values are in no pod manifest."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(name, owner, {}),
        "type": "Opaque",
        "immutable": True,
        "stringData": dict(variables),
    }


def pod_manifest(name: str, owner: Owner, spec: ServerSpec, resolved: ResolvedValues) -> Manifest:
    """Return the pod of one instance: the server's template, overridden by its spec.

    Its secret has the same name. An empty command is the image's own.
    """
    part = spec.part_as(ContainerPart)
    template: Manifest = json.loads(part.pod_template) if part.pod_template else {}
    metadata = _owned(name, owner, template.get("metadata") or {})
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}),
        _SERVER: str(spec.key),
    }
    isolated = part.sandbox.enabled and not part.sandbox.network
    metadata["labels"][_NETWORK] = "none" if isolated else "any"
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE,
        **(template.get("spec") or {}),
        "restartPolicy": "Never",
    }
    others = list(pod.get("containers") or [])
    own: Manifest = next((other for other in others if other.get("name") == CONTAINER), {})
    volumes = list(pod.get("volumes") or [])
    container = _container(name, part, resolved, own)
    if part.sandbox.enabled:
        _confine(part, container, volumes)
    pod["containers"] = [container, *(other for other in others if other is not own)]
    if volumes:
        pod["volumes"] = volumes
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def pod_warnings(limits: Limits) -> tuple[tuple[str, str], ...]:
    """Return (reason, sentence) about limits that Kubernetes does not have for a pod."""
    values = {"open_files": limits.open_files, "processes": limits.processes}
    texts = [f"limits.{key} ({value}) is not enforced" for key, value in values.items() if value]
    if not texts:
        return ()
    cause = "Kubernetes has no such limit for one pod. Set it on the node, or remove it."
    return ((LIMIT_NOT_ENFORCED, f"{'; '.join(texts)}: {cause}"),)


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
    name: str, part: ContainerPart, resolved: ResolvedValues, template: Manifest
) -> Manifest:
    container: Manifest = {
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
        container["command"] = [resolved.command]
    if resolved.args:
        container["args"] = list(resolved.args)
    if resolved.cwd:
        container["workingDir"] = resolved.cwd
    if resolved.env:
        container["envFrom"] = [*(template.get("envFrom") or []), {"secretRef": {"name": name}}]
    limits = {}
    if part.limits.memory_bytes is not None:
        limits["memory"] = str(part.limits.memory_bytes)
    if part.limits.cpu_cores is not None:
        limits["cpu"] = f"{part.limits.cpu_cores:g}"
    if limits:
        resources = dict(template.get("resources") or {})
        resources["limits"] = {**(resources.get("limits") or {}), **limits}
        container["resources"] = resources
    return container


def _confine(part: ContainerPart, container: Manifest, volumes: list[Manifest]) -> None:
    container["securityContext"] |= {
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if part.sandbox.strict:
        container["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    mounts = list(container.get("volumeMounts") or [])
    existing = {mount.get("mountPath") for mount in mounts}
    paths = ("/tmp", *part.sandbox.writable_paths)  # noqa: S108 - in the container
    for number, path in enumerate(path for path in paths if path not in existing):
        volumes.append({"name": f"leaseway-{number}", "emptyDir": {}})
        mounts.append({"name": f"leaseway-{number}", "mountPath": path})
    container["volumeMounts"] = mounts
