import dataclasses
import json

from benchmarks.figures import (
    Figures,
    Load,
    figures_from_json,
    percentile,
    ratio,
    spread,
)
from benchmarks.pairs import compare
from hypothesis import given
from hypothesis import strategies as st


def load(rate: float, in_flight: int = 32) -> Load:
    return Load(
        in_flight=in_flight,
        calls=int(rate * 2),
        seconds=2.0,
        p50=100.0,
        p99=200.0,
        client_cpu=10.0,
        worker_cpu=20.0,
    )


def rate_of(figures: Figures) -> float | None:
    return figures.loads[32].rate if 32 in figures.loads else None


def test_figures_survive_json() -> None:
    figures = Figures("stdio", {1: load(5, 1), 32: load(7)}, 12.5, {"p50_ms": 1.5})
    assert figures_from_json(json.loads(json.dumps(dataclasses.asdict(figures)))) == figures


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_one_of_the_values(values: list[float], share: float) -> None:
    found = percentile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= int(share * len(values))


def test_the_percentile_of_no_values_is_zero() -> None:
    assert percentile([], 0.5) == 0.0


def test_a_spread_has_the_lowest_median_and_highest_value() -> None:
    found = spread([5.0, 1.0, 3.0])
    assert found is not None
    assert (found.low, found.median, found.high) == (1.0, 3.0, 5.0)
    assert spread([]) is None


def test_a_ratio_compares_rounds_and_not_medians() -> None:
    slow = [Figures("a", {32: load(10)}), Figures("a", {32: load(40)})]
    fast = [Figures("b", {32: load(20)}), Figures("b", {32: load(80)})]
    found = ratio(fast, slow, rate_of)
    assert found is not None
    assert (found.low, found.high) == (2.0, 2.0)


def test_a_ratio_with_a_missing_row_is_none() -> None:
    measured = [Figures("a", {32: load(10)})]
    assert ratio(measured, [], rate_of) is None
    assert ratio(measured, [Figures("b", {1: load(10, 1)})], rate_of) is None


def test_pairs_compare_the_cpu_of_planes_only_if_both_loads_have_planes() -> None:
    through, direct = load(200), dataclasses.replace(load(100), client_cpu=15.0, worker_cpu=0.0)
    found = compare([(through, direct)] * 2)
    assert found["rate_ratio"] == 2.0
    assert found["all_cpu_ratio"] == 2.0  # (10 + 20) / 15
    assert "cpu_ratio" not in found
    assert compare([(through, load(100))] * 2)["cpu_ratio"] == 1.0


def test_a_load_that_a_busy_machine_has_not_run_is_no_pair() -> None:
    idle = dataclasses.replace(load(1), worker_cpu=0.0)
    assert compare([(load(200), load(100))] * 2 + [(load(200), idle)])["rate_ratio"] == 2.0
