"""Gateways that a run of the benchmarks names, called over raw connections."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.figures import Figures, Load
from benchmarks.http_load import is_complete
from benchmarks.report import show
from benchmarks.rows.peers import named
from rich.console import Console

_PEER = Path(__file__).parents[1] / "servers" / "http_peer.py"


def _command(form: str) -> str:
    start = shlex.join([sys.executable, str(_PEER)])
    return f"{start} {{port}} {form} {{python}} {{script}}"


@pytest.mark.parametrize("form", ["json", "chunks", "prefix"])
async def test_calls_of_a_named_peer_are_counted_with_its_cpu_and_memory(form: str) -> None:
    async with named("standing in", _command(form)).open() as driver:
        load = await driver.load(2, 0.2)
        assert len(driver.pids) == 1
    assert load.calls > 2
    assert 0 < load.p50 <= load.p99


async def test_a_wrong_result_is_no_fast_call() -> None:
    async with named("wrong", _command("wrong")).open() as driver:
        with pytest.raises(RuntimeError, match="A response is wrong"):
            await driver.load(1, 0.2)


def test_a_response_is_complete_with_its_length_or_its_last_chunk() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
    assert not is_complete(head[:-2])
    assert not is_complete(head + b"abc")
    assert is_complete(head + b"abcd")
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    assert not is_complete(chunked)
    assert is_complete(chunked + b"0\r\n\r\n")


def test_a_named_peer_stands_last_in_the_report() -> None:
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
        "peer:other gateway": [Figures("peer:other gateway", {32: load}, 80.0)],
        "stdio": [Figures("stdio", {32: load}, 80.0)],
    }
    written = io.StringIO()
    show(results, Console(width=200, file=written))
    text = written.getvalue()
    assert 0 < text.index("Leaseway, stdio shared") < text.index("other gateway")


def test_a_peer_needs_a_name_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peer", "agentgateway", "--list"])
    assert "write NAME=COMMAND" in capsys.readouterr().err


def test_a_run_with_a_row_that_fails_names_it_and_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["--rows", "peer:gone", "--peer", "gone=false", "--rounds", "1"]
    assert main(command) == 1
    assert "because they failed: peer:gone." in capsys.readouterr().out


def test_a_pattern_without_a_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rows", "stdio,frnot"]) == 2
    assert "no row matches frnot" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peer", "name"], "write NAME=COMMAND"),
        (["--peer", "name= "], "write NAME=COMMAND"),
        (["--peer", "name=a 'quote"], "No closing quotation"),
        (["--peer", "name=no-such-program {port}"], "there is no program 'no-such-program'"),
        (["--rounds", "0"], "no whole number of 1 or more"),
        (["--seconds", "-1"], "no number above 0"),
    ],
)
def test_an_option_that_can_measure_nothing_is_refused_before_anything_runs(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{", '{"rows": []}', "[]"])
def test_a_file_without_figures_is_not_shown(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    if content is not None:
        file.write_text(content)
    assert main(["--show", str(file)]) == 2
    assert "cannot be shown" in capsys.readouterr().out


def test_a_peer_that_ends_is_named_and_earlier_figures_stay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    file.write_text("earlier")
    ends = shlex.join([sys.executable, "-c", "raise SystemExit(7)"])
    options = ["--rows", "peer:ends", "--rounds", "1", "--json", str(file)]
    assert main(["--peer", f"ends={ends}", *options]) == 1
    said = capfd.readouterr()
    assert "peer:ends: A process exited with status 7 before it listened." in said.err
    assert "Traceback" not in said.err
    assert "because they failed: peer:ends." in said.out
    assert file.read_text() == "earlier"
