"""What servers propose for arguments."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest

from leaseway.data_plane.core.definitions.completions import corrected_completion

MANY = [f"v{number}" for number in range(150)]


@pytest.mark.parametrize(
    ("result", "completion"),
    [
        ({"completion": ["x", "y"]}, {"values": ["x", "y"]}),
        ({"values": ["x"], "_meta": {"a": 1}}, {"values": ["x"]}),
        ({"completion": {"values": None}}, {"values": []}),
        ({"completion": {"values": "x", "total": 1.5}}, {"values": ["x"]}),
        ({"completion": {"values": ["x"], "total": "5", "hasMore": None}}, {"values": ["x"]}),
        ({"completion": {"values": [{"value": "x"}, 1, None, True]}},
         {"values": ["x", "1", "true"]}),
        ({"completion": {"values": MANY}}, {"values": MANY[:100], "total": 150, "hasMore": True}),
        ({"completion": {"values": MANY, "total": 900}},
         {"values": MANY[:100], "total": 900, "hasMore": True}),
        ({"completion": None}, {"values": []}),
        ({}, {"values": []}),
    ],
)  # fmt: skip
def test_a_completion_is_one_that_clients_accept(result: Any, completion: Any) -> None:
    corrected = corrected_completion(json.dumps(result).encode())
    assert json.loads(corrected) == {**result, "completion": completion}
    mcp_types.CompleteResult.model_validate_json(corrected, by_name=False)
    assert corrected_completion(corrected) is corrected


def test_another_completion_keeps_its_bytes() -> None:
    result = b'{"completion": {"values": ["x"], "own": 1, "total": 5, "hasMore": false}}'
    assert corrected_completion(result) is result
