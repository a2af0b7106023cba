"""From what a server lists to what callers see of it: tools, prompts and resources.

Tools and prompts are exposed by name. Resources have no names of ours: a URI is what it is, unique
in its server, and a filter says which URIs may be read, listed or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from leaseway.control_plane.core.catalog.definition import is_task_only
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
    Kind,
    NamedKind,
)
from leaseway.control_plane.core.catalog.listing import Recorded, ServerListing
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import ServerSpec
from leaseway.spec.name_filters import NameFilter

RUNS_AS_TASK: Final = (
    "it runs as an MCP task only (its execution.taskSupport is 'required'), and Leaseway does not "
    "run MCP tasks yet. Its server's maintainer can make a task of it optional."
)
"""Why a tool is left out, behind its name and a colon."""


@dataclass(frozen=True)
class ResourceExposure:
    """What of one server's resources callers see.

    Attributes:
        resources: Those listed whose URIs the filter lets pass, ordered by URI.
        templates: The templates listed whose own text it lets pass, likewise.
        every_template: All templates listed: what they stand for is judged by its URI.
        allows: Says whether a URI may be read, listed or not.
    """

    resources: tuple[Recorded, ...]
    templates: tuple[Recorded, ...]
    every_template: tuple[Recorded, ...]
    allows: Callable[[str], bool] = field(compare=False)


def expose_recorded(spec: ServerSpec, recorded: Sequence[Recorded], kind: NamedKind) -> Exposure:
    """Derive what a server exposes from the tools or prompts that it lists."""
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    usables = usable(recorded, kind, problems)
    exposure = expose(spec, [item.name for item in usables], kind)
    tasks = {item.name for item in usables if kind is TOOLS and is_task_only(item.definition)}
    exposed = tuple(pair for pair in exposure.exposed if pair[0] not in tasks)
    for original, _name in exposure.exposed:
        if original in tasks:  # of those alone that the filter lets pass: it silences the rest
            text = f"tool {shown(original)} is left out: {RUNS_AS_TASK}"
            problems.add("TOOL_NEEDS_TASK", original, text)
    return Exposure(exposed, problems.all() + exposure.problems)


def expose_resources(listing: ServerListing, rules: NameFilter) -> ResourceExposure:
    """Derive what callers see from the resources and templates that a server lists."""
    allows = passing(rules, RESOURCES)
    resources = _each_once(listing.resources, RESOURCES)
    templates = _each_once(listing.templates, RESOURCE_TEMPLATES)
    return ResourceExposure(
        tuple(one for one in resources if allows(one.name)),
        tuple(one for one in templates if allows(one.name)),
        templates,
        allows,
    )


def resource_problems(spec: ServerSpec, listing: ServerListing) -> tuple[Problem, ...]:
    """Return a warning for what of the resources and templates listed callers do not see."""
    problems = ExposureWarnings(spec.key.server_id, spec.key.tenant)
    for recorded, kind in (
        (listing.resources, RESOURCES),
        (listing.templates, RESOURCE_TEMPLATES),
    ):
        uris = (item.name for item in usable(recorded, kind, problems))
        filtered(unique(uris, kind, problems), kind.rules(spec), kind, problems)
    return problems.all()


def _each_once(recorded: Sequence[Recorded], kind: Kind) -> tuple[Recorded, ...]:
    found = {item.name: item for item in reversed(usable(recorded, kind, ExposureWarnings("")))}
    return tuple(item for _, item in sorted(found.items()))
