"""The published JSON Schema says what the parser says, as far as a schema can."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import ROOT

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import IssueLog, Where
from leaseway.control_plane.config.schema.keys import READERS, SERVER_KEYS, native_schema
from leaseway.control_plane.config.schema.tables import record_of
from leaseway.control_plane.config.tree.json_tree import load_json
from leaseway.spec.keys import Flag, Key, OwnReader, Text, Whole, keys_of, setting

EXAMPLES = ROOT / "deploy" / "examples"
VALIDATOR = jsonschema_rs.validator_for(native_schema())
STDIO = {"transport": "stdio", "command": "x"}
HTTP = {"transport": "streamable_http", "url": "http://a/mcp"}
WORDS = (
    "", "A_b", "a*", "/a", "a.b", "10/m", "1h30m", "5s", "512MiB", "strict", "lazy", "safe", "auto",
    "high", "{server}_", "${A}", "http://a/b",
)  # fmt: skip
NAMES = (
    "prefix", "suffix", "remove", "add", "whitelist", "blacklist", "initial", "max", "memory",
    "cpu", "level", "network", "writable", "deny", "tools", "env", "secret", "file", "A",
)  # fmt: skip
NUMBERS = (0, 0.0005, 0.001, 0.01, 1, 1.5, 5, 6, 100, 4096, 4097, 86_400, 604_800, 2**20, 2**50, -1)
VALUES = st.recursive(
    st.booleans() | st.sampled_from(WORDS) | st.sampled_from(NUMBERS),
    lambda values: (
        st.lists(values, max_size=2) | st.dictionaries(st.sampled_from(NAMES), values, max_size=2)
    ),
    max_leaves=4,
)


def file(**entry: Any) -> dict[str, Any]:
    return {"version": 1, "servers": {"a": entry}}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_satisfy_it(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_it_knows_every_key_and_no_other() -> None:
    server = native_schema()["$defs"]["server"]
    assert set(server["properties"]) == set(SERVER_KEYS)
    assert all(server["properties"].values()), "a key without a schema"


def test_the_reference_is_written_from_the_keys(tmp_path: Path) -> None:
    pages = ("configuration.md", "rest-tools.md")
    for page in pages:
        shutil.copy(ROOT / "docs" / page, tmp_path)
    subprocess.run([sys.executable, ROOT / "tools/write_keys.py", tmp_path], check=True, timeout=60)
    for page in pages:
        written = (tmp_path / page).read_text(encoding="utf-8")
        assert written == (ROOT / "docs" / page).read_text(encoding="utf-8"), "run: make generate"


def test_each_key_has_a_sentence_and_a_reader_of_its_own_or_a_shape() -> None:
    for key in SERVER_KEYS.values():
        assert re.fullmatch(r"[A-Z`].*\.", key.declared.about), key.name
        assert isinstance(key.declared.shape, OwnReader) is (key.name in READERS), key.name
    assert set(READERS) <= set(SERVER_KEYS)


def inner_keys(schema: object, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the keys of the mappings inside a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from inner_keys(part, path)
    elif isinstance(schema, Mapping):
        for name, inner in schema.get("properties", {}).items():
            yield f"{path}.{name}", inner
            yield from inner_keys(inner, f"{path}.{name}")
        for keyword in ("anyOf", "items", "additionalProperties"):
            yield from inner_keys(schema.get(keyword), path)


WITH_KEYS_INSIDE = [key.name for key in SERVER_KEYS.values() if key.declared.inside]


def names_inside(keys: Iterable[Key]) -> set[str]:
    return {name for key in keys for name in (key.name, *names_inside(key.inside))}


@pytest.mark.parametrize("key", WITH_KEYS_INSIDE)
def test_each_declared_key_inside_a_key_is_in_the_schema(key: str) -> None:
    found = inner_keys(SERVER_KEYS[key].schema, key)
    assert {path.rpartition(".")[2] for path, _ in found} - {"env", "secret", "file"} >= (
        names_inside(SERVER_KEYS[key].declared.inside)
    )


@pytest.mark.parametrize("key", WITH_KEYS_INSIDE)
def test_each_key_inside_a_key_has_a_sentence(key: str) -> None:
    found = dict(inner_keys(SERVER_KEYS[key].schema, key))
    without = [
        path
        for path, schema in found.items()
        if "properties" not in schema  # a grant has sentences for its keys
        and not re.match(
            r"(?!Seconds, |Bytes, |Resolved on )[A-Z][^.]*\.", schema.get("description", "")
        )
    ]
    assert not [path for path in without if not is_reference(path)]


def is_reference(path: str) -> bool:
    return path.rpartition(".")[2] in ("env", "secret", "file")


def test_a_mapping_has_the_keys_that_its_class_declares_of_its_form() -> None:
    @dataclass(frozen=True)
    class Meal:
        courses: int = setting(1, Key(Whole(1, 9), "How many there are.", required_by=("dinner",)))
        is_hot: bool = setting(False, Key(Flag(), "Whether it is hot.", "hot", only=("dinner",)))
        sides: Mapping[str, str] = setting(
            {}, Key(Text(9, empty=False), "Beside it.", "salad", path="salad")
        )

    dinner = record_of(keys_of(Meal), dict[str, Any], "a meal", form="dinner")
    lunch = record_of(keys_of(Meal), dict[str, Any], "a meal", form="lunch")
    assert set(dinner.schema["properties"]) == {"courses", "hot", "salad"}
    assert set(lunch.schema["properties"]) == {"courses", "salad"}
    assert dinner.schema["required"] == ["courses"]
    assert "required" not in lunch.schema
    assert dinner.schema["properties"]["salad"] == {
        "type": "string",
        "maxLength": 9,
        "minLength": 1,
        "description": "Beside it.",
    }
    written = {"courses": 2, "hot": True, "salad": "kale"}
    tree = load_json(json.dumps(written))
    assert dinner(tree, Where(IssueLog("a.json"))) == {
        "courses": 2,
        "is_hot": True,
        "sides.salad": "kale",
    }


ACCEPTED = [
    file(**STDIO, args=["a"], env={"A": "b", "C": {"env": "D"}, "E": {"secret": "f"}}),
    file(**STDIO, transform=[{"prefix": "{server}_"}, {"prefix": {"remove": "a", "add": "b"}}]),
    file(**STDIO, transform=[{"replace": {"remove": "查询 a.b/c", "add": "_"}}]),
    file(**STDIO, restart={"initial": 0.1, "max": "2s"}, limits={"memory": "1GiB", "cpu": 2}),
    file(**STDIO, prompts={"whitelist": ["a*"]}, resources={"blacklist": ["file:///*", "ü?"]}),
    file(**STDIO, sandbox=True, max_age="1h30m", start="lazy", warm=1),
    file(**STDIO, sandbox="strict"),
    file(
        **STDIO, permissions={"write": False, "allowed_paths": ["/data"], "denied_paths": [".git"]}
    ),
    file(**STDIO, sandbox={"level": "strict", "network": True}),
    file(**HTTP, headers={"A": {"file": "/b"}}, sessionId="", protocol="auto"),
    {"version": 1, "defaults": {"transform": [{"suffix": "_x"}]}, "servers": {}},
]

REFUSED = [
    {"servers": {}},
    {"version": 2, "servers": {}},
    {"version": 1, "servers": {}, "extra": 1},
    {"version": 1, "servers": {"no good": STDIO}},
    {"version": 1, "servers": {"mcp_admin": STDIO}},
    file(command="x"),
    file(transport="stdio"),
    file(transport="carrier-pigeon"),
    file(**STDIO, comand="y"),
    file(**STDIO, url="http://a/mcp"),
    file(**HTTP, env={"A": "b"}),
    file(**STDIO, env={"A": {"env": "B", "secret": "C"}}),
    file(**STDIO, limits={"ram": "1GiB"}),
    file(**STDIO, tools={"allow": ["a"]}),
    file(**STDIO, resources={"whitelist": ["x" * 1_025]}),
    file(**STDIO, transform=[{"prefix": "a b"}]),
    file(**STDIO, call_timeout="soon"),
]


@pytest.mark.parametrize("content", ACCEPTED)
def test_what_it_accepts_the_parser_accepts(content: dict[str, Any]) -> None:
    VALIDATOR.validate(content)
    issues = parse_text(yaml.safe_dump(content), "mcp.yaml").issues
    assert [issue for issue in issues if issue.severity == "error"] == []


@pytest.mark.parametrize("content", REFUSED)
def test_what_it_refuses_the_parser_refuses(content: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(content)
    issues = parse_text(yaml.safe_dump(content), "mcp.yaml").issues
    assert any(issue.severity == "error" for issue in issues)


@given(st.sampled_from(sorted(SERVER_KEYS)), VALUES)
def test_what_the_parser_accepts_it_accepts(key: str, value: Any) -> None:
    for entry in (STDIO, HTTP):
        content = file(**entry | {key: value})
        issues = parse_text(yaml.safe_dump(content), "mcp.yaml").issues
        if not any(issue.severity == "error" for issue in issues):
            VALIDATOR.validate(content)


def bounds(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a key's schema that bounds a number; empty where it takes none."""
    options = [schema, *schema.get("anyOf", ())]
    return next((option for option in options if option.get("type") in ("integer", "number")), {})


@pytest.mark.parametrize("key", [name for name in SERVER_KEYS if bounds(SERVER_KEYS[name].schema)])
def test_its_bounds_are_the_parsers(key: str) -> None:
    bound = bounds(SERVER_KEYS[key].schema)
    step = 1 if bound["type"] == "integer" else 0.0005
    server = {"transport": "http_api", "base_url": "http://a", "http_tools": []}
    for value, is_within in (
        (bound["minimum"], True),
        (bound["maximum"], True),
        (bound["minimum"] - step, False),
        (bound["maximum"] + step, False),
    ):
        entry = STDIO if SERVER_KEYS[key].is_for("stdio") else server
        issues = parse_text(yaml.safe_dump(file(**entry | {key: value})), "mcp.yaml").issues
        refused = any(issue.key == f"servers.a.{key}" for issue in issues)
        assert refused is not is_within, value
