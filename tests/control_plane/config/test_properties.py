"""Parsing never fails, in any format and layer, and the order of keys never matters."""

import contextlib
import json
import random
import re
from typing import Any, get_args

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.control_plane.config.parsing import parse

from leaseway.control_plane.config.exporting import native_text
from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.layers.document import Layer, LayerKind
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.config.schema.keys import ROOT_KEYS, SERVER_KEYS
from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.yaml_tree import plain_value

NAMES = [
    "mcp.yaml",
    "mcp.json",
    ".kode.json",
    "settings.local.json",
    "claude_desktop_config.json",
    "system.yml",
    "opencode.json",
    "crush.json",
    "config.toml",
]
KEYS = [
    *SERVER_KEYS,
    *("type", "httpUrl", "disabled", "module", "config", "override", "permissions", "prefix"),
    *("name", "env_vars", "env_keys", "requestOptions", "source"),
]
ROOTS = ["version", "schema", "inherit", "servers", "mcpServers", "inputs", "mcp", "defaults"]
ROOTS += ["mcp_servers", "context_servers", "extensions", "amp.mcpServers"]
WORDS = ["stdio", "http", "sse", "1.0", "mcp-config-v5", "${input:x}", "${env:A}", "${file}", "a"]
WORDS += ["{env:A}", "{file:/a}", "${{ secrets.A }}", "{{A}}", "$A", "$(a)", "builtin", "v1"]

_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
) | (st.sampled_from(WORDS) | st.text(max_size=8))
_trees = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=10,
)
_servers = st.dictionaries(
    st.sampled_from(["a", "b", "no good"]),
    st.dictionaries(st.sampled_from(KEYS), _trees, max_size=6) | _trees,
    max_size=3,
)
_files = st.dictionaries(st.sampled_from(ROOTS), _servers | _trees, max_size=4)
_texts = st.text(max_size=60) | _files.map(json.dumps)
_native_entries = st.dictionaries(st.sampled_from(sorted(SERVER_KEYS)), _trees, max_size=8)
_native_files = st.dictionaries(st.sampled_from(sorted(ROOT_KEYS)), _trees, max_size=3) | st.builds(
    lambda servers, defaults: {"version": 1, "defaults": defaults, "servers": servers},
    st.dictionaries(
        st.sampled_from(["a", "b", "mcp_admin", "no good"]), _native_entries, max_size=3
    ),
    _trees,
)


def check_sane(parsed: ParsedConfig) -> None:
    errors = {issue.server_id for issue in parsed.issues if issue.severity == "error"}
    for issue in parsed.issues:
        assert issue.line >= 1
        assert issue.column >= 1
        assert issue.message.endswith((".", "?"))
        assert issue.message.isprintable()
        assert issue.key.isprintable()
        issue.problem.message.encode()
    assert parsed.rejected <= errors
    assert parsed.rejected.isdisjoint(key.server_id for key in parsed.servers if not key.tenant)
    assert parsed.refused.isdisjoint(parsed.servers)
    if parsed.broken:
        assert not parsed.servers
        assert not parsed.rejected
        assert errors
    for key, spec in parsed.servers.items():
        assert spec.key == key
        assert not spec.hidden or key.tenant
        assert len(spec.launch_hash + spec.exposure_hash) == 64


def check_native(text: str) -> None:
    parsed = parse(text)
    check_sane(parsed)
    lines = len(re.split("\r\n|[\r\n\x85\u2028\u2029]", text))
    assert all(issue.line <= lines + 1 for issue in parsed.issues)


@settings(deadline=None, max_examples=200)
@given(_texts, st.sampled_from(NAMES))
def test_any_text_in_any_file_is_answered(text: str, name: str) -> None:
    check_sane(parse(text, name))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(get_args(LayerKind)), _files), min_size=1, max_size=4))
def test_any_layers_are_answered(files: list[tuple[LayerKind, dict[str, Any]]]) -> None:
    layers = [
        Layer(kind, f"{number}.json", json.dumps(content), "acme" if kind == "domain" else "")
        for number, (kind, content) in enumerate(files)
    ]
    check_sane(parse_config(layers))


@settings(deadline=None, max_examples=150)
@given(_texts, st.sampled_from(NAMES))
def test_whatever_is_taken_over_reads_back_as_the_same_servers(text: str, name: str) -> None:
    written, parsed = native_text(text, name)
    if not parsed.broken:
        assert parse(written, "out.yaml").servers == parsed.servers


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_json_means_what_python_reads_in_it(value: Any) -> None:
    for indent, ascii_only in ((None, True), ("\t", False)):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert plain_value(load_json(text)) == json.loads(text)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="{}[]\",:01.eE-+ntrufalse\n /*\\'", max_size=12))
def test_what_python_refuses_as_json_is_refused_but_for_comments_and_last_commas(text: str) -> None:
    try:
        expected: Any = json.loads(text)
    except ValueError:
        with contextlib.suppress(BadJson):
            load_json(text)
            assert "/" in text or "," in text
    else:
        assert plain_value(load_json(text)) == expected


def dump(content: Any) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


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
    check_native(text)


@settings(deadline=None)
@given(st.text("{}[]:,&*!|>'\"%@`#?-\n ab1<~.", max_size=60))
def test_any_heap_of_yaml_signs_is_answered(text: str) -> None:
    check_native(text)
    check_native("version: 1\nservers:\n  a:\n    transport: " + text)


@settings(deadline=None, max_examples=300)
@given(_native_files)
def test_any_content_in_the_shape_of_a_file_is_answered(content: dict[str, Any]) -> None:
    check_native(dump(content))


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
    expected = parse(dump(VALID))
    parsed = parse(dump(shuffled(VALID, rng)))
    assert parsed.servers == expected.servers
    assert parsed.rejected == expected.rejected == {"c"}
    assert {(issue.key, issue.message) for issue in parsed.issues} == {
        (issue.key, issue.message) for issue in expected.issues
    }
    for key, spec in parsed.servers.items():
        assert spec.launch_hash == expected.servers[key].launch_hash
        assert spec.exposure_hash == expected.servers[key].exposure_hash


@settings(deadline=None)
@given(_native_entries)
def test_a_bad_neighbour_never_changes_a_servers_spec(neighbour: dict[str, Any]) -> None:
    good = VALID["servers"]["a"]
    alone = parse(dump({"version": 1, "servers": {"a": good}}))
    text = dump({"version": 1, "servers": {"x": neighbour, "a": good}})
    parsed = parse(text)
    (key,) = alone.servers
    assert parsed.servers[key] == alone.servers[key]
    assert parsed.rejected <= {"x"}
