"""The tests of `make test-fast`: those that are listed exist."""

from __future__ import annotations

from tests.conftest import ROOT


def test_each_listed_test_exists() -> None:
    # After a rename, correct the name in tests/fast.txt; `tools/fast_tests.py` makes it anew.
    listed = (ROOT / "tests/fast.txt").read_text().splitlines()
    missing = []
    for name in listed:
        file, _, test = name.partition("::")
        path = ROOT / file
        if not path.is_file() or f"def {test.split('::')[-1]}(" not in path.read_text():
            missing.append(name)
    assert listed
    assert missing == [], "tests/fast.txt names tests that do not exist"
