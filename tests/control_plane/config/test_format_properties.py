"""Whatever files hold, in any format and layer: parsing answers."""

import contextlib
import json
from typing import Any, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.control_plane.config.exporting import native_text
from leaseway.control_plane.config.formats.detection import parse_config, parse_text
from leaseway.control_plane.config.layers.document import Layer, LayerKind
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.yaml_tree import Items, Leaf, Tree

NAMES = [
    "mcp.yaml",
    "mcp.json",
    ".kode.json",
    "settings.local.json",
    "claude_desktop_config.json",
    "system.yml",
]
KEYS = [
    *SERVER_KEYS,
    *("type", "httpUrl", "disabled", "module", "config", "override", "permissions", "prefix"),
]
ROOTS = ["version", "schema", "inherit", "servers", "mcpServers", "inputs", "mcp", "defaults"]
WORDS = ["stdio", "http", "sse", "1.0", "mcp-config-v5", "${input:x}", "${env:A}", "${file}", "a"]

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


def check_sane(parsed: ParsedConfig) -> None:
    assert parsed.rejected.isdisjoint(key.server_id for key in parsed.servers if not key.tenant)
    assert parsed.refused.isdisjoint(parsed.servers)
    for issue in parsed.issues:
        assert issue.line >= 1
        assert issue.message.isprintable()
        assert issue.key.isprintable()
        issue.problem.message.encode()
    if parsed.broken:
        assert not parsed.servers
        assert any(issue.severity == "error" for issue in parsed.issues)
    for key, spec in parsed.servers.items():
        assert spec.key == key
        assert not spec.hidden or key.tenant


@settings(deadline=None, max_examples=200)
@given(_texts, st.sampled_from(NAMES))
def test_any_text_in_any_file_is_answered(text: str, name: str) -> None:
    check_sane(parse_text(text, name))


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
        assert parse_text(written, "out.yaml").servers == parsed.servers


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
        assert plain(load_json(text)) == json.loads(text)


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
        assert plain(load_json(text)) == expected


def plain(tree: Tree) -> Any:
    match tree:
        case Leaf():
            return tree.value
        case Items():
            return [plain(item) for item in tree.items]
        case _:
            return {entry.name: plain(entry.value) for entry in tree.entries}
