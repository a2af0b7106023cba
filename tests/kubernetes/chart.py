"""The objects of the chart."""

from __future__ import annotations

import subprocess
from typing import Any

import yaml
from tests.kubernetes.cluster import CHART


def render(helm: str, *options: str) -> list[dict[str, Any]]:
    """Return the objects of the chart."""
    made = subprocess.run(
        [helm, "template", "leaseway", str(CHART), "--namespace", "apps", *options],
        check=True,
        capture_output=True,
        text=True,
    )
    return [manifest for manifest in yaml.safe_load_all(made.stdout) if manifest]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in objects if manifest["kind"] == kind]
