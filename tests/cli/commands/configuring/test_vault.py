"""`leaseway vault`: values are read from stdin or a hidden prompt, and never printed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.vaults import QUICK_SCRYPT

from leaseway.vault import file as vault
from leaseway.vault.file import MAX_VALUE, read_vault
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import Login, LoginKey, LoginStore

Run = Callable[..., Result]
KEY = "a key of more than sixteen characters"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VaultPlace:
    monkeypatch.setattr(vault, "_SCRYPT", QUICK_SCRYPT)
    for name in ("LEASEWAY_VAULT", "LEASEWAY_VAULT_KEY", "LEASEWAY_VAULT_NEW_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".leaseway"
    return VaultPlace(folder / "vault.encrypted", folder / "vault.key")


def test_a_secret_is_set_listed_and_removed(run: Run, place: VaultPlace) -> None:
    done = run("vault", "set", "db", input="hunter22\n")
    assert (done.exit_code, done.stdout) == (0, "")
    assert str(place.key_file) in done.stderr
    assert read_vault(place)["db"].value == "hunter22"

    listed = run("vault", "list", "--json")
    [entry] = json.loads(listed.stdout)
    assert entry["name"] == "db"
    assert set(entry) == {"name", "set_at"}
    table = run("vault", "list")
    assert table.stdout.splitlines()[1].startswith("db ")
    assert "hunter22" not in listed.output + table.output + done.output

    assert run("vault", "rm", "db").exit_code == 0
    assert json.loads(run("vault", "list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a ", " a "), ("a\nb", "a\nb")],
)
def test_one_trailing_newline_is_not_part_of_the_value(
    run: Run, place: VaultPlace, given: str, kept: str
) -> None:
    assert run("vault", "set", "x", input=given).exit_code == 0
    assert read_vault(place)["x"].value == kept


def test_a_value_on_the_command_line_is_rejected_and_not_printed(
    run: Run, place: VaultPlace
) -> None:
    done = run("vault", "set", "x", "hunter22")
    assert done.exit_code == 2
    assert "can't be an argument" in done.stderr
    assert "hunter22" not in done.output
    assert not place.path.exists()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("a b", "x", "is not a valid secret name"),
        ("a", "", "is empty"),
        ("a", "\n", "is empty"),
        ("a", "x" * (MAX_VALUE + 1), "more than"),
        ("a", b"\xff\xff", "not UTF-8"),
    ],
)
def test_an_invalid_secret_is_a_usage_error(
    run: Run, place: VaultPlace, name: str, value: str | bytes, says: str
) -> None:
    done = run("vault", "set", name, input=value)
    assert done.exit_code == 2
    assert says in done.stderr
    assert not place.path.exists()


def test_the_largest_value_may_have_a_trailing_newline(run: Run, place: VaultPlace) -> None:
    assert run("vault", "set", "a", input="x" * MAX_VALUE + "\r\n").exit_code == 0
    assert read_vault(place)["a"].value == "x" * MAX_VALUE


def test_an_unreadable_vault_is_an_error_message(run: Run, place: VaultPlace) -> None:
    assert run("vault", "rm", "nothing").exit_code == 1
    run("vault", "set", "a", input="1")
    wrong = run("vault", "list", env={"LEASEWAY_VAULT_KEY": KEY})
    assert wrong.exit_code == 1
    assert wrong.stderr.startswith("leaseway: The vault ")
    place.path.write_bytes(b"no vault")
    damaged = run("vault", "set", "b", input="2")
    assert (damaged.exit_code, "is damaged or not a vault" in damaged.stderr) == (1, True)
    short = run("vault", "list", env={"LEASEWAY_VAULT_KEY": "short"})
    assert short.exit_code == 2
    assert "Traceback" not in wrong.output + damaged.output + short.output


def test_the_vault_and_its_key_can_be_elsewhere(run: Run, tmp_path: Path) -> None:
    there = ("--vault", str(tmp_path / "v"), "--vault-key-file", str(tmp_path / "k"))
    assert run("vault", "set", "a", *there, input="1").exit_code == 0
    by_environment = run(
        *("vault", "list", "--json", "--vault-key-file", str(tmp_path / "k")),
        env={"LEASEWAY_VAULT": str(tmp_path / "v")},
    )
    assert [row["name"] for row in json.loads(by_environment.stdout)] == ["a"]


def test_rotating_the_key_file_keeps_every_command_working(run: Run, place: VaultPlace) -> None:
    run("vault", "set", "a", input="1")
    before, old_key = place.path.read_bytes(), place.key_file.read_text()
    assert run("vault", "rotate").exit_code == 0
    assert place.path.read_bytes() != before
    assert old_key.strip() not in place.key_file.read_text()
    assert read_vault(place)["a"].value == "1"


def test_rotating_from_and_to_the_environment(run: Run, place: VaultPlace) -> None:
    old = {"LEASEWAY_VAULT_KEY": KEY}
    run("vault", "set", "a", input="1", env=old)
    assert not place.key_file.exists()
    unsaid = run("vault", "rotate", env=old)
    assert unsaid.exit_code == 2
    assert "LEASEWAY_VAULT_NEW_KEY" in unsaid.stderr
    done = run("vault", "rotate", env={**old, "LEASEWAY_VAULT_NEW_KEY": f"new {KEY}"})
    assert done.exit_code == 0
    assert KEY not in done.output
    assert run("vault", "list", env=old).exit_code == 1
    assert run("vault", "list", env={"LEASEWAY_VAULT_KEY": f"new {KEY}"}).exit_code == 0


def test_rotating_to_a_new_key_file_creates_it(run: Run, place: VaultPlace, tmp_path: Path) -> None:
    run("vault", "set", "a", input="1", env={"LEASEWAY_VAULT_KEY": KEY})
    new = tmp_path / "new.key"
    done = run("vault", "rotate", "--new-key-file", str(new), env={"LEASEWAY_VAULT_KEY": KEY})
    assert done.exit_code == 0, done.output
    assert new.stat().st_mode & 0o777 == 0o600
    assert run("vault", "list", "--vault-key-file", str(new)).exit_code == 0


def test_rotating_needs_no_secret_if_somebody_is_logged_in(
    run: Run, place: VaultPlace, tmp_path: Path
) -> None:
    login, new = Login(LoginKey("mail", "https://h"), access_token="t"), tmp_path / "new.key"
    LoginStore(place).write(login)
    old_key = place.key_file.read_text()
    done = run("vault", "rotate")
    assert done.exit_code == 0, done.output
    assert old_key.strip() not in place.key_file.read_text()
    assert LoginStore(place).read(login.key) == login
    wrong = {"LEASEWAY_VAULT_KEY": KEY}
    refused = run("vault", "rotate", "--new-key-file", str(new), env=wrong)
    assert refused.exit_code == 1
    assert "does not open" in refused.stderr
    assert not new.exists()
    assert run("vault", "rotate", "--new-key-file", str(new)).exit_code == 0
    assert LoginStore(replace(place, key_file=new)).read(login.key) == login


def test_a_failed_rotation_creates_no_key(run: Run, place: VaultPlace, tmp_path: Path) -> None:
    new = tmp_path / "new.key"
    assert run("vault", "rotate", "--new-key-file", str(new)).exit_code == 1
    run("vault", "set", "a", input="1", env={"LEASEWAY_VAULT_KEY": KEY})
    wrong = {"LEASEWAY_VAULT_KEY": f"not {KEY}"}
    assert run("vault", "rotate", "--new-key-file", str(new), env=wrong).exit_code == 1
    assert not new.exists()


def test_up_passes_the_vault_options_to_its_workers(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    class Up:
        def __init__(self, options: Any) -> None:
            seen.append(options.vault)

        async def run(self) -> int:
            return 0

    monkeypatch.setattr("leaseway.cli.commands.running.up._Up", Up)
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers: {}\n")
    assert run("up", "--config", str(config)).exit_code == 0
    run("up", "--config", str(config), "--vault", "/v", "--vault-key-file", "/k")
    assert seen == [[], ["--vault", "/v", "--vault-key-file", "/k"]]
    short = run("up", "--config", str(config), env={"LEASEWAY_VAULT_KEY": "short"})
    assert (short.exit_code, "fewer than 16" in short.stderr) == (2, True)


def test_a_prompt_asks_twice_and_hides_the_value(place: VaultPlace, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "leaseway.cli.main", "vault", "set", "db"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "HOME": str(tmp_path)},
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    shown = b""
    for question in (b"Value of db: ", b"confirmation: "):
        while question not in shown.rpartition(b"hunter")[2] and not shown.endswith(question):
            shown += os.read(ours, 4096)
        os.write(ours, b"hunter22\n")
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # the other end is closed: the process has ended
    os.close(ours)
    assert process.wait(60) == 0, shown
    assert b"hunter22" not in shown
    vault_of = VaultPlace(place.path, place.key_file)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vault, "_SCRYPT", {"length": 32, "n": 2**15, "r": 8, "p": 1})
        assert read_vault(vault_of)["db"].value == "hunter22"


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
