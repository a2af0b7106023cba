"""What tests read and change of a spec, whatever its kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leaseway.spec.kinds.table import split
from leaseway.spec.model import ServerSpec


def part(spec: ServerSpec) -> Any:
    """Return the settings of a spec's kind."""
    return spec.part


def changed(spec: ServerSpec, **settings: Any) -> ServerSpec:
    """Return a spec of the same kind with other settings, its kind's or any server's."""
    own, common = split(type(spec.part), settings)
    return replace(spec, part=replace(spec.part, **own), **common)
