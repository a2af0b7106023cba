"""Which line of a traceback is named."""

from __future__ import annotations

import json

import pytest

from leaseway.server.faults import describe


@pytest.mark.parametrize(
    ("module", "named"),
    [("own.weather", "test_faults.py, line "), ("json.tool", "decoder.py, line ")],
    ids=["the caller of a library", "an installed server"],
)
def test_the_servers_own_line_is_named_wherever_its_libraries_are(module: str, named: str) -> None:
    with pytest.raises(ValueError) as raised:
        json.loads("{")
    assert named in describe(raised.value, module)
