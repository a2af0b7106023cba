"""Files that are called TOML: read as TOML, with the lines of their values."""

from __future__ import annotations

import pytest
from tests.control_plane.config.parsing import only_issue, parse

from leaseway.control_plane.config.tree.toml_tree import BadToml, load_toml
from leaseway.control_plane.config.tree.yaml_tree import MAX_DEPTH, Table, TableEntry, plain_value

TEXT = """\
# [mcp_servers.comment]
top = "x"

[mcp_servers.one]
command = 'C:\\x.exe'
env = { B = [1, 2.5, true] }

[ mcp_servers . "two words" ]
"args" = [
    "-y",
]
at = 2026-01-02
"""


def entry(table: object, *path: str) -> TableEntry:
    assert isinstance(table, Table)
    (found,) = [entry for entry in table.entries if entry.name == path[0]]
    return found if len(path) == 1 else entry(found.value, *path[1:])


def test_values_are_those_of_toml_and_dates_are_text() -> None:
    assert plain_value(load_toml(TEXT)) == {
        "top": "x",
        "mcp_servers": {
            "one": {"command": "C:\\x.exe", "env": {"B": [1, 2.5, True]}},
            "two words": {"args": ["-y"], "at": "2026-01-02"},
        },
    }


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("mcp_servers",), 4),
        (("mcp_servers", "one", "command"), 5),
        (("mcp_servers", "one", "env", "B"), 6),
        (("mcp_servers", "two words"), 8),
        (("mcp_servers", "two words", "args"), 9),
    ],
)
def test_a_key_has_the_line_that_names_it(path: tuple[str, ...], line: int) -> None:
    assert entry(load_toml(TEXT, "a.toml"), *path).at.line == line


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a = 1\nb = \n", 2, "This is not valid TOML: invalid value."),
        ('a = "C:\\x"', 1, "in single quotes."),
        ("a = 1\na = 2", 2, "overwrite a value."),
        ("a = [1,", 1, "This is not valid TOML: "),
        ("a = " + "[" * 100_000, 1, "nest too deep."),
        ("a = " + "9" * 5_000, 1, "This is not valid TOML: "),
    ],
)
def test_what_is_no_toml_is_said_with_its_line(text: str, line: int, message: str) -> None:
    parsed = parse(text, path="config.toml")
    issue = only_issue(parsed)
    assert parsed.broken
    assert (issue.reason, issue.line) == ("BAD_TOML", line)
    assert message in issue.message


def test_nesting_has_a_limit() -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    load_toml(f"a = {deepest}")
    with pytest.raises(BadToml, match="deeper than"):
        load_toml(f"a = [{deepest}]")


@pytest.mark.parametrize("form", ["{} = 1", "x = 1\n[{}]", "x = {{ y = 1, {} = 1 }}", '"q".{} = 1'])
def test_a_key_with_many_dots_costs_no_more_than_its_length(form: str) -> None:
    with pytest.raises(BadToml, match="deeper than"):
        load_toml(form.format(".".join(["a"] * 400_000)))  # minutes, if its parser saw it
    load_toml(form.format(".".join(["a"] * (MAX_DEPTH - 2))))
    load_toml(f'text = "{"a." * 1_000}"')


def test_a_native_file_may_be_toml() -> None:
    text = 'version = 1\n[servers.a]\ntransport = "stdio"\ncommand = "x"\n'
    assert [key.server_id for key in parse(text, path="mcp.toml").servers] == ["a"]
