"""How figures grow from size to size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from benchmarks.scale.__main__ import main
from benchmarks.scale.row import SIZES, growth


def test_growth_compares_each_figure_with_the_one_before() -> None:
    assert growth([2.0, 20.0, 30.0]) == [None, 10.0, 1.5]
    assert growth([0.0, 5.0]) == [None, None], "nothing to compare with"
    assert growth([]) == []


def test_each_size_has_ten_times_the_workers_and_servers_of_the_one_before() -> None:
    for small, large in pairwise(SIZES):
        assert (large.workers, large.servers) == (small.workers * 10, small.servers * 10)


def test_a_pattern_that_matches_no_row_is_named_with_the_rows_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--rows", "restart,nosuch"]) == 2
    said = capsys.readouterr().out
    assert "No row matches nosuch" in said
    assert "restart" in said


@pytest.mark.parametrize("sizes", ["0", "-1", "all"])
def test_a_run_of_no_size_is_refused(sizes: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--sizes", sizes])
    assert ended.value.code == 2
