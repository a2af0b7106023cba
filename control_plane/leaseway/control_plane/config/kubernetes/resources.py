"""Custom resources as layers. Each becomes its own document in the native format.

So an issue names its resource, and a mistake in one affects no other. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal

GROUP: Final = "leaseway.dev"
VERSION: Final = "v1alpha1"

ResourceKind = Literal["MCPServer", "MCPTenant"]
KINDS: Final[Mapping[ResourceKind, str]] = {"MCPServer": "mcpservers", "MCPTenant": "mcptenants"}
"""The kinds with their plurals, as in the API's paths."""

MAX_RESOURCES: Final = 2_000
"""Resources of one kind that are read, the oldest."""

_MAX_DEPTH: Final = 12
"""Nesting limit of a specification; deeper values become null, which no key accepts."""
_MAX_VALUES: Final = 50_000


@dataclass(frozen=True)
class CustomResource:
    """One custom resource, as the API last returned it.

    Its name is the id of a server or tenant; its `uid` differs from that of a later resource with
    the same name. Comparisons ignore `spec` and `status`; `generation` grows with each change of
    the specification. `created` is when it was created, in the format of Kubernetes.
    """

    kind: ResourceKind
    namespace: str
    name: str
    uid: str
    generation: int
    created: str = field(default="", compare=False)
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    status: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def path(self) -> Path:
        """Its name in issues and log lines."""
        return resource_path(self.namespace) / self.kind.lower() / self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def resource_path(namespace: str) -> Path:
    """Return the name of a namespace's resources in issues; there is no such file."""
    return Path("kubernetes") / namespace


def parse_resource(kind: ResourceKind, found: Mapping[str, Any]) -> CustomResource:
    """Return a resource from the API's object; missing fields are empty."""
    metadata = found.get("metadata") or {}
    return CustomResource(
        kind=kind,
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        generation=int(metadata.get("generation") or 0),
        created=str(metadata.get("creationTimestamp") or ""),
        spec=_mapping(found.get("spec")),
        status=_mapping(found.get("status")),
    )


def resource_text(resource: CustomResource) -> str:
    """Return a resource as a document in the native format."""
    spec = _Bounded().value(resource.spec, 0)
    servers = {resource.name: spec} if resource.kind == "MCPServer" else spec.get("servers")
    written = json.dumps(servers if isinstance(servers, dict) else {}, indent=1)
    return f'{{"version": 1, "servers":\n{written}}}\n'


def within_limit(
    resources: Iterable[CustomResource],
) -> tuple[list[CustomResource], list[CustomResource]]:
    """Return the oldest `MAX_RESOURCES` resources of a kind, and the others.

    So a new resource never takes the place of one that is served.
    """
    ordered = sorted(resources, key=attrgetter("created", "name"))
    return ordered[:MAX_RESOURCES], ordered[MAX_RESOURCES:]


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


class _Bounded:
    """Copies a specification within the limits of a document's reader.

    A document beyond them would be rejected as a whole, and with it every other layer.
    """

    def __init__(self) -> None:
        self._remaining = _MAX_VALUES

    def value(self, found: Any, depth: int) -> Any:
        self._remaining -= 1
        if self._remaining < 0 or depth > _MAX_DEPTH:
            return None
        if isinstance(found, Mapping):
            return {str(name): self.value(member, depth + 1) for name, member in found.items()}
        if isinstance(found, list):
            return [self.value(item, depth + 1) for item in found]
        if isinstance(found, float) and not math.isfinite(found):
            return None  # not expressible in JSON
        return found if isinstance(found, str | int | float | bool) else None
