"""Resolving references, secrets and files of a server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.changing_values import release
from tests.data_plane.conftest import logging_to
from tests.specs import changed

from leaseway.data_plane.kinds import values as resolving
from leaseway.data_plane.kinds.values import read_references, resolve
from leaseway.data_plane.references.resolver import NO_VAULT
from leaseway.spec.kinds.builtin import Builtin
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.vault.key import VaultError
from leaseway.wire.errors import Fault, Reason


class MemoryVault:
    def __init__(self, **secrets: str) -> None:
        self._secrets = secrets

    def get(self, name: str) -> str | None:
        return self._secrets.get(name)


def spec(**more: object) -> ServerSpec:
    """Return a server of a command, or of a transport that is given anything."""
    is_command = more.keys().isdisjoint(("url", "headers", "session_id"))
    return server_spec(VariantKey("srv"), "stdio" if is_command else "pigeon", **more)


def test_every_kind_of_value_is_resolved(tmp_path: Path) -> None:
    file = tmp_path / "ca"
    file.write_text("certificate\n")
    resolved = resolve(
        spec(
            command="${BIN}",
            args=("--host", "${HOST:-localhost}"),
            env={
                "PLAIN": Value("literal", "mode-${MODE}"),
                "FROM": Value("env", "SOURCE"),
                "DB": Value("secret", "db_password"),
                "OWN": Value("secret", "own"),
                "CA": Value("file", str(file)),
            },
            headers={"Authorization": Value("env", "SOURCE")},
            session_id="${MODE}",
        ),
        {"BIN": "/bin/x", "MODE": "m", "SOURCE": "source-value", "own": "from-env"},
        MemoryVault(db_password="hunter22", own="from-vault"),
    )
    assert (resolved.command, resolved.args) == ("/bin/x", ("--host", "localhost"))
    assert resolved.session_id == "m"
    assert resolved.env == {
        "PLAIN": "mode-m",
        "FROM": "source-value",
        "DB": "hunter22",
        "OWN": "from-env",
        "CA": "certificate",
    }
    assert resolved.headers == {"Authorization": "source-value"}


def test_the_server_reads_variables_of_its_own_entry_and_process_lists_do_not() -> None:
    resolved = resolve(
        spec(
            command="x",
            args=("--header", "Authorization:${AUTH_HEADER}", "${MODE} ${LEVEL:-low}"),
            env={
                "AUTH_HEADER": Value("secret", "token"),
                "MODE": Value("literal", "of-the-entry"),
                "LEVEL": Value("literal", "high"),
            },
        ),
        {"MODE": "m"},
        MemoryVault(token="hunter22"),
    )
    assert resolved.args == ("--header", "Authorization:${AUTH_HEADER}", "m low")
    assert resolved.env["AUTH_HEADER"] == "hunter22"


def test_a_header_has_no_line_break_at_its_end() -> None:
    headers = {"A": Value("env", "TOKEN"), "B": Value("literal", "Bearer ${TOKEN}")}
    resolved = resolve(spec(headers=headers), {"TOKEN": "hunter22\r\n"}, NO_VAULT)
    assert resolved.headers == {"A": "hunter22", "B": "Bearer hunter22"}
    assert resolved.without_secrets("it got hunter22!") == "it got [hidden]!"


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return a function that logs a text and returns its line in the log file."""
    path = tmp_path / "worker.log"

    def log(text: str) -> str:
        logging.getLogger("leaseway.test").info("The server said: %s", text)
        return path.read_text().splitlines()[-1]

    with logging_to(path):
        yield log


def test_the_workers_log_hides_secrets_in_use_and_for_a_while_after(
    line: Callable[[str], str],
) -> None:
    server = spec(env={"DB": Value("secret", "db")})
    resolved_values = resolve(server, {}, MemoryVault(db="first-9d1c"))
    assert line("bad login with first-9d1c").endswith("said: bad login with [redacted]")
    newer = resolve(server, {}, MemoryVault(db="second-77ab"))
    assert line("first-9d1c, second-77ab").endswith("said: [redacted], [redacted]")
    del resolved_values
    newest = resolve(server, {}, MemoryVault(db="third-31ee"))
    assert line("second-77ab, third-31ee").endswith("said: [redacted], [redacted]")
    assert line("first-9d1c").endswith("said: [redacted]")
    for number in range(256):
        resolve(server, {}, MemoryVault(db=f"other-{number}"))
    assert line("first-9d1c").endswith("said: first-9d1c")
    assert (newer.env["DB"], newest.env["DB"]) == ("second-77ab", "third-31ee")


def test_values_are_in_no_representation() -> None:
    resolved = resolve(spec(env={"T": Value("env", "T")}, url="u"), {"T": "s3cr3t"})
    assert "s3cr3t" not in repr(resolved)
    assert repr(resolved) == "ResolvedValues()"


@pytest.mark.parametrize(
    ("more", "secret"),
    [
        ({"env": {"A": Value("env", "API_TOKEN")}}, True),
        ({"env": {"API_TOKEN": Value("env", "A")}}, True),
        ({"env": {"A": Value("env", "A")}}, True),
        ({"env": {"A": Value("env", "DATA_DIR")}}, False),
        ({"env": {"API_TOKEN": Value("literal", "value-one")}}, True),
        ({"env": {"A": Value("literal", "value-one")}}, False),
        ({"headers": {"Authorization": Value("literal", "Bearer value-one")}}, True),
        ({"headers": {"Accept": Value("literal", "value-one")}}, False),
        ({"env": {"U": Value("env", "DATABASE")}}, True),
        ({"env": {"A": Value("secret", "A")}}, True),
        ({"headers": {"X": Value("env", "A")}}, True),
        ({"env": {"U": Value("literal", "http://${API_TOKEN}@host")}}, True),
        ({"env": {"U": Value("literal", "http://${A}")}}, True),
        ({"env": {"U": Value("literal", "http://${DATA_DIR}")}}, False),
    ],
)
def test_values_that_look_like_credentials_are_hidden(
    more: dict[str, object], secret: bool
) -> None:
    environment = dict.fromkeys(("A", "API_TOKEN", "DATA_DIR"), "value-one")
    environment["DATABASE"] = "postgres://user:value-one@host/db"
    resolved = resolve(spec(**more), environment)
    assert ("value-one" in resolved.secrets) is secret


def test_all_missing_references_are_named_at_once(tmp_path: Path) -> None:
    wanting = spec(
        args=("${NOWHERE}",),
        env={"TOKEN": Value("env", "HOST_TOKEN"), "DB": Value("secret", "db")},
        headers={"X": Value("file", str(tmp_path / "none"))},
    )
    with pytest.raises(Fault) as caught:
        resolve(wanting, {"OTHER": "kept-secret"})
    fault = caught.value
    assert (fault.reason, fault.started) == (Reason.SERVER_NOT_READY, "no")
    assert fault.metadata["problem"] == "MISSING_REFERENCE"
    assert fault.metadata["keys"] == "env.TOKEN, env.DB, args[0], headers.X"
    for words in ("srv", "NOWHERE", "HOST_TOKEN", "the secret db", str(tmp_path / "none"), "set"):
        assert words in fault.message
    assert "kept-secret" not in fault.message


def test_a_file_that_is_not_text_or_too_large_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bin").write_bytes(b"\xff\xfe")
    (tmp_path / "big").write_bytes(b"x" * ((1 << 20) + 1))
    for name, words in (("bin", "not UTF-8"), ("big", "larger than")):
        with pytest.raises(Fault, match=words):
            resolve(spec(env={"A": Value("file", str(tmp_path / name))}), {})


class UnreadableVault:
    def get(self, name: str) -> str | None:
        raise VaultError("The vault /v does not open.")


def test_a_missing_secret_says_how_to_set_it() -> None:
    with pytest.raises(Fault) as missing:
        resolve(spec(env={"DB": Value("secret", "db_password")}), {}, MemoryVault())
    assert "leaseway vault set db_password" in missing.value.advice
    assert "leaseway" not in missing.value.message


def test_an_unreadable_vault_is_named_for_a_missing_secret() -> None:
    wants = spec(env={"DB": Value("secret", "db_password")})
    with pytest.raises(Fault) as caught:
        resolve(wants, {}, UnreadableVault())
    assert caught.value.metadata["problem"] == "MISSING_REFERENCE"
    assert "db_password" in caught.value.message
    assert "The vault /v does not open" in caught.value.message
    assert resolve(wants, {"db_password": "x"}, UnreadableVault()).env == {"DB": "x"}


@pytest.mark.parametrize(
    "name",
    ["LEASEWAY_VAULT_KEY", "LEASEWAY_VAULT_NEW_KEY", "LEASEWAY_KEY", "LEASEWAY_SEAL_KEY"],
)
@pytest.mark.parametrize("kind", ["env", "secret", "literal"])
def test_no_server_gets_a_key_of_leaseway(name: str, kind: Any) -> None:
    wants = spec(env={"X": Value(kind, f"${{{name}}}" if kind == "literal" else name)})
    with pytest.raises(Fault, match="a key of Leaseway's own"):
        resolve(wants, {name: "the key itself"}, MemoryVault(**{name: "the key itself"}))
    with_default = spec(args=(f"${{{name}:-none}}",))
    assert resolve(with_default, {name: "the key itself"}).args == ("none",)


def test_no_server_gets_a_file_of_leaseways_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".leaseway").mkdir()
    (tmp_path / ".leaseway" / "vault.key").write_text("the key itself")
    (tmp_path / "link").symlink_to(tmp_path / ".leaseway" / "vault.key")
    for path in (tmp_path / ".leaseway" / "vault.key", tmp_path / "link"):
        with pytest.raises(Fault, match="is Leaseway's own"):
            resolve(spec(env={"X": Value("file", str(path))}), {})


def test_resolved_values_differ_if_the_server_gets_other_values() -> None:
    wants = spec(env={"A": Value("env", "A"), "B": Value("literal", "b")})
    first = resolve(wants, {"A": "1", "OTHER": "x"})
    assert first.digest == resolve(wants, {"A": "1", "OTHER": "y"}).digest
    assert not first.differs(resolve(wants, {"A": "1"}))
    assert not first.differs(None)
    for other in (
        resolve(wants, {"A": "2"}),
        resolve(spec(headers={"A": Value("literal", "1")}, env={"B": Value("literal", "b")}), {}),
        resolve(spec(env={"A": Value("literal", "1"), "B": Value("literal", "c")}), {}),
    ):
        assert first.differs(other)


def test_a_class_gets_its_config_in_a_variable_with_references_resolved(tmp_path: Path) -> None:
    file = tmp_path / "ca"
    file.write_text("certificate\n")
    config = {
        "url": "${URL:-http://a}",
        "n": 1,
        "deep": [{"token": {"secret": "t"}}, {"ca": {"file": str(file)}}, None],
        "text": 'a "quoted" ${QUOTED}',
    }
    python = server_spec(
        VariantKey("srv"), "python", module="a.b", class_name="C", config=json.dumps(config)
    )
    resolved = resolve(python, {"QUOTED": '"x"'}, MemoryVault(t="secret-token"))
    assert resolved.command == sys.executable
    assert resolved.args == ("-P", "-m", "leaseway.server", "a.b", "C")
    assert json.loads(resolved.env["LEASEWAY_SERVER_CONFIG"]) == {
        "url": "http://a",
        "n": 1,
        "deep": [{"token": "secret-token"}, {"ca": "certificate"}, None],
        "text": 'a "quoted" "x"',
    }
    assert resolved.secrets >= {"secret-token", "certificate"}
    assert not any("http://a" in secret for secret in resolved.secrets)
    with pytest.raises(Fault, match=r"config\.deep\[0\]\.token refers to the secret t") as caught:
        resolve(python, {"QUOTED": ""})
    assert caught.value.metadata["problem"] == "MISSING_REFERENCE"
    long = changed(python, config='{"a":"${BIG}"}')
    with pytest.raises(Fault, match="config has more than 122880 bytes"):
        resolve(long, {"BIG": "x" * (120 << 10)})


def test_the_kit_gets_its_tools_as_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on = Builtin(("read_file", "http_get"), ("docs", "${ROOT}"), ("git log *",), ("${HOST}",))
    kit = server_spec(VariantKey("srv"), "builtin", builtin=on)
    resolved = resolve(kit, {"ROOT": "/r", "HOST": "a.example"})
    assert resolved.args[:3] == ("-P", "-m", "leaseway.data_plane.kit")
    assert resolved.args[3:] == (
        *("--tool", "read_file", "--tool", "http_get"),
        *("--root", str(tmp_path / "docs"), "--root", "/r"),
        *("--command", "git log *", "--host", "a.example"),
    )
    with pytest.raises(Fault, match=r"roots\[1\] refers to \$\{ROOT\}"):
        resolve(kit, {"HOST": "a"})


async def test_hanging_files_hold_up_one_thread_each_and_no_other_server(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("here")
    pipes = [tmp_path / f"pipe{number}" for number in range(12)]
    for pipe in pipes:
        os.mkfifo(pipe)
    starts = [spec(env={"A": Value("file", str(pipe))}) for pipe in pipes]
    both = spec(env={"A": Value("file", str(good)), "B": Value("file", str(pipes[0]))})
    try:
        for _ in range(3):
            tries = (read_references(start, {}, NO_VAULT, 0.2) for start in (*starts, both))
            async with asyncio.timeout(BOUND):
                outcomes = await asyncio.gather(*tries, return_exceptions=True)
            assert {getattr(outcome, "metadata", {}).get("problem") for outcome in outcomes} == {
                "MISSING_REFERENCE"
            }
        assert isinstance(outcomes[-1], Fault)
        assert outcomes[-1].metadata["keys"] == "env.B"
        fine = spec(env={"A": Value("file", str(good))})
        async with asyncio.timeout(BOUND):
            assert (await read_references(fine, {}, NO_VAULT, BOUND)).env == {"A": "here"}
    finally:
        for pipe in pipes:
            release(pipe)
    async with asyncio.timeout(BOUND):
        while resolving._hung:
            await asyncio.sleep(0.01)
