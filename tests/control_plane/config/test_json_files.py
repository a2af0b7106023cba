"""Files that are called JSON: read as JSON, and told as JSON where they are broken."""

from __future__ import annotations

import pytest
from tests.control_plane.config.parsing import only_issue, parse
from tests.specs import part

from leaseway.control_plane.config.tree.json_tree import BadJson, load_json
from leaseway.control_plane.config.tree.yaml_tree import MAX_DEPTH, Leaf, Position, Table

START = '{"mcpServers": {"s": {"command": "x"'
NO_JSON = "This is not valid JSON: "


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        pytest.param("", 1, 1, "a value is expected here, but the file ends.", id="empty"),
        pytest.param(
            '{\n  "mcpServers": {\n    "s": {"command": "x"\n  }\n}\n', 6, 1,
            "',' or '}' is expected here, but the file ends.", id="not closed",
        ),
        pytest.param(
            '{\n  "mcpServers": {}\n  "other": 1\n}', 3, 3,
            "',' or '}' is expected here, not '\"'.", id="no comma",
        ),
        pytest.param(
            '{"mcpServers" {}}', 1, 15, "':' is expected after the key 'mcpServers', not '{'.",
            id="no colon",
        ),
        pytest.param(
            "{'mcpServers': {}}", 1, 2,
            "a key or '}' is expected here; texts and keys need straight double quotes.",
            id="quotes",
        ),
        pytest.param(
            "{\N{LEFT DOUBLE QUOTATION MARK}a\N{RIGHT DOUBLE QUOTATION MARK}: 1}", 1, 2,
            "a key or '}' is expected here; texts and keys need straight double quotes.",
            id="curly quotes",
        ),
        pytest.param(
            '"mcpServers": {}', 1, 1, "'{' is expected before the first key, not '\"'.",
            id="no braces",
        ),
        pytest.param(
            "mcpServers:\n  s:\n    command: x\n", 1, 1,
            "a value is expected here; texts and keys need straight double quotes.", id="yaml",
        ),
        pytest.param(
            START + ', "args": [yes]}}}', 1, 48,
            "a value is expected here; texts and keys need straight double quotes.",
            id="bare word",
        ),
        pytest.param(
            START + ', "disabled": True}}}', 1, 51,
            "a value is expected here; texts and keys need straight double quotes.", id="python",
        ),
        pytest.param(
            START + ', "timeout": 007}}}', 1, 51, "',' or '}' is expected here, not '0'.",
            id="leading zeros",
        ),
        pytest.param('{"a": [1,, 2]}', 1, 10, "a value is expected here, not ','.", id="commas"),
        pytest.param(
            '{"a": 1} {}', 1, 10,
            "nothing may follow the file's one value, not '{'.", id="two values",
        ),
        pytest.param(
            '{"a": "b\n"}', 1, 9, r"write a line break or tab in a text as \n or \t.",
            id="line break",
        ),
        pytest.param(
            '{"a": "b}', 1, 7, "the text that begins here has no closing quote.", id="no quote",
        ),
        pytest.param(
            r'{"a": "C:\dir"}', 1, 10,
            r"this escape in a text is not one of JSON's; write \\ for \.", id="escape",
        ),
        pytest.param(
            r'{"a": "\ud83d"}', 1, 7, "this text contains half of a surrogate pair.", id="half",
        ),
        pytest.param(
            '{"a": 1, /* never', 1, 10,
            "a key or '}' is expected here; a comment that begins here does not end.",
            id="comment",
        ),
    ],
)  # fmt: skip
def test_a_broken_json_file_is_told_as_json_with_its_place(
    text: str, line: int, column: int, message: str
) -> None:
    issue = only_issue(parse(text, "mcp.json"))
    assert (issue.line, issue.column, issue.reason) == (line, column, "BAD_JSON")
    assert issue.message == NO_JSON + message


def test_a_file_that_is_not_called_json_is_yaml() -> None:
    assert only_issue(parse("mcpServers: [", "mcp.yaml")).reason == "BAD_YAML"
    assert only_issue(parse('{"mcpServers": {', "mcp.yaml")).reason == "BAD_YAML"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{\n\t"mcpServers":\t{\n\t\t"s": {"command":\t"x"}}}', id="tabs"),
        pytest.param('{"mcpServers":{"s":{"command":"x","disabled":false}}}', id="no spaces"),
        pytest.param('\r\n{"mcpServers":\r\n{"s": {"command": "x"}}}\r\n', id="line ends"),
        pytest.param(r'{"mcp\u0053ervers": {"s": {"command": "\u0078"}}}', id="escapes"),
        pytest.param('{"mcpServers": /* all */ {"s": {"command": "x",},},} // end', id="comments"),
    ],
)
@pytest.mark.parametrize("path", ["mcp.json", "mcp.jsonc", "mcp.yaml"])
def test_json_works_however_it_is_written(text: str, path: str) -> None:
    parsed = parse(text, path)
    assert not parsed.broken, parsed.issues
    assert [part(spec).command for spec in parsed.servers.values()] == ["x"]


@pytest.mark.parametrize("odd", ["\u2028", "\u0085", "\x7f", "\ufffe", " \u2029 ", "#", ": "])
def test_text_that_yaml_would_read_otherwise_stays_what_it_is(odd: str) -> None:
    tree = load_json(f'{{"a": "x{odd}y"}}')
    assert isinstance(tree, Table)
    assert tree.entries[0].value == Leaf(Position(1, 7), f"x{odd}y", f"x{odd}y")


def test_a_key_may_be_longer_than_yaml_lets_it_be() -> None:
    tree = load_json(f'{{"{"k" * 2000}": 1}}')
    assert isinstance(tree, Table)
    assert tree.entries[0].name == "k" * 2000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"mcpServers": {"s": {"command": "x"}, "s": {"command": "y"}}}', "DUPLICATE_SERVER"),
        ('{"mcpServers": {}, "mcpServers": {}}', "DUPLICATE_KEY"),
        ('{"mcp": {"servers": {}, "servers": {}}}', "DUPLICATE_KEY"),
        ('{"mcpServers": {"s": {"command": "x", "command": "y"}}}', "DUPLICATE_KEY"),
    ],
)
def test_what_is_named_twice_is_told(text: str, reason: str) -> None:
    assert reason in [issue.reason for issue in parse(text, "mcp.json").issues]


def test_places_count_characters_behind_tabs_and_comments() -> None:
    server = '{"transport": "stdio", "command": "x", "comand": "y"}'
    text = '{\n\t// ü\n\t"version": 1, "servers": {"s": ' + server + "}}"
    issue = only_issue(parse(text, "native.json"))
    assert (issue.line, issue.column, issue.reason) == (3, 72, "UNKNOWN_KEY")


def test_what_nests_too_deep_or_holds_too_much_is_refused() -> None:
    with pytest.raises(BadJson, match=f"nest deeper than {MAX_DEPTH} levels") as deep:
        load_json("[" * 100_000)
    assert deep.value.at == Position(1, MAX_DEPTH + 2)
    with pytest.raises(BadJson, match="contains more than 250000 values"):
        load_json("[" + "1," * 250_001 + "1]")
    with pytest.raises(BadJson, match="too many digits"):
        load_json("9" * 5_000)
