"""Permissions: calls that their rules deny."""

from __future__ import annotations

import posixpath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.spec.permissions import EVERYTHING, Permissions, expressions
from leaseway.spec.rules import compile_expression

BASE = "/srv/app"
SOME = Permissions(
    allowed_paths=("/data", "reports/", "/srv/app/open"),
    denied_paths=(".env", "secrets/", "/data/private"),
)


def denied(
    permissions: Permissions, args: dict[str, Any], schema: object = None, base: str = BASE
) -> bool:
    facts = {"tool": "t", "tenant": "", "agent": "", "session": "", "args": args}
    rules = [text for _, text in expressions(permissions, base, schema, reads_only=True)]
    return any(compile_expression(text).denies(facts) for text in rules)


@pytest.mark.parametrize(
    "path",
    [
        "/data", "/data/", "/data/a/b.txt", "/data/.envoy", "reports/1.txt", "./reports",
        "/srv/app/reports/x", "open/y", "file:///data/a", "file://localhost/data/a", None,
        ["/data/a", "reports/b"], [],
    ],
)  # fmt: skip
def test_allowed_paths_pass(path: object) -> None:
    assert not denied(SOME, {"path": path})


@pytest.mark.parametrize(
    "path",
    [
        "/", "/etc/passwd", "/database", "/srv/app", ".", "", "other", "..", "../x", "~/x",
        "/data/../etc/passwd", "/data/./x", "/data//x", "/data/a\\..\\b", "/data/a\nb",
        "/data/.env", "/data/a/.env/b", "reports/secrets", "secrets/a", "reports/a/secrets/b",
        "/data/private", "/data/private/x", "file:///etc/passwd", "FILE:///data/a",
        "file:/data/a", "file:data", "file:///data/%2e%2e/etc", "file://elsewhere/data/a",
        "file:///data/private/x", "file:///data/a/../../etc", "file:///data/a?x", 7, {"a": 1},
        ["/data/a", "/etc/passwd"], [["/etc/passwd"]],
    ],
)  # fmt: skip
def test_other_paths_are_denied(path: object) -> None:
    assert denied(SOME, {"path": path})


@pytest.mark.parametrize(
    "name",
    ["path", "paths", "file", "filePath", "file_path", "source", "destination", "repo-path",
     "outputDir", "FILENAME", "cwd"],
)  # fmt: skip
def test_arguments_are_paths_by_their_names(name: str) -> None:
    assert denied(SOME, {name: "/etc/passwd"})
    assert not denied(SOME, {name: "/data/x"})


def test_other_arguments_are_not_checked() -> None:
    for name in ("content", "query", "profile", "datafileish", "pathology"):
        assert not denied(SOME, {name: "/etc/passwd"})


def test_uris_of_files_are_checked() -> None:
    assert not denied(SOME, {"uri": "https://example.org/../x"})
    assert not denied(SOME, {"uri": "file:///data/x"})
    for uri in ("file:///etc/passwd", "FILE:///etc/passwd", "/etc/passwd", "../x", "file:x"):
        assert denied(SOME, {"uri": uri})


@pytest.mark.parametrize("extra", [{}, {"anyOf": [{"type": "object"}]}])
def test_nested_paths_are_found_by_the_schema(extra: dict[str, Any]) -> None:
    edit = {"type": "object", "properties": {"path": {"type": "string"}}, **extra}
    schema = {
        "$defs": {"edit": edit},
        "properties": {
            "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}},
            "options": {"type": "object", "properties": {"target_dir": {"type": "string"}}},
            "where": {"type": "string", "format": "path"},
        },
    }
    assert not denied(SOME, {"edits": [{"path": "/data/a"}, {}], "where": "/data"}, schema)
    assert denied(SOME, {"edits": [{"path": "/data/a"}, {"path": "/etc/passwd"}]}, schema)
    assert denied(SOME, {"options": {"target_dir": "/etc"}}, schema)
    assert denied(SOME, {"where": "/etc"}, schema)
    assert not denied(SOME, {"edits": 7, "options": None}, schema)


def test_denied_paths_work_without_allowed_paths() -> None:
    only = Permissions(denied_paths=("/srv/app/keys", "secrets/"))
    for path in ("/etc/passwd", "x", "keys2", "/srv/app"):
        assert not denied(only, {"path": path})
    for path in ("keys/a", "./keys", "/srv/app/keys", "a/secrets", "x/../keys", "~/secrets"):
        assert denied(only, {"path": path})
    assert denied(only, {"path": "keys"}, base="")
    assert denied(only, {"path": "anything"}, base="/srv/app/keys/below")


def test_relative_paths_are_allowed_as_written_if_the_base_is_unknown() -> None:
    relative = Permissions(allowed_paths=("reports/",), denied_paths=("secrets",))
    assert not denied(relative, {"path": "reports/a"}, base="")
    assert denied(relative, {"path": "reports/secrets"}, base="")
    assert denied(relative, {"path": "/srv/app/reports/a"}, base="")
    everything = Permissions(allowed_paths=("/",))
    assert not denied(everything, {"path": "/etc/passwd"})
    assert denied(Permissions(allowed_paths=()), {"path": "x"})


def test_read_and_write_apply_by_the_effect_of_a_tool() -> None:
    def rules(permissions: Permissions, *, reads_only: bool) -> list[str]:
        return [text for _, text in expressions(permissions, BASE, None, reads_only)]

    assert rules(Permissions(write=False), reads_only=False) == ["true"]
    assert rules(Permissions(write=False), reads_only=True) == []
    assert rules(Permissions(read=False), reads_only=True) == ["true"]
    assert rules(Permissions(read=False), reads_only=False) == []
    assert rules(EVERYTHING, reads_only=False) == []


PARTS = st.sampled_from(["data", "private", "a", "..", ".", "", ".env", "secrets", "srv", "app"])


@given(st.lists(PARTS, max_size=6), st.booleans())
def test_no_spelling_of_a_path_reaches_a_denied_one(parts: list[str], absolute: bool) -> None:
    path = ("/" if absolute else "") + "/".join(parts)
    if denied(SOME, {"path": path}):
        return
    resolved = posixpath.normpath(posixpath.join(BASE, path))
    allowed = ("/data", "/srv/app/reports", "/srv/app/open")
    assert any(resolved == each or resolved.startswith(each + "/") for each in allowed)
    assert not resolved.startswith("/data/private")
    assert not {".env", "secrets"} & set(resolved.split("/"))
