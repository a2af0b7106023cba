"""Transports, missing keys, server ids, defaults: what rejects a server, and what only warns."""

import pytest
from tests.control_plane.config.parsing import PATH, entry, only_issue, parse
from tests.specs import part

from leaseway.control_plane.config.schema.issues import ConfigIssue
from leaseway.spec.model import VariantKey
from leaseway.wire.names import ORIGINAL_NAME_RULE

TRANSPORTS = "stdio, streamable_http, sse, websocket, http_api, python, builtin"


HTTP_HEAD = "transport: streamable_http, "


_NO_REFERENCE = (
    "can't contain ${NAME}: references are resolved on workers, and the control plane reads this"
    " key itself. Write the value instead."
)


@pytest.mark.parametrize(
    ("written", "reason", "message"),
    [
        ("stdo", "UNSUPPORTED_TRANSPORT", "'stdo' is not a transport: did you mean 'stdio'?"),
        ("http", "UNSUPPORTED_TRANSPORT",
         "'http' is not a transport: did you mean 'streamable_http'?"),
        ("streamable-http", "UNSUPPORTED_TRANSPORT",
         "'streamable-http' is not a transport: did you mean 'streamable_http'?"),
        ("zzz", "UNSUPPORTED_TRANSPORT",
         ("'zzz' is not a transport: use one of builtin, http_api, python, sse, stdio,"
         " streamable_http, websocket.")),
        ("'${T}'", "REFERENCE_NOT_ALLOWED", f"'servers.s.transport' {_NO_REFERENCE}"),
        ("5", "WRONG_TYPE",
         "'servers.s.transport' must be text, but it is a number; put it in quotes."),
    ],
)  # fmt: skip
def test_a_transport_that_cannot_run_rejects_its_server(
    written: str, reason: str, message: str
) -> None:
    parsed = parse(f"version: 1\nservers:\n  s:\n    transport: {written}\n  ok: &ok\n"
                   "    transport: stdio\n    command: x\n")  # fmt: skip
    assert parsed.rejected == {"s"}
    assert set(parsed.servers) == {VariantKey("ok")}
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=4,
            column=16,
            key="servers.s.transport",
            severity="error",
            reason=reason,
            message=message,
            server_id="s",
        ),
    )


@pytest.mark.parametrize(("name", "url"), [("sse", "http://a/sse"), ("websocket", "wss://a/ws")])
def test_the_other_network_transports_take_url_and_headers(name: str, url: str) -> None:
    parsed = parse(entry(f"url: '{url}', headers: {{A: b}}", f"transport: {name}, "))
    assert parsed.issues == ()
    spec = parsed.servers[VariantKey("s")]
    assert (spec.transport, part(spec).url, list(part(spec).headers)) == (name, url, ["A"])


@pytest.mark.parametrize("name", ["sse", "websocket"])
@pytest.mark.parametrize(
    "written",
    ["command: x", "args: [a]", "env: {A: b}", "inherit_env: all", "limits: {cpu: 1}",
     "sandbox: true"],
)  # fmt: skip
def test_what_belongs_to_a_process_is_not_for_the_network_transports(
    name: str, written: str
) -> None:
    scheme = "ws" if name == "websocket" else "http"
    issue = only_issue(parse(entry(f"url: '{scheme}://a/b', {written}", f"transport: {name}, ")))
    key = written.partition(":")[0]
    assert issue.reason == "KEY_NOT_FOR_TRANSPORT"
    only_for = "'stdio'" if key in ("command", "args") else "'builtin' or 'python' or 'stdio'"
    assert issue.message == (
        f"'{key}' is not for the transport '{name}', only for {only_for}; remove it."
    )


def test_a_websocket_wants_a_url_of_its_own_scheme() -> None:
    issue = only_issue(parse(entry("url: 'http://a/ws'", "transport: websocket, ")))
    assert "must begin with ws:// or wss://" in issue.message
    issue = only_issue(parse(entry("url: 'ws:///ws'", "transport: websocket, ")))
    assert "names no host; write, for example, ws://127.0.0.1:3000/mcp." in issue.message


@pytest.mark.parametrize("written", ["url: 'ws://a/ws'", "url: 7", "headers: [a]"])
def test_the_value_of_a_key_that_is_for_other_transports_is_not_judged(written: str) -> None:
    issue = only_issue(parse(entry(written)))
    assert issue.reason == "KEY_NOT_FOR_TRANSPORT"
    assert issue.message.endswith("remove it.")


def test_the_scheme_of_a_misspelt_transport_is_not_judged() -> None:
    assert (
        only_issue(parse(entry("url: 'ws://a/ws'", "transport: ws, "))).reason
        == "UNSUPPORTED_TRANSPORT"
    )


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (entry("", ""), "transport",
         f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."),
        (entry("", "command: x, "), "transport",
         (f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."
          " With this 'command', write 'transport: stdio'.")),
        (entry("url: 'http://a/mcp'", ""), "transport",
         (f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."
          " With this 'url', write 'transport: streamable_http'.")),
        (entry("url: 'ws://a/mcp'", ""), "transport",
         (f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."
          " With this 'url', write 'transport: websocket'.")),
        (entry("image: x", ""), "transport",
         (f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."
          " With this 'image', write 'transport: stdio'.")),
        (entry("module: m, class: C", ""), "transport",
         (f"The server 's' needs 'transport'; it is one of {TRANSPORTS}."
          " With this 'class' and 'module', write 'transport: python'.")),
        (entry("", "transport: stdio"), "command",
         "The server 's' needs 'command' or 'image' for 'stdio'."),
        (entry("", "transport: streamable_http"), "url",
         "The server 's' needs 'url' for 'streamable_http'."),
    ],
)  # fmt: skip
def test_a_missing_key_is_an_error_at_its_server(text: str, key: str, message: str) -> None:
    issue = ConfigIssue(
        file=PATH,
        line=3,
        column=3,
        key=f"servers.s.{key}",
        severity="error",
        reason="MISSING_KEY",
        message=message,
        server_id="s",
    )
    assert parse(text).issues == (issue,)
    assert parse(text).rejected == {"s"}


@pytest.mark.parametrize(
    ("server_id", "message"),
    [
        ("mcp_admin", "The server id 'mcp_admin' is reserved; choose another."),
        *(
            (
                name,
                (
                    f"The server id '{name}' is not valid: write 1 to 64 characters of a-z, A-Z,"
                    " 0-9, '_' and '-'."
                ),
            )
            for name in ("my server", "a.b", "x" * 65, "é")
        ),
    ],
)
def test_an_invalid_server_id_rejects_that_server(server_id: str, message: str) -> None:
    parsed = parse(f"version: 1\nservers:\n  {server_id}: {{transport: stdio, command: x}}\n")
    assert parsed.rejected == {server_id}
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=3,
            column=3,
            key=f"servers.{server_id}",
            severity="error",
            reason="INVALID_SERVER_ID",
            message=message,
            server_id=server_id,
        ),
    )


def test_a_server_that_is_no_mapping_is_rejected() -> None:
    issue = only_issue(parse("version: 1\nservers:\n  s: npx\n"))
    assert (issue.line, issue.column, issue.server_id) == (3, 6, "s")
    assert issue.message == "'servers.s' must be a mapping, but it is text."


def test_an_unknown_key_of_the_file_is_an_error_but_the_servers_stand() -> None:
    parsed = parse("version: 1\nserver: {}\nservers:\n  s: {transport: stdio, command: x}\n")
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=2,
            column=1,
            key="server",
            severity="error",
            reason="UNKNOWN_KEY",
            message="'server' is not a key of the file: did you mean 'servers'?",
        ),
    )
    assert set(parsed.servers) == {VariantKey("s")}


@pytest.mark.parametrize("key", ["rules", "permissions", "tools", "allowed_tools", "sandbox"])
def test_a_restriction_beside_the_servers_refuses_the_file(key: str) -> None:
    parsed = parse(f"version: 1\n{key}: []\nservers:\n  s: {{transport: stdio, command: x}}\n")
    assert parsed.broken
    assert any("in each server that it is for" in issue.message for issue in parsed.issues)


@pytest.mark.parametrize(
    "text",
    [
        "root:$y$j9T$hunter2:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
        "user: hunter2\npassword: hunter2\nuser: again\n",
    ],
)
def test_a_file_without_any_known_key_is_named_as_none_and_not_repeated(text: str) -> None:
    parsed = parse(text)
    assert parsed.issues == (
        ConfigIssue(
            file=PATH,
            line=1,
            column=1,
            key="",
            severity="error",
            reason="WRONG_TYPE",
            message="This is not a configuration: it has none of the keys 'version', 'servers' and"
            " 'defaults', and no servers of another client, such as 'mcpServers'. Name another"
            " file, or begin it with 'version: 1'.",
        ),
    )
    assert parsed.broken


def test_misspelt_keys_are_told_where_no_key_is_right() -> None:
    parsed = parse("verson: 1\nservrs: {}\n")
    assert [issue.reason for issue in parsed.issues] == ["MISSING_KEY"] * 2 + ["UNKNOWN_KEY"] * 2
    assert parsed.issues[3].message == "'servrs' is not a key of the file: did you mean 'servers'?"


def test_the_servers_key_of_other_formats_is_recognised() -> None:
    parsed = parse("version: 1\nmcpServers: {}\n")
    assert parsed.issues[1].message == (
        "'mcpServers' is not a key of the file: did you mean 'servers'?"
    )


def test_an_error_in_defaults_rejects_the_servers_that_rely_on_them() -> None:
    parsed = parse(
        "version: 1\ndefaults: {transform: [{prefix: 'a b'}]}\nservers:\n"
        "  a: {transport: stdio, command: x}\n"
        "  b: {transport: stdio, command: x, transform: []}\n"
    )
    assert parsed.rejected == {"a"}
    assert set(parsed.servers) == {VariantKey("b")}
    assert [(issue.reason, issue.server_id, issue.line) for issue in parsed.issues] == [
        ("BAD_TRANSFORM", None, 2),
        ("DEFAULTS_REFUSED", "a", 4),
    ]
    assert parsed.issues[1].message == (
        "The server 'a' has no 'transform' of its own, and 'defaults' has an error; fix"
        " 'defaults' first."
    )


def test_an_unknown_default_names_what_defaults_may_hold() -> None:
    parsed = parse("version: 1\ndefaults: {transforms: []}\nservers: {}\n")
    assert parsed.issues[0].message == (
        "'transforms' is not a key of 'defaults': did you mean 'transform'?"
    )
    assert (parsed.issues[0].line, parsed.issues[0].column) == (2, 12)


def test_every_error_of_a_file_is_reported_at_once_in_its_order() -> None:
    parsed = parse(entry("comand: x, warm: -1, env: {A: 1, B: 2}", "transport: stdio, "))
    assert [issue.key for issue in parsed.issues] == [
        "servers.s.command",
        "servers.s.comand",
        "servers.s.warm",
        "servers.s.env.A",
        "servers.s.env.B",
    ]


def test_a_warm_spare_of_a_shared_server_is_a_warning() -> None:
    parsed = parse(entry("warm: 2, truely-stateless: true"))
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason, issue.column) == (
        "warning",
        "KEY_WITHOUT_EFFECT",
        43,
    )
    assert set(parsed.servers) == {VariantKey("s")}


@pytest.mark.parametrize("text", ["${input:token}", "${1X}", "${NAME", "${NAME-x}", "${A} ${B?}"])
def test_a_dollar_brace_that_is_no_reference_is_a_warning(text: str) -> None:
    parsed = parse(entry(f"args: ['{text}']"))
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason) == ("warning", "MALFORMED_REFERENCE")
    assert issue.message == (
        "'servers.s.args[0]' contains a '${' that is not a reference and stays as it is: only"
        " ${NAME} and ${NAME:-default} are replaced."
    )
    assert set(parsed.servers) == {VariantKey("s")}


@pytest.mark.parametrize(
    "url", ["${BASE}/mcp", "http://${HOST}:${PORT}/mcp", "${URL:-http://a/mcp}", "https://[::1]/"]
)
def test_a_url_may_come_from_the_environment(url: str) -> None:
    assert parse(entry(f"url: '{url}'", HTTP_HEAD)).issues == ()


def test_an_issue_reads_like_a_compilers_and_becomes_a_problem() -> None:
    issue = only_issue(parse(entry("comand: x")))
    assert str(issue) == (
        "mcp.yaml:3:37: error: 'comand' is not a key of a server: did you mean 'command'?"
    )
    assert issue.problem.key == ("server", "s", "", "", "UNKNOWN_KEY", "servers.s.comand")
    assert issue.problem.message.startswith("mcp.yaml:3:37: 'comand'")


def test_an_issue_of_the_file_is_a_workspace_problem() -> None:
    assert only_issue(parse("version: 2\nservers: {}")).problem.scope == "workspace"


_OTHER = "only '*' is special, and beside it '[' looks like a part of a pattern, too"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "is empty; write '*' to match every tool"),
        ("a[bc]*", f"can match no tool: {_OTHER}"),
        ("write(*)", f"can match no tool: {_OTHER}".replace("[", "(")),
        ("x" * 257, f"can match no tool: a name has {ORIGINAL_NAME_RULE}"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_a_warning_and_stays(pattern: str, why: str) -> None:
    parsed = parse(entry(f"tools: {{whitelist: ['{pattern}']}}"))
    issue = only_issue(parsed)
    assert (issue.severity, issue.reason) == ("warning", "BAD_PATTERN")
    assert issue.message.startswith(f"The pattern '{pattern[:70]}")
    assert issue.message.endswith(f"' {why}.")
    rules = parsed.servers[VariantKey("s")].tools
    assert not rules.passes("anything"), "it is a whitelist all the same"
