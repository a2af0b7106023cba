"""Exposes what a server lists: tools and prompts by name, resources by URI.

URIs are not transformed; they are unique within their server. A filter decides which URIs may be
read, listed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from leaseway.control_plane.core.catalog.exposure import (
    Exposure,
    ExposureWarnings,
    expose,
    filtered,
    passing,
    shown,
    unique,
    usable,
)
from leaseway.control_plane.core.catalog.kinds import (
    RESOURCE_TEMPLATES,
    RESOURCES,
    TOOLS,
    ItemKind,
    NamedKind,
)
from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import ServerSpec
from leaseway.wire.listing.definitions import is_task_only

RUNS_AS_TASK: Final = (
    "it can only be called as an MCP task (its execution.taskSupport is 'required'), which Leaseway"
    " does not support yet. Its server's maintainer can make the task optional."
)
"""Why a tool is skipped; follows its name and a colon."""


@dataclass(frozen=True)
class ResourceExposure:
    """The resources of one server that callers see.

    Attributes:
        resources: Listed resources whose URI passes the filter, ordered by URI.
        templates: Listed templates whose text passes the filter, ordered by text.
        every_template: All listed templates: the filter applies to the URIs that they match.
        allows: Returns whether a URI may be read, listed or not.
    """

    resources: tuple[ListedItem, ...]
    templates: tuple[ListedItem, ...]
    every_template: tuple[ListedItem, ...]
    allows: Callable[[str], bool] = field(compare=False)


def expose_recorded(spec: ServerSpec, recorded: Sequence[ListedItem], kind: NamedKind) -> Exposure:
    """Return what a server exposes of the tools or prompts that it lists."""
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    usables = usable(recorded, kind, problems)
    exposure = expose(spec, [item.name for item in usables], kind)
    tasks = {item.name for item in usables if kind is TOOLS and is_task_only(item.definition)}
    exposed = tuple(pair for pair in exposure.exposed if pair[0] not in tasks)
    for original, _name in exposure.exposed:
        if original in tasks:  # tools that do not pass the filter need no such warning
            text = f"tool {shown(original)} is skipped: {RUNS_AS_TASK}"
            problems.add("TOOL_NEEDS_TASK", original, text)
    return Exposure(exposed, problems.all() + exposure.problems)


def expose_resources(listing: ServerListing, rules: NameFilter) -> ResourceExposure:
    """Return what callers see of the resources and templates that a server lists."""
    allows = passing(rules, RESOURCES)
    resources = _distinct(listing.resources, RESOURCES)
    templates = _distinct(listing.templates, RESOURCE_TEMPLATES)
    return ResourceExposure(
        tuple(resource for resource in resources if allows(resource.name)),
        tuple(template for template in templates if allows(template.name)),
        templates,
        allows,
    )


def resource_problems(spec: ServerSpec, listing: ServerListing) -> tuple[Problem, ...]:
    """Return warnings for the listed resources and templates that callers do not see."""
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    for recorded, kind in (
        (listing.resources, RESOURCES),
        (listing.templates, RESOURCE_TEMPLATES),
    ):
        uris = (item.name for item in usable(recorded, kind, problems))
        filtered(unique(uris, kind, problems), kind.rules(spec), kind, problems)
    return problems.all()


def _distinct(recorded: Sequence[ListedItem], kind: ItemKind) -> tuple[ListedItem, ...]:
    found = {item.name: item for item in reversed(usable(recorded, kind, ExposureWarnings("")))}
    return tuple(item for _, item in sorted(found.items()))
