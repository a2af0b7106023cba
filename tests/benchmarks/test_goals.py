from benchmarks.figures import Figures, Load
from benchmarks.goals import GOALS, judge


def row(name: str, rate: float, p50: float = 100.0, cpu: float = 20.0) -> Figures:
    loads = {
        count: Load(
            in_flight=count,
            calls=int(rate * 2),
            seconds=2.0,
            p50=p50,
            p99=p50 * 2,
            client_cpu=cpu,
            worker_cpu=cpu,
        )
        for count in (1, 8, 32, 128)
    }
    return Figures(name, loads)


def test_without_measurements_no_goal_is_reached() -> None:
    assert not any(result.is_reached for result in judge({}))
    assert all(result.figure is None for result in judge({}))


def test_a_rate_goal_is_reached_at_its_limit_and_missed_below() -> None:
    reached = judge({"stdio": [row("stdio", 500)], "official_stdio": [row("official", 100)]})
    first, second = reached[:2]
    assert first.figure is not None
    assert first.figure.median == 5.0
    assert first.is_reached  # 5 of 5
    assert not second.is_reached  # 5 of 7


def test_the_sequential_goal_compares_with_the_sum_of_both_lower_bounds() -> None:
    results = {
        "stdio": [row("stdio", 1, p50=230.0)],
        "raw_pipe": [row("raw_pipe", 1, p50=80.0)],
        "grpc_stream": [row("grpc_stream", 1, p50=120.0)],
    }
    found = next(result for result in judge(results) if "sequential" in result.goal.title)
    assert found.figure is not None
    assert found.figure.median == 1.15
    assert found.is_reached


def test_a_goal_with_a_maximum_is_missed_above_it() -> None:
    reached = judge({"stdio": [row("stdio", 1, cpu=26.0)]})
    cpu = next(result for result in reached if result.goal.title.startswith("worker CPU"))
    assert cpu.goal.at_most
    assert not cpu.is_reached


def test_the_titles_of_goals_differ() -> None:
    assert len({goal.title for goal in GOALS}) == len(GOALS)
