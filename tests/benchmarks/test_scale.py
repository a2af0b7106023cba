"""How figures grow from size to size."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.scale.row import SIZES, growth


def test_growth_compares_each_figure_with_the_one_before() -> None:
    assert growth([2.0, 20.0, 30.0]) == [None, 10.0, 1.5]
    assert growth([0.0, 5.0]) == [None, None], "nothing to compare with"
    assert growth([]) == []


def test_each_size_has_ten_times_the_workers_and_servers_of_the_one_before() -> None:
    for small, large in pairwise(SIZES):
        assert (large.workers, large.servers) == (small.workers * 10, small.servers * 10)
