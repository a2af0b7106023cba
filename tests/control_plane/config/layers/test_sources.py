"""`--config`: which words make a configuration, and what is said of those that don't."""

import re
from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load

from leaseway.control_plane.config.layers.sources import (
    DEFAULT_CONFIG,
    MAX_TENANTS,
    BadSources,
    Source,
    parse_sources,
)


def test_nothing_said_is_the_default_file() -> None:
    assert parse_sources([]) == (Source("native", DEFAULT_CONFIG),)


def test_layers_are_ordered_however_they_are_named() -> None:
    words = ["session=s.yaml", "domain=acme:a.yaml", "system=base.yaml"]
    assert parse_sources(words) == (
        Source("system", Path("base.yaml")),
        Source("domain", Path("a.yaml"), "acme"),
        Source("session", Path("s.yaml")),
    )


def test_a_session_alone_lies_over_the_default_file() -> None:
    assert [source.kind for source in parse_sources(["session=s.yaml"])] == ["native", "session"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.yaml", "b.yaml"], "two files that declare servers"),
        (["a.yaml", "system=b.yaml"], "two files that declare servers"),
        (["session=a", "session=b"], "two session layers"),
        (["system=s", "domain=t:a", "domain=t:b"], "two domains of the tenant 't'"),
        (["domain=t:a"], "needs a system layer"),
        (["system="], "needs a path"),
        (["domain=no such tenant:a"], "not of the form domain=TENANT:PATH"),
        (["domain=/no/such/folder"], "no tenant and no folder"),
        ([""], "needs a path"),
    ],
)
def test_words_that_make_no_configuration_say_why(words: list[str], message: str) -> None:
    with pytest.raises(BadSources, match=message):
        parse_sources(words)


def test_a_folder_has_a_tenant_for_each_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("version: 1\nservers: {a: {transport: stdio, command: x}}\n")
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    names = ("one.yaml", "two.json", "all.yaml", "bad name.yaml", ".hidden.yaml", "notes.txt")
    for name in names:
        text = '{"version": 1, "servers": {"a": {"enabled": false}}}'
        (tenants / name).write_text(text)
    parsed = load(f"system={tmp_path / 's.yaml'}", f"domain={tenants}")
    assert [key.tenant for key in parsed.servers] == ["", "one", "two"]
    assert [Path(issue.file).name for issue in parsed.issues] == ["all.yaml", "bad name.yaml"]
    assert all("is not a valid tenant name" in issue.message for issue in parsed.issues)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([f"t{number}.yaml" for number in range(MAX_TENANTS + 1)], "more than 1000 tenants"),
        (["t.json", "t.yaml"], "The tenant 't' has another domain file, .*t.json"),
    ],
)
def test_no_domain_file_of_a_folder_is_left_out(
    tmp_path: Path, names: list[str], message: str
) -> None:
    (tmp_path / "s.yaml").write_text("version: 1\nservers: {a: {transport: stdio, command: x}}\n")
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    for name in names:
        (tenants / name).write_text('{"version": 1, "servers": {"a": {"enabled": false}}}')
    parsed = load(f"system={tmp_path / 's.yaml'}", f"domain={tenants}")
    assert (parsed.broken, parsed.servers) == (True, {})
    assert re.search(message, parsed.issues[0].message)


def test_a_file_that_cannot_be_read_refuses_everything(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"version: 1\nservers: {}\n")
    (tmp_path / "d.yaml").write_bytes(b"\xff")
    words = [f"system={tmp_path / 's.yaml'}", f"domain=t:{tmp_path / 'd.yaml'}"]
    parsed = load(*words)
    assert parsed.broken
    assert [issue.reason for issue in parsed.issues] == ["CONFIG_UNREADABLE"]


def test_a_missing_domain_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("version: 1\nservers: {}\n")
    words = [f"system={tmp_path / 's.yaml'}", f"domain=t:{tmp_path / 'd.yaml'}"]
    (issue,) = load(*words).issues
    assert (issue.severity, issue.reason, issue.tenant) == ("warning", "CONFIG_MISSING", "t")
