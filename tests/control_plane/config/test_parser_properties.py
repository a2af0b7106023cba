"""Whatever a file holds: parsing answers, and means the same in any order."""

import random
import re
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS

KEYS = [*SERVER_KEYS, "prefix", "suffix", "add", "remove", "env", "secret", "file", "whitelist"]
WORDS = ["stdio", "streamable_http", "sse", "npx", "http://a/mcp", "eager", "30s", "${A}", "*", ""]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
_trees = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=12,
)
_entries = st.dictionaries(st.sampled_from(sorted(SERVER_KEYS)), _trees, max_size=8)
_files = st.dictionaries(st.sampled_from(sorted(ROOT_KEYS)), _trees, max_size=3) | st.builds(
    lambda servers, defaults: {"version": 1, "defaults": defaults, "servers": servers},
    st.dictionaries(st.sampled_from(["a", "b", "mcp_admin", "no good"]), _entries, max_size=3),
    _trees,
)


def dump(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def check_sane(text: str) -> None:
    parsed = parse_text(text, "mcp.yaml")
    lines = len(re.split("\r\n|[\r\n\x85\u2028\u2029]", text))
    errors = {issue.server_id for issue in parsed.issues if issue.severity == "error"}
    for issue in parsed.issues:
        assert 1 <= issue.line <= lines + 1
        assert issue.column >= 1
        assert issue.message.endswith((".", "?"))
        assert issue.message.isprintable()
        assert issue.key.isprintable()
        issue.problem.message.encode()
    assert parsed.rejected <= errors
    assert parsed.rejected.isdisjoint(key.server_id for key in parsed.servers)
    if parsed.broken:
        assert not parsed.servers
        assert not parsed.rejected
        assert any(issue.severity == "error" for issue in parsed.issues)
    for key, spec in parsed.servers.items():
        assert spec.key == key
        assert len(spec.launch_hash + spec.exposure_hash) == 64


@settings(deadline=None)
@given(st.text())
@example("version: 1\nservers: {\ud800: x}")
@example('version: 1\nservers: {"\\ud800": x}')
@example("version: 1\nservers: {a: !!int {}}")
@example("version: 1\nservers: {a: !!float x}")
@example("version: 1\nservers: {a: !!bool x}")
@example("version: " + "9" * 5_000)
@example("%TAG ! tag:yaml.org,2002:\n---\na: !int 1")
@example("version: 1\nservers: &a {b: *a}")
@example("\x85\u2028: {")
def test_any_text_is_answered(text: str) -> None:
    check_sane(text)


@settings(deadline=None)
@given(st.text("{}[]:,&*!|>'\"%@`#?-\n ab1<~.", max_size=60))
def test_any_heap_of_yaml_signs_is_answered(text: str) -> None:
    check_sane(text)
    check_sane("version: 1\nservers:\n  a:\n    transport: " + text)


@settings(deadline=None, max_examples=300)
@given(_files)
def test_any_content_in_the_shape_of_a_file_is_answered(content: dict[str, Any]) -> None:
    check_sane(dump(content))


VALID: dict[str, Any] = {
    "version": 1,
    "defaults": {"transform": [{"prefix": "{server}_"}]},
    "servers": {
        "a": {
            "transport": "stdio",
            "command": "npx",
            "args": ["-y", "x"],
            "env": {"A": {"env": "B"}, "C": "d", "E": {"secret": "f"}},
            "tools": {"whitelist": ["a*"], "blacklist": ["*b"]},
            "transform": [{"prefix": {"remove": "x", "add": "y"}}, {"suffix": "z"}],
            "restart": {"initial": 0.1, "max": "2s"},
            "limits": {"memory": "1GiB", "cpu": 2},
        },
        "b": {
            "transport": "streamable_http",
            "url": "http://a/mcp",
            "headers": {"A": "b", "C": {"file": "/d"}},
        },
        "c": {"transport": "stdio", "comand": "x", "warm": -1},
        "d": {"enabled": False, "transport": "stdio", "command": "x"},
    },
}


def shuffled(content: Any, rng: random.Random) -> Any:
    """Return the same content with every mapping in another order; lists keep theirs."""
    if isinstance(content, dict):
        names = rng.sample(list(content), len(content))
        return {name: shuffled(content[name], rng) for name in names}
    if isinstance(content, list):
        return [shuffled(item, rng) for item in content]
    return content


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_keys_never_matters(rng: random.Random) -> None:
    expected = parse_text(dump(VALID), "mcp.yaml")
    parsed = parse_text(dump(shuffled(VALID, rng)), "mcp.yaml")
    assert parsed.servers == expected.servers
    assert parsed.rejected == expected.rejected == {"c"}
    assert {(issue.key, issue.message) for issue in parsed.issues} == {
        (issue.key, issue.message) for issue in expected.issues
    }
    for key, spec in parsed.servers.items():
        assert spec.launch_hash == expected.servers[key].launch_hash
        assert spec.exposure_hash == expected.servers[key].exposure_hash


@settings(deadline=None)
@given(_entries)
def test_a_bad_neighbour_never_changes_a_servers_spec(neighbour: dict[str, Any]) -> None:
    good = VALID["servers"]["a"]
    alone = parse_text(dump({"version": 1, "servers": {"a": good}}), "mcp.yaml")
    text = dump({"version": 1, "servers": {"x": neighbour, "a": good}})
    parsed = parse_text(text, "mcp.yaml")
    (key,) = alone.servers
    assert parsed.servers[key] == alone.servers[key]
    assert parsed.rejected <= {"x"}
