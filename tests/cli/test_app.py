"""The root command: help, unknown commands and error messages."""

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
    "tenants",
    "problems",
    "approvals",
    "key",
    "audit",
    "login",
    "logins",
    "logout",
    "vault",
    "logs",
    "version",
    "completion",
]


def test_the_commands_are_these() -> None:
    assert list(app.COMMANDS) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert done.exit_code == 0
    assert f"Usage: leaseway {name}" in done.stdout


def test_an_unknown_command_suggests_the_nearest(run: Run) -> None:
    done = run("sevrers")
    assert done.exit_code == 2
    assert done.stderr == ("leaseway: There is no command 'sevrers'. Did you mean 'servers'?\n")


def test_an_unknown_command_without_a_similar_one_points_to_help(run: Run) -> None:
    done = run("qqqq")
    assert done.exit_code == 2
    assert done.stderr == "leaseway: There is no command 'qqqq'. See: leaseway --help\n"


def test_an_unknown_option_is_a_usage_error_in_one_line(run: Run) -> None:
    done = run("servers", "--jsn")
    assert done.exit_code == 2
    assert done.stderr.startswith("leaseway: No such option")
    assert "--json" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bad_address_is_a_usage_error_with_the_format(run: Run) -> None:
    done = run("servers", "--address", "nowhere")
    assert done.exit_code == 2
    assert "HOST:PORT" in done.stderr


def test_the_version_option_prints_the_version(run: Run) -> None:
    done = run("--version")
    assert done.exit_code == 0
    assert done.stdout.startswith("leaseway ")


def test_an_internal_error_is_a_sentence_without_a_traceback(
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


def test_a_missing_package_is_an_error_with_the_command_to_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "leaseway.control_plane.app", None)
    done = run("control-plane", "--listen", "127.0.0.1:0")
    assert done.exit_code == 1
    assert "pip install 'leaseway[all]'" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_use_the_completion_variable(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_LEASEWAY_COMPLETE={shell}_complete" in done.stdout


def test_shell_completion_returns_matching_commands() -> None:
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


def test_a_closed_pipe_on_stdout_ends_the_command_silently() -> None:
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


def test_a_closed_stdout_is_not_an_error(tmp_path: Path) -> None:
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


def test_no_arguments_is_a_usage_error_that_prints_the_help(run: Run) -> None:
    for words in ((), ("lease",), ("vault",)):
        done = run(*words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: leaseway")


def test_no_summary_of_a_command_is_truncated(run: Run) -> None:
    for words in ((), ("lease",), ("vault",), ("worker",)):
        assert "..." not in run(*words, "--help").stdout.partition("Commands:")[2]


def test_a_command_option_before_the_command_name_is_a_usage_error(run: Run) -> None:
    done = run("--json", "tools")
    assert done.exit_code == 2
    assert done.stderr.endswith("Options of a command come after its name.\n")
    assert "come after" not in run("tools", "--jsn").stderr


def test_config_option_of_a_command_with_a_file_argument_suggests_the_argument(run: Run) -> None:
    assert run("check", "--config", "a.yaml").stderr.endswith(" check FILE\n")


@pytest.mark.parametrize("command", ["up", "control-plane", "config"])
def test_a_file_without_the_config_option_suggests_the_option(run: Run, command: str) -> None:
    done = run(command, "mcp.yaml")
    assert done.exit_code == 2
    assert f"leaseway {command} --config mcp.yaml" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("up", "--public-url", "https://mcp.example.com"), "add --mcp HOST:PORT"),
        (("worker", "--public-url", "https://mcp.example.com"), "add --mcp HOST:PORT"),
        (("worker", "--tenant", "acme"), "--tenant is for MCP clients: add --mcp HOST:PORT"),
        (("mcp-front", "--public-url", "mcp.example.com"), "must begin with https:// or http://"),
        (("mcp-front", "--allow-origin", "*"), "'*' is no origin: write SCHEME://HOST"),
        (("mcp-front", "--allow-origin", "https://a.example/app"), "is no origin"),
        (("mcp-front", "--allow-host", "*.example.com"), "is no host: write a name"),
        (("mcp-front", "--allow-host", "https://mcp.example.com"), "is no host"),
        (("mcp-front", "--public-url", "https://[x"), "name a host"),
        (("mcp-front", "--public-url", "https://me:pw@mcp.example.com"), "have no user"),
    ],
)
def test_a_public_url_must_be_valid_and_needs_a_front(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    done = run(*words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("leaseway ")


def test_a_full_disk_is_an_error_message() -> None:
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


def test_a_character_that_the_encoding_lacks_is_escaped() -> None:
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
def test_a_timeout_must_be_a_positive_number(run: Run, seconds: str) -> None:
    done = run("wait", "--timeout", seconds)
    assert done.exit_code == 2
    assert f"'{seconds}' is not a number of seconds above 0." in done.stderr


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 129])
def test_an_invalid_worker_id_is_a_usage_error(run: Run, name: str) -> None:
    done = run("worker", "--id", name)
    assert done.exit_code == 2
    assert "'--id'" in done.stderr


def test_common_words_for_commands_suggest_the_command(run: Run) -> None:
    assert "Did you mean 'worker drain'?" in run("drain", "w1").stderr
    assert "Did you mean 'lease revoke'?" in run("revoke").stderr
    assert "Did you mean '--help'?" in run("help").stderr
