"""Patterns of filters that can match nothing."""

from __future__ import annotations

import pytest

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.spec.model import VariantKey

_NAMES = "names consist of a-z, A-Z, 0-9, '_' and '-', and only '*' is special"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "is empty; write '*' to match every tool"),
        ("a[bc]", f"can match no tool: {_NAMES}"),
        ("x" * 65, "can match no tool: names have at most 64 characters"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_a_warning_and_stays(pattern: str, why: str) -> None:
    text = (
        "version: 1\nservers:\n  s: {transport: stdio, command: x,"
        f" tools: {{whitelist: ['{pattern}']}}}}\n"
    )
    parsed = parse_text(text, "mcp.yaml")
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason) == ("warning", "BAD_PATTERN")
    assert issue.message == f"The pattern '{pattern}' {why}."
    rules = parsed.servers[VariantKey("s")].tools
    assert not rules.passes("anything"), "it is a whitelist all the same"
