import io

from benchmarks.catalogue import ALL
from benchmarks.figures import Figures, Load
from benchmarks.report import show
from rich.console import Console


def test_the_names_of_all_rows_differ() -> None:
    assert len({row.name for row in ALL}) == len(ALL)


def test_the_report_shows_rows_specials_and_goals() -> None:
    load = Load(
        in_flight=32,
        calls=64_000,
        seconds=2.0,
        p50=900.0,
        p99=1500.0,
        client_cpu=11.0,
        worker_cpu=13.0,
    )
    results = {
        "stdio": [Figures("stdio", {32: load}, 80.0)],
        "neighbour": [Figures("neighbour", more={"p99_ratio": 1.25})],
    }
    written = io.StringIO()
    show(results, Console(width=200, file=written))
    text = written.getvalue()
    assert "Leaseway, stdio shared" in text
    assert "32,000" in text
    assert "1.25" in text
    assert "not measured" in text
