"""Which line of a traceback is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leaseway.server.faults import describe

PACKAGE = Path(json.__file__).parent


@pytest.mark.parametrize(
    ("folder", "named"),
    [(PACKAGE.parents[1], "test_faults.py, line "), (PACKAGE, "decoder.py, line ")],
    ids=["an environment below the server's folder", "an installed server"],
)
def test_the_servers_own_line_is_named_wherever_its_libraries_are(folder: Path, named: str) -> None:
    with pytest.raises(ValueError) as raised:
        json.loads("{")
    assert named in describe(raised.value, str(folder))
