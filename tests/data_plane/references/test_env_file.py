"""Files of variables: what a line gives, and which file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.references.resolver import BadEnvFile, parse_env_file
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.errors import Fault


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("  export A = b c ", "b c"),
        ("A=", ""),
        ("A=b#c", "b#c"),
        ("A=b # said", "b"),
        ("A='b # \\n ${C}' # said", "b # \\n ${C}"),
        ('A="b # \\n\\"c\\\\"', 'b # \n"c\\'),
        ("A=postgres://u:p@h/d?x=1", "postgres://u:p@h/d?x=1"),
        ("A=1\nA=2", "2"),
        (
            'A="-----BEGIN KEY-----\r\nabc=\r\n-----END KEY-----"',
            "-----BEGIN KEY-----\nabc=\n-----END KEY-----",
        ),
        ("A='{\n # \"b\"\n}' # said", '{\n # "b"\n}'),
        ("A=b\u2028c\x0bd\x85", "b\u2028c\x0bd"),
    ],
)
def test_each_entry_is_a_variable(line: str, value: str) -> None:
    assert parse_env_file(f"# all of them\n\n{line}\r\n") == {"A": value}


@pytest.mark.parametrize("line", ["A", "1A=b", "A='b", 'A="b', 'A="b" c', "=b"])
def test_an_invalid_line_is_named_without_its_value(line: str) -> None:
    with pytest.raises(BadEnvFile) as refused:
        parse_env_file(f"X=1\n{line}\n")
    assert str(refused.value) == "whose line 2 is no NAME=VALUE, or has a quote without end"


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        found = parse_env_file(text)
    except BadEnvFile:
        return
    assert all(name and "\0" not in value for name, value in found.items())


def spec(path: Path, **env: str) -> ServerSpec:
    return server_spec(
        VariantKey("db"),
        "stdio",
        command="x",
        env={name: Value("literal", text) for name, text in env.items()},
        env_file=str(path),
    )


def test_the_entrys_variables_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("MODE=slow\nDB_PASSWORD=hunter22\n")
    resolved = resolve(spec(path, MODE="quick"), {})
    assert resolved.env == {"MODE": "quick", "DB_PASSWORD": "hunter22"}
    assert "hunter22" in resolved.secrets
    assert "slow" not in resolved.secrets
    path.write_text("MODE=slow\n")
    assert resolve(spec(path), {}).differs(resolved)


@pytest.mark.parametrize("text", [None, "oops\n"])
def test_a_missing_or_invalid_file_is_a_missing_reference(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / ".env"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Fault) as refused:
        resolve(spec(path), {})
    assert refused.value.metadata["problem"] == "MISSING_REFERENCE"
    assert str(path) in refused.value.message
