"""The root command: help, unknown words, and errors as sentences."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from leaseway.cli import app

Run = Callable[..., Result]

COMMANDS = [
    "up",
    "control-plane",
    "worker",
    "mcp",
    "mcp-front",
    "wait",
    "status",
    "top",
    "events",
    "trace",
    "dump",
    "runbook",
    "check",
    "config",
    "diff",
    "import",
    "new",
    "servers",
    "tools",
    "call",
    "prompts",
    "prompt",
    "resources",
    "resource",
    "artifact",
    "leases",
    "lease",
    "workers",
    "problems",
    "approvals",
    "key",
    "audit",
    "vault",
    "logs",
    "version",
    "completion",
]


def test_the_commands_are_these() -> None:
    assert list(app.COMMANDS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.exit_code == 0
    assert f"Usage: leaseway {name}" in done.stdout


def test_an_unknown_command_names_the_nearest(run: Run) -> None:
    done = run("sevrers")
    assert done.exit_code == 2
    assert done.stderr == ("leaseway: There is no command 'sevrers'. Did you mean 'servers'?\n")


def test_a_word_like_no_command_points_at_help(run: Run) -> None:
    done = run("qqqq")
    assert done.exit_code == 2
    assert done.stderr == "leaseway: There is no command 'qqqq'. See: leaseway --help\n"


def test_an_unknown_option_is_a_usage_error_in_one_line(run: Run) -> None:
    done = run("servers", "--jsn")
    assert done.exit_code == 2
    assert done.stderr.startswith("leaseway: No such option")
    assert "--json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bad_address_is_a_usage_error_that_says_how_to_write_one(run: Run) -> None:
    done = run("servers", "--address", "nowhere")
    assert done.exit_code == 2
    assert "HOST:PORT" in done.stderr


def test_the_version_option_prints_it(run: Run) -> None:
    done = run("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("leaseway ")


def test_a_fault_of_ours_is_a_sentence_and_never_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def broken() -> None:
        raise RuntimeError("something inside")

    monkeypatch.setitem(app.COMMANDS, "version", "broken")
    monkeypatch.setattr(app._RootGroup, "get_command", lambda *_: broken)
    done = run("version")
    assert done.exit_code == 1
    assert done.stderr.startswith("leaseway: RuntimeError: something inside")
    assert "Traceback" not in done.output


def test_a_missing_package_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leaseway.control_plane.app", None)
    done = run("control-plane", "--listen", "127.0.0.1:0")
    assert done.exit_code == 1
    assert "pip install 'leaseway[all]'" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_our_variable(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_LEASEWAY_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_that_asks_gets_our_commands() -> None:
    environment = {
        **os.environ,
        "_LEASEWAY_COMPLETE": "bash_complete",
        "COMP_WORDS": "leaseway wor",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli.main"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert set(done.stdout.split()) == {"plain,worker", "plain,workers"}


def test_a_reader_that_has_gone_ends_the_command_in_silence() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "leaseway.cli.main", "completion", "bash"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == ""
    assert process.wait(timeout=60) == 1


def test_a_stdout_that_is_closed_from_the_start_is_no_failure(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers:\n  a: {transport: stdio, command: serve}\n")
    words = [sys.executable, "-m", "leaseway.cli.main", "config", "--config", str(config)]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *words],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_listing_help_loads_neither_a_plane_nor_grpc() -> None:
    code = (
        "import sys; from leaseway.cli.app import cli\n"
        "try: cli.main(['--version'])\n"
        "except SystemExit: pass\n"
        "loaded = [n for n in ('grpc', 'mcp', 'rich', 'leaseway.sdk', 'leaseway.control_plane')"
        " if n in sys.modules]\n"
        "print(loaded)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_for_nothing_at_all_is_a_usage_error_without_our_name_before_it(run: Run) -> None:
    for words in ((), ("lease",), ("vault",)):
        done = run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: leaseway")


def test_no_summary_of_a_command_is_cut(run: Run) -> None:
    for words in ((), ("lease",), ("vault",), ("worker",)):
        assert "..." not in run(*words, "--help").stdout.partition("Commands:")[2]


def test_an_option_of_a_command_before_its_name_is_told_its_place(run: Run) -> None:
    done = run("--json", "tools")
    assert done.exit_code == 2
    assert done.stderr.endswith("Options of a command come after its name.\n")
    assert "come after" not in run("tools", "--jsn").stderr


def test_a_command_that_takes_files_says_so_to_who_gives_config(run: Run) -> None:
    assert run("check", "--config", "a.yaml").stderr.endswith(" check FILE\n")


@pytest.mark.parametrize("command", ["up", "control-plane", "config"])
def test_a_file_without_its_option_is_told_of_it(run: Run, command: str) -> None:
    done = run(command, "mcp.yaml")
    assert done.exit_code == 2
    assert f"leaseway {command} --config mcp.yaml" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up", "--public-url", "https://mcp.example.com"), "add --mcp HOST:PORT"),
        (("mcp-front", "--public-url", "mcp.example.com"), "must begin with https:// or http://"),
        (("mcp-front", "--public-url", "https://[x"), "name a host"),
    ],
)
def test_a_public_url_is_one_and_has_a_front(run: Run, words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("leaseway ")


def test_a_full_disk_under_stdout_is_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "leaseway.cli", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "leaseway: Can't write the output: No space left on device.\n"


def test_a_character_that_the_output_lacks_is_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli", "call", "--timeout", "€"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"\\u20ac" in done.stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_is_a_number_of_seconds_above_0(run: Run, seconds: str) -> None:
    done = run("wait", "--timeout", seconds)
    assert done.exit_code == 2
    assert f"'{seconds}' is not a number of seconds above 0." in done.stderr


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 129])
def test_a_workers_name_is_one_word(run: Run, name: str) -> None:
    done = run("worker", "--id", name)
    assert done.exit_code == 2
    assert "'--id'" in done.stderr


def test_a_word_for_a_command_of_another_name_is_told_that_name(run: Run) -> None:
    assert "Did you mean 'worker drain'?" in run("drain", "w1").stderr
    assert "Did you mean 'lease revoke'?" in run("revoke").stderr
    assert "Did you mean '--help'?" in run("help").stderr
