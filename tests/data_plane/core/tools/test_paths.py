"""Every text in arguments is judged by the permitted paths, wherever it is and however written."""

from __future__ import annotations

import posixpath
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pace import slowness

from leaseway.data_plane.core.tools.paths import MAX_VALUES, PathJudge
from leaseway.spec.policy import Permissions

BASE = "/srv/app"
SOME = Permissions(
    allowed_paths=("/data", "reports/", "/srv/app/open"),
    denied_paths=(".env", "secrets/", "/data/private"),
)


def denied(
    permissions: Permissions, args: dict[str, Any], schema: object = None, base: str = BASE
) -> bool:
    return PathJudge(permissions, base, schema).denied(args) is not None


@pytest.mark.parametrize(
    "path",
    [
        "/data", "/data/", "/data/a/b.txt", "/data/.envoy", "reports/1.txt", "./reports",
        "/srv/app/reports/x", "open/y", "file:///data/a", "file://localhost/data/a", None,
        ["/data/a", "reports/b"], [], "/data/100%.txt", "/data/My Files/été.txt",
        [{"path": "/data/a", "content": "any text\n/etc/passwd"}], True, "open/[id].tsx",
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
        ["/data/a", "/etc/passwd"], [["/etc/passwd"]], [{"from": "etc/passwd"}],
        {"etc/passwd": "new content"}, "/data/.ENV", "/data/Secrets/x", "/data/private./x",
        "/data/%2e%2e/etc", "/data/%252e%252e/etc", "/data/priv*", "/data/p[r]ivate/x", "$HOME/x",
        "https://example.org/x", "/data/\uff0e\uff0e/etc", "C:\\x", "C:/x", "x" * 5_000,
    ],
)  # fmt: skip
def test_other_paths_are_denied(path: object) -> None:
    assert denied(SOME, {"path": path})


@pytest.mark.parametrize(
    "name",
    ["path", "paths", "file", "filePath", "file_path", "source", "destination", "repo-path",
     "outputDir", "FILENAME", "cwd", "file_name", "fileName", "filename", "filepath", "pathname",
     "srcFolder", "target_directory", "sourceURI", "newFilePath", "path1", "file.path",
     "working_dir", "x" * 500 + "_path"],
)  # fmt: skip
def test_arguments_are_paths_by_their_names(name: str) -> None:
    assert denied(SOME, {name: "etc/passwd"})
    assert not denied(SOME, {name: "/data/x"})


def test_texts_that_name_no_file_pass() -> None:
    for name in ("profile", "content", "query", "pathology", "file_type", "path_pattern"):
        assert not denied(SOME, {name: "default"})
    for text in (
        "etc/passwd or not", "text/plain", "a / b", "12:30", "Note: see below", "**/*.md", "100%",
        r"\bfoo\b", r"\d+", "mailto:a@b", "https://example.org/../x", "// a comment\nreturn 1\n",
        "memo://insights/1", "postgres://db.example/app", "~5 items", "C: is a drive", "", "s3://b/k",
    ):  # fmt: skip
        assert not denied(SOME, {"content": text}), text


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd", " /etc/passwd", "/etc/passwd\n", "\t/etc/passwd", "\u200b/etc/passwd",
        "../../etc/passwd", "reports/../../../etc/passwd", "~/.ssh/id", "~root/.ssh/id",
        "\\\\host\\share", "\\etc\\passwd", "%2fetc%2fpasswd", "%252fetc%252fpasswd",
        "C:\\Windows\\win.ini", "C:/x", "$HOME/.ssh/id", "${HOME}/.ssh/id", "//host/share/x",
        "conf/.env", ".env", ".ENV", "a/secrets/b", "secrets", "reports%2f..%2f..%2fx",
        "'/etc/passwd'", '"/etc/passwd"', "(/etc/passwd)", "</etc/passwd>", "[/etc/passwd]",
        "@/etc/passwd", "@~/.ssh/id", "--file=/etc/passwd", "x=/etc/passwd", "if='/etc/passwd'",
        "%HOME%/.ssh/id", "/data/a,/etc/passwd", "/data/a:/etc/passwd", "/data/a; /etc/passwd",
        "/data/a /etc/passwd", "/data/a|/etc/passwd", "/data/a '/etc/passwd'", "/data/a,~/.ssh/id",
    ],
)  # fmt: skip
def test_texts_with_other_names_are_judged_by_their_look(text: str) -> None:
    assert denied(SOME, {"anything": text})


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd", " file:///etc/passwd", "\x01file:///etc/passwd", "FILE:///etc/passwd",
        "URL:file:///etc/passwd", "url:file:///etc/passwd", "file:x", "file:/etc/passwd",
        "file:\\\\\\etc\\passwd", "fi\nle:///etc/passwd", "fi\tle:///etc/passwd",
        "file://host/etc/passwd", "file:////etc/passwd", "file:///%65tc/passwd",
        "%66ile:///etc/passwd", "jar:file:///etc/x!/y", "view-source:file:///etc/passwd",
        "jar:jar:jar:jar:jar:file:///x", "local-file:///etc/passwd", "netdoc:///etc/passwd",
        "x:/etc/passwd", "x:///etc/passwd", "x://localhost/etc/passwd", "git+file:///etc/x",
        "\ufb01le:///etc/passwd", "file\uff1a///etc/passwd", "memo://a/../../etc/passwd",
        "memo://a/secrets/b", "blob:file:///etc/passwd", "URL:/etc/passwd", "file:///data/../etc",
        "file:///data/a#x", "file:///data/a\x00b", "file://localhost:80/data/a", "..",
        "local_file:///etc/passwd", "php://filter/resource=/etc/passwd", "vscode://file/etc/passwd",
        "/etc/passwd",
    ],
)  # fmt: skip
def test_every_spelling_of_a_files_address_is_denied(uri: str) -> None:
    judge = PathJudge(SOME, BASE)
    assert judge.denied({"anything": uri}) is not None
    assert judge.denied({"uri": uri}) is not None
    assert not judge.permits_uri(uri)


SCHEMAS: list[Any] = [
    None,
    {"type": "object", "additionalProperties": True},
    {"patternProperties": {"^f": {"format": "path"}}},
    {"properties": {"list": {"prefixItems": [{"format": "path"}]}}},
    {"if": {"properties": {"list": {}}}, "then": {"properties": {"list": {"format": "path"}}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_texts_are_judged_at_every_depth_whatever_the_schema_says(schema: Any) -> None:
    for wrap in (
        lambda value: {"list": [value]},
        lambda value: {"a": {"b": [{"c": {"d": {"e": {"f": {"g": {"h": value}}}}}}]}},
        lambda value: {f"p{n}": 1 for n in range(300)} | {"p301": value},
        lambda value: {"map": {value: "content"}},
        lambda value: {value: 1},
    ):
        assert denied(SOME, wrap("/etc/passwd"), schema)
        assert denied(SOME, wrap("URL:file:///etc/passwd"), schema)
        assert not denied(SOME, wrap("/data/a"), schema)
    nested = {"a": {"b": [{"c": {"file_name": "etc/passwd"}}]}}
    assert denied(SOME, nested, schema)


def test_a_schemas_format_makes_a_name_that_of_a_path_anywhere() -> None:
    schema = {"$defs": {"x": {"properties": {"where": {"type": "string", "format": "path"}}}}}
    assert denied(SOME, {"any": [{"where": "etc"}]}, schema)
    assert not denied(SOME, {"any": [{"where": "open/x"}]}, schema)


def test_denied_paths_work_without_allowed_paths() -> None:
    only = Permissions(denied_paths=("/srv/app/keys", "secrets/"))
    for path in ("/etc/passwd", "x", "keys2", "/srv/app"):
        assert not denied(only, {"path": path})
    for path in ("keys/a", "./keys", "/srv/app/keys", "a/secrets", "x/../keys", "~/secrets"):
        assert denied(only, {"path": path})
    assert denied(only, {"anything": "keys/a"})
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


PARTS = st.sampled_from(
    ["data", "private", "a", "..", ".", "", ".env", "secrets", "srv", "app", "%2e%2e", "*", "~"]
)


@given(st.lists(PARTS, max_size=6), st.booleans(), st.sampled_from(["", "file://", "x:", " "]))
def test_no_spelling_of_a_path_reaches_a_denied_one(
    parts: list[str], absolute: bool, prefix: str
) -> None:
    path = prefix + ("/" if absolute else "") + "/".join(parts)
    if denied(SOME, {"path": path}):
        return
    path = path.removeprefix("file://").strip()
    resolved = posixpath.normpath(posixpath.join(BASE, path.replace("%2e", ".")))
    allowed = ("/data", "/srv/app/reports", "/srv/app/open")
    assert any(resolved == folder or resolved.startswith(folder + "/") for folder in allowed)
    assert not resolved.startswith("/data/private")
    assert not {".env", "secrets"} & set(resolved.split("/"))


@pytest.mark.parametrize(
    "arguments",
    [
        {f"name{n}_path": 1 for n in range(20_000)},
        {f"n{n}": "x" for n in range(MAX_VALUES - 2)},
        {"a": ["2024/01/02 12:30%"] * 3_900},
        {"a": ["%41" * 1_300] * 900},
        {"a": ["é/" * 2_000] * 700},
        {"a": "/" + "../" * 1_000_000},
        {"a": ["**/" * 1_300] * 900},
        {"a": ["*a*/" * 100] * 900},
        {"path": ["/data/" + "*a*/" * 100] * 900},
        {"path": ["/data/é/" + "x/" * 10] * 3_000},
    ],
)
def test_judging_takes_little_time(arguments: dict[str, Any]) -> None:
    judge = PathJudge(SOME, BASE)
    took = []
    for _ in range(3):
        began = time.thread_time()
        judge.denied(arguments)
        took.append(time.thread_time() - began)
    assert min(took) < 0.05 * slowness()
