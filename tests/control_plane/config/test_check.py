"""What `leaseway check` says of a file on a machine."""

from pathlib import Path

import pytest

from leaseway.control_plane.config.check import check_sources, unresolved_here
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.vault.file import set_secret
from leaseway.vault.key import find_vault
from leaseway.wire.bounds import MAX_CONFIG

HEAD = "version: 1\nservers:\n  s:\n"
NO_PROGRAMS: dict[str, str] = {}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mcp.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def warnings(server: str, environ: dict[str, str], *programs: str) -> list[tuple[str, int, str]]:
    """Return (reason, column, message) of what a stdio server on the fourth line lacks."""
    parsed = parse_text(f"{HEAD}    {{transport: stdio, {server}}}", "mcp.yaml")
    assert parsed.issues == ()
    which = {name: f"/bin/{name}" for name in programs}.get
    issues = unresolved_here(parsed, "mcp.yaml", environ, which, {"/there"}.__contains__)
    assert {(issue.severity, issue.line, issue.server_id) for issue in issues} <= {
        ("warning", 4, "s")
    }
    return [(issue.reason, issue.column, issue.message) for issue in issues]


def test_a_command_that_is_not_on_the_path_is_a_warning() -> None:
    assert warnings("command: npx", {}) == [
        (
            "COMMAND_NOT_FOUND",
            33,
            (
                "The command 'npx' is not found here; install it where workers run, or write its"
                " full path."
            ),
        )
    ]
    assert warnings("command: npx", {}, "npx") == []


def test_a_command_line_in_the_place_of_a_program_is_called_one() -> None:
    ((_, _, line),) = warnings("command: npx -y foo", {})
    assert line.endswith("write only the program there, and the rest as a list in 'args'.")
    ((_, _, path),) = warnings("command: /opt/my tools/x", {})
    assert path.endswith("write its full path.")


@pytest.mark.parametrize("command", ["npx.cmd", "C:/Program Files/nodejs/npx", "wsl.exe"])
def test_a_command_of_windows_is_called_one(command: str) -> None:
    ((_, _, said),) = warnings(f"command: '{command}'", {})
    assert "it belongs to Windows: write the program" in said


def test_a_command_is_looked_for_as_it_would_be_started() -> None:
    assert warnings("command: '${TOOL}'", {"TOOL": "uvx"}, "uvx") == []
    assert [found[0] for found in warnings("command: '${TOOL:-uvy}'", {}, "uvx")] == [
        "COMMAND_NOT_FOUND"
    ]


def test_what_a_sandbox_lacks_here_is_a_warning() -> None:
    boxed = "command: x, sandbox: {writable: [/there, /gone]}"
    assert warnings(boxed, {}, "x") == [
        (
            "COMMAND_NOT_FOUND",
            45,
            (
                "A sandbox needs bubblewrap (bwrap), which is not found here; install it where"
                " workers run: without it the server is not started."
            ),
        ),
        ("MISSING_FILE", 65, "The sandbox makes /gone writable, which does not exist here."),
    ]
    assert warnings("command: x, sandbox: true", {}, "x", "bwrap") == []


def test_an_unset_variable_of_an_api_is_a_warning_at_its_base_url() -> None:
    tools = "http_tools: [{name: get, method: GET, endpoint: /a}]"
    entry = f"{{transport: http_api, base_url: 'http://a/${{A}}', {tools}}}"
    parsed = parse_text(f"{HEAD}    {entry}", "mcp.yaml")
    (issue,) = unresolved_here(parsed, "mcp.yaml", {}, NO_PROGRAMS.get, {"/there"}.__contains__)
    assert (issue.key, issue.line, issue.column) == ("servers.s.base_url", 4, 37)
    assert "'base_url' refers to ${A}" in issue.message


def test_an_unset_variable_without_a_default_is_a_warning_at_its_place() -> None:
    assert warnings("command: x, args: [a, '${ROOT}/${ROOT}/${B:-c}']", {}, "x") == [
        (
            "UNSET_VARIABLE",
            46,
            (
                "'args[1]' refers to ${ROOT}, which is not set here; set it where workers run, or"
                " write ${ROOT:-default}."
            ),
        )
    ]
    assert warnings("command: x, args: [a, '${ROOT}']", {"ROOT": ""}, "x") == []
    assert warnings("command: x, args: [a, '${ROOT}'], env: {ROOT: b}", {}, "x") == []


@pytest.mark.parametrize(
    ("value", "reason", "message"),
    [
        ("{env: B}", "UNSET_VARIABLE",
         "'env.A' needs the environment variable B, which is not set here."),
        ("{secret: B}", "UNKNOWN_SECRET",
         ("'env.A' needs the secret B, which is neither in the environment nor in the vault here;"
         " run `leaseway vault set B` where workers run.")),
        ("{file: /gone}", "MISSING_FILE",
         "'env.A' needs the file /gone, which does not exist here."),
    ],
)  # fmt: skip
def test_a_reference_that_this_machine_lacks_is_a_warning(
    value: str, reason: str, message: str
) -> None:
    ((found, column, said),) = warnings(f"command: x, env: {{A: {value}}}", {}, "x")
    assert (found, said) == (reason, message)
    assert column == len("    {transport: stdio, command: x, env: {A: ") + value.index(" ") + 2


def test_a_missing_file_of_variables_is_a_warning_at_its_key() -> None:
    missing = "'env_file' needs the file .env, which does not exist here."
    assert warnings("command: x, env_file: .env", {}, "x") == [("MISSING_FILE", 46, missing)]


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("cmd.exe", "write the program that it starts, such as 'npx', as command."),
        ("https://a.example/mcp", "it is an address, which belongs under 'url'."),
    ],
)
def test_a_command_that_no_machine_has_is_told_what_to_write(command: str, advice: str) -> None:
    ((_, _, said),) = warnings(f"command: '{command}'", {})
    assert said.endswith(advice)


def test_a_home_folder_that_nothing_replaces_is_told_what_to_write() -> None:
    ((_, _, program),) = warnings("command: ~/x.sh", {})
    assert program.endswith("write ${HOME} in the place of '~'.")
    for path in ("~/x", "${HOME}/x"):
        ((_, _, file),) = warnings(f"command: x, env: {{A: {{file: '{path}'}}}}", {}, "x")
        assert file.endswith("write its full path, without '~' and ${NAME}.")


def test_a_secret_of_the_vault_is_known_and_a_vault_that_cannot_be_read_is_said_once(
    tmp_path: Path,
) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text(
        "version: 1\nservers:\n"
        "  s: {transport: stdio, command: sh, env: {A: {secret: known}, B: {secret: lost}}}\n"
    )
    environ = {
        "LEASEWAY_VAULT": str(tmp_path / "vault" / "v"),
        "LEASEWAY_VAULT_KEY": "a passphrase that is long enough",
    }
    set_secret(find_vault(environ), "known", "value")
    (issue,) = check_sources(parse_sources([str(config)]), environ=environ)
    assert (issue.reason, issue.key) == ("UNKNOWN_SECRET", "servers.s.env.B.secret")
    wrong = environ | {"LEASEWAY_VAULT_KEY": "another passphrase, not the right one"}
    reasons = [issue.reason for issue in check_sources(parse_sources([str(config)]), environ=wrong)]
    assert reasons == ["VAULT_UNREADABLE", "UNKNOWN_SECRET", "UNKNOWN_SECRET"]


def test_references_that_this_machine_has_are_fine() -> None:
    env = "{A: {env: B}, C: {secret: B}, D: {file: /there}, E: '${B}'}"
    assert warnings(f"command: x, env: {env}", {"B": "b"}, "x") == []


def test_headers_and_url_are_looked_at_too(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"{HEAD}    transport: streamable_http\n    url: http://${{HOST}}/mcp\n"
        "    headers: {Authorization: {env: MCP_TOKEN}}\n",
    )
    issues = check_sources(parse_sources([str(path)]), environ={})
    assert [(issue.line, issue.column, issue.key) for issue in issues] == [
        (5, 10, "servers.s.url"),
        (6, 36, "servers.s.headers.Authorization.env"),
    ]  # fmt: skip


def test_errors_and_warnings_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "version: 1\nservers:\n  a: {transport: stdio, command: x}\n  b: {transport: stdo}\n",
    )
    issues = check_sources(parse_sources([str(path)]), environ={}, which=lambda _: None)
    assert [(issue.line, issue.severity, issue.reason) for issue in issues] == [
        (3, "warning", "COMMAND_NOT_FOUND"),
        (4, "error", "UNSUPPORTED_TRANSPORT"),
    ]
    assert {issue.file for issue in issues} == {str(path)}


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", write(tmp_path, "") / "below"):
        (issue,) = check_sources(parse_sources([str(path)]))
        assert (issue.severity, issue.reason) == ("error", "CONFIG_UNREADABLE")
        assert issue.message == f"There is no file {path}."


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    (issue,) = check_sources(parse_sources([str(tmp_path)]))
    assert issue.message == f"The file {tmp_path} can't be read: It is not a regular file."


def test_a_file_that_is_not_utf8_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "mcp.yaml"
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    (issue,) = check_sources(parse_sources([str(path)]))
    assert issue.message == (
        f"The file {path} can't be read: It is not UTF-8: byte 16, on line 2, can't be decoded."
        " Save it as UTF-8."
    )


def test_a_file_above_the_bound_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "mcp.yaml"
    with path.open("wb") as file:
        file.truncate(100 * MAX_CONFIG)
    (issue,) = check_sources(parse_sources([str(path)]))
    assert issue.reason == "CONFIG_TOO_LARGE"
