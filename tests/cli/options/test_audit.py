"""The options of the audit name the same policies as what obeys them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leaseway.cli.options.audit import POLICIES
from leaseway.data_plane.audit.backlog import Policy

CHART = Path(__file__).parents[3] / "deploy/chart/leaseway/values.schema.json"


def policies_in(schema: Any) -> list[list[str]]:
    """Return the values of each `policy` beside a `sink` in a JSON Schema."""
    if not isinstance(schema, dict):
        return []
    found = [values for value in schema.values() for values in policies_in(value)]
    if {"policy", "sink"} <= schema.keys():
        found.append(schema["policy"]["enum"])
    return found


def test_command_worker_and_chart_know_the_same_policies() -> None:
    assert [policy.value for policy in Policy] == list(POLICIES)
    assert policies_in(json.loads(CHART.read_text())) == [list(POLICIES)]
