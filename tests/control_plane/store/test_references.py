"""Where a connection string comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.control_plane.store.port import StoreUnavailable
from leaseway.control_plane.store.references import parse_reference


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "dsn"
    reference = parse_reference(f"file:{path}")
    for text in ("postgresql://a", "postgresql://b"):
        path.write_text(f"{text}\n")
        assert reference.read() == text


def test_a_variable_is_read() -> None:
    assert parse_reference("env:DSN").read({"DSN": "postgresql://a"}) == "postgresql://a"


def test_a_string_that_is_missing_empty_or_too_long_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "long").write_text("x" * 16_385)
    for name in ("none", "empty", "bytes", "long"):
        with pytest.raises(StoreUnavailable, match=f"file:{tmp_path / name} "):
            parse_reference(f"file:{tmp_path / name}").read()
    with pytest.raises(StoreUnavailable, match="env:DSN is missing"):
        parse_reference("env:DSN").read({})
    (tmp_path / "long").write_text("x" * 16_384)
    assert len(parse_reference(f"file:{tmp_path / 'long'}").read()) == 16_384
