"""The servers of the rows are valid, as they are written: with their keys sorted."""

from __future__ import annotations

import pytest
import yaml
from benchmarks.processes import echo_server
from benchmarks.rows.own import LIMITS, POLICY, RULE

from leaseway.control_plane.config.formats.detection import parse_text


@pytest.mark.parametrize("policy", [{}, POLICY, LIMITS, POLICY | RULE])
def test_the_entry_of_a_row_has_no_mistake(policy: dict[str, object]) -> None:
    text = yaml.safe_dump({"version": 1, "servers": {"echo": echo_server(**policy)}})
    assert parse_text(text, "mcp.yaml").issues == ()
