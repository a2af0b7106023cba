"""Files that are refused whole, and the bounds of a file."""

import pytest
from tests.control_plane.config.parsing import PATH, entry, only_issue, parse

from leaseway.control_plane.config.schema.issues import MAX_ISSUES, ConfigIssue
from leaseway.wire.bounds import MAX_CONFIG, MAX_SERVERS


@pytest.mark.parametrize(
    ("text", "line", "column", "key", "reason", "message"),
    [
        pytest.param(
            "", 1, 1, "", "UNSUPPORTED_VERSION",
            "The file must be a mapping that begins with 'version: 1'.", id="empty",
        ),
        pytest.param(
            "- version: 1", 1, 1, "", "WRONG_TYPE",
            "The file must be a mapping that begins with 'version: 1'.", id="list",
        ),
        pytest.param(
            "version: 1\nservers: [a\n", 3, 1, "", "BAD_YAML",
            "This is not valid YAML: did not find expected ',' or ']'"
            " (while parsing a flow sequence).", id="bad yaml",
        ),
        pytest.param(
            "version: 1\nservers:\n\ta: b", 3, 1, "", "BAD_YAML",
            "This is not valid YAML: found character that cannot start any token"
            " (while scanning for the next token); indent with spaces, not tabs.", id="tab",
        ),
        pytest.param(
            "version: 1\nservers: {a: {args: [@scope/name]}}", 2, 22, "", "BAD_YAML",
            "This is not valid YAML: found character that cannot start any token"
            " (while scanning for the next token); put a text that begins with @ in quotes.",
            id="at sign",
        ),
        pytest.param(
            'version: 1\nservers: {a: {command: "C:\\Tools"}}', 2, 27, "", "BAD_YAML",
            "This is not valid YAML: found unknown escape character"
            " (while parsing a quoted scalar); write a path with \\ in single quotes.", id="path",
        ),
        pytest.param(
            "a: 'é\x00'", 1, 6, "", "BAD_YAML", "'\\x00' is not allowed in YAML.", id="control",
        ),
        pytest.param(
            "a: \ud800", 1, 4, "", "BAD_YAML", "'\\ud800' is not allowed in YAML.", id="surrogate",
        ),
        pytest.param(
            "version: 1\nservers: !!python/object:os.system {}", 2, 10, "", "BAD_YAML",
            "The tag '!!python/object:os.system' is not supported; remove it.", id="tag",
        ),
        pytest.param(
            "version: 1\nservers: {a: &a {}, b: {<<: *a}}", 2, 25, "", "BAD_YAML",
            "Merge keys ('<<') are not supported; write the keys out.", id="merge key",
        ),
        pytest.param(
            "version: 1\nservers: {a: " + "[" * 40, 2, 44, "", "BAD_YAML",
            "Mappings and lists nest deeper than 32 levels here.", id="nesting",
        ),
        pytest.param(
            "version: 1\n? [a]\n: b", 2, 3, "", "BAD_YAML",
            "A key must be plain text, not a list or a mapping.", id="list as key",
        ),
        pytest.param(
            "version: 1\n---\nversion: 1\n", 2, 1, "", "BAD_YAML",
            "A second YAML document begins here: keep one, or write each in a file of its own.",
            id="two documents",
        ),
        pytest.param(
            "servers: {}", 1, 1, "version", "MISSING_KEY",
            "'version' is missing; write 'version: 1'.", id="no version",
        ),
        pytest.param(
            "version: 2\nservers: {}", 1, 10, "version", "UNSUPPORTED_VERSION",
            "The version '2' is not supported: write version: 1 (a number).", id="version 2",
        ),
        pytest.param(
            "version: '1'\nservers: {}", 1, 10, "version", "UNSUPPORTED_VERSION",
            "The version '1' is not supported: write version: 1 (a number).", id="quoted",
        ),
        pytest.param(
            "version: true\nservers: {}", 1, 10, "version", "UNSUPPORTED_VERSION",
            "The version 'true' is not supported: write version: 1 (a number).", id="bool",
        ),
        pytest.param(
            "version: 1", 1, 1, "servers", "MISSING_KEY",
            "'servers' is missing; write 'servers: {}' for none.", id="no servers",
        ),
        pytest.param(
            "version: 1\nservers:\n", 2, 9, "servers", "WRONG_TYPE",
            "'servers' must be a mapping of server ids; write 'servers: {}' for none.", id="null",
        ),
        pytest.param(
            "version: 1\nservers: [a]", 2, 10, "servers", "WRONG_TYPE",
            "'servers' must be a mapping of server ids; write 'servers: {}' for none.", id="seq",
        ),
        pytest.param(
            "version: 1\nversion: 1\nservers: {}", 2, 1, "version", "DUPLICATE_KEY",
            "'version' is set twice, first on line 1; remove one.", id="version twice",
        ),
        pytest.param(
            "version: 1\nservers:\n  a: {transport: stdio, command: x}\n"
            "  a: {transport: stdio, command: y}", 4, 3, "servers.a", "DUPLICATE_SERVER",
            "The server 'a' is defined twice, first on line 3; rename or remove one.", id="twice",
        ),
        pytest.param(
            "version: 1\nservers: {a: &a [*a]}", 2, 14, "", "BAD_YAML",
            "Mappings and lists nest deeper than 32 levels here.", id="alias of itself",
        ),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_whole(
    text: str, line: int, column: int, key: str, reason: str, message: str
) -> None:
    parsed = parse(text)
    assert parsed.broken
    assert (parsed.servers, parsed.rejected) == ({}, frozenset())
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=line,
            column=column,
            key=key,
            severity="error",
            reason=reason,
            message=message,
        ),
    )


def test_a_file_at_its_bound_is_parsed_and_one_above_is_refused() -> None:
    text = "version: 1\nservers: {}\n#"
    padding = MAX_CONFIG - len(text)
    assert parse(text + "x" * padding).issues == ()
    issue = only_issue(parse(text + "x" * (padding + 1)))
    assert (issue.reason, issue.message) == (
        "CONFIG_TOO_LARGE",
        "The file is larger than 4 MiB.",
    )
    assert parse(text + "é" * (padding // 2 + 1)).broken


def test_servers_at_their_bound_are_parsed_and_one_more_breaks_the_file() -> None:
    text = "version: 1\nservers:\n" + "".join(
        f"  s{n}: {{transport: stdio, command: x}}\n" for n in range(MAX_SERVERS)
    )
    assert len(parse(text).servers) == MAX_SERVERS
    parsed = parse(text + "  one_more: {transport: stdio, command: x}\n")
    assert parsed.broken
    assert parsed.issues[0].message == "The file has 10001 servers; 10000 are allowed."


def test_arguments_at_their_bound_are_parsed_and_one_more_is_refused() -> None:
    assert parse(entry(f"args: [{'a, ' * 1000}]")).issues == ()
    issue = only_issue(parse(entry(f"args: [{'a, ' * 1001}]")))
    assert issue.message == "'servers.s.args' has 1001 items; 1000 are allowed."


def test_an_alias_bomb_is_refused_by_the_size_it_would_have() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    issue = only_issue(parse("\n".join(levels)))
    assert issue.message == "The file contains more than 250000 values, aliases written out."


def test_issues_beyond_their_bound_are_counted_and_every_server_is_still_rejected() -> None:
    bad = "".join(f"  s{n}: {{transport: stdio, comand: x}}\n" for n in range(MAX_ISSUES))
    parsed = parse("version: 1\nservers:\n" + bad)
    assert len(parsed.issues) == MAX_ISSUES + 1
    assert parsed.issues[-1].reason == "TOO_MANY_ISSUES"
    assert parsed.issues[-1].message == "1000 more issues are not listed; fix these first."
    assert len(parsed.rejected) == MAX_ISSUES


def test_a_broken_file_is_read_to_its_end() -> None:
    text = """version: 1
servers:
  a: {transport: stdio, command: x}
  a: {transport: stdio, command: y}
  b: {transport: bogus}
"""
    parsed = parse(text)
    assert parsed.broken
    assert not parsed.servers
    assert [issue.reason for issue in parsed.issues] == [
        "DUPLICATE_SERVER",
        "UNSUPPORTED_TRANSPORT",
    ]
