"""Entries of servers that run as processes: their specs, and each mistake with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load, parse_server, spec_of
from tests.specs import part

from leaseway.control_plane.config.effective import effective_values
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.codec import decode_spec, encode_spec
from leaseway.spec.kinds.builtin import Builtin
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value

WRITES = "transport: builtin, roots: [/a], commands: [git status]"
PYTHON = "transport: python, module: tools.weather, class: Weather"
BUILTIN = "transport: builtin, tools: [read_file, current_time], roots: [docs]"


def server(body: str) -> ServerSpec:
    return spec_of(parse_server(body))


def test_a_class_is_handed_any_mapping_with_its_references() -> None:
    spec = server(
        f"{PYTHON}, config: {{url: '${{URL}}', n: 1, deep: [{{token: {{secret: t}}}}, null, true]"
        "}, env: {A: b}, limits: {cpu: 1}, sandbox: true, inherit_env: none"
    )
    assert (part(spec).module, part(spec).class_name) == ("tools.weather", "Weather")
    assert json.loads(part(spec).config) == {
        "url": "${URL}",
        "n": 1,
        "deep": [{"token": {"secret": "t"}}, None, True],
    }
    assert spec.values == {
        "env.A": Value("literal", "b"),
        "config.url": Value("literal", "${URL}"),
        "config.deep[0].token": Value("secret", "t"),
    }


def test_what_is_on_of_a_builtin_server_travels() -> None:
    spec = server(
        "transport: builtin, tools: [read_file, execute_command, http_get], roots: ['${ROOT}', /b],"
        " commands: ['git log *'], hosts: ['*.example.com', 10.0.0.0/8]"
    )
    assert part(spec).builtin == Builtin(
        ("read_file", "execute_command", "http_get"),
        ("${ROOT}", "/b"),
        ("git log *",),
        ("*.example.com", "10.0.0.0/8"),
    )
    travelled = decode_spec(spec.key, encode_spec(spec))
    assert part(travelled).builtin == part(spec).builtin
    assert travelled.launch_hash == spec.launch_hash
    python = server(f"{PYTHON}, config: {{a: 1}}")
    assert decode_spec(python.key, encode_spec(python)).launch_hash == python.launch_hash


def test_a_change_of_what_runs_changes_the_launch_and_the_order_of_keys_does_not() -> None:
    hashes = [
        server(entry).launch_hash
        for entry in (
            PYTHON,
            PYTHON.replace("weather", "wind"),
            PYTHON.replace("Weather", "Wind"),
            f"{PYTHON}, config: {{a: 1, b: 2}}",
            BUILTIN,
            BUILTIN.replace("current_time", "get_env"),
            BUILTIN.replace("docs", "other"),
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert server(f"{PYTHON}, config: {{b: 2, a: 1}}").launch_hash == hashes[3]


def test_patterns_switch_tools_on_too() -> None:
    spec = server(
        "transport: builtin, roots: [.], tools: {whitelist: ['*_file'], blacklist: ['*']}"
    )
    assert part(spec).builtin.tools == ("read_file", "write_file", "edit_file", "delete_file")


@pytest.mark.parametrize(
    ("entry", "key", "reason", "words"),
    [
        ("transport: python, class: A", "module", "MISSING_KEY", "needs 'module' for 'python'"),
        ("transport: python, module: a", "class", "MISSING_KEY", "needs 'class' for 'python'"),
        ("transport: python, module: a/b.py, class: A", "module", "BAD_VALUE",
         "must be a module as in an import statement, such as tools.weather, but is 'a/b.py'"),
        ("transport: python, module: a, class: a.B", "class", "BAD_VALUE", "the name of a class"),
        ("transport: python, module: '${M}', class: B", "module", "REFERENCE_NOT_ALLOWED", "${"),
        (f"{PYTHON}, config: [a]", "config", "WRONG_TYPE", "must be a mapping"),
        (f"{PYTHON}, config: {{a: {{secret: 'no name'}}}}", "config.a.secret", "BAD_VALUE", "name"),
        (f"{PYTHON}, config: {{a: .inf}}", "config.a", "BAD_VALUE", "that JSON can express"),
        (f"{PYTHON}, config: {{a: {'[' * 17}{']' * 17}}}", None, "BAD_VALUE", "deeper than 16"),
        (f"{PYTHON}, config: {{a: {'x' * 65_537}}}", "config.a", "BAD_VALUE", "longer than 65536"),
        (f"{PYTHON}, config: {{{', '.join(f'a{i}: {str(i) * 3}x' for i in range(5_000))}}}",
         "config", "BAD_VALUE", "longer than 65536 characters as JSON"),
        (f"{PYTHON}, command: x", "command", "KEY_NOT_FOR_TRANSPORT", "only for 'stdio'"),
        ("transport: stdio, command: x, module: a", "module", "KEY_NOT_FOR_TRANSPORT", "'python'"),
        ("transport: builtin", "tools", "MISSING_KEY", "needs 'tools' for 'builtin'"),
        ("transport: builtin, tools: []", "tools", "BAD_VALUE", "enables no tool: name"),
        ("transport: builtin, tools: {blacklist: [x]}", "tools", "BAD_VALUE", "enables no tool"),
        ("transport: builtin, tools: [reed_file]", "tools[0]", "BAD_VALUE",
         "did you mean 'read_file'?"),
        ("transport: builtin, tools: [read_file]", "roots", "MISSING_KEY",
         "The tool read_file needs 'roots': the folders"),
        ("transport: builtin, tools: [execute_command]", "commands", "MISSING_KEY",
         "needs 'commands'"),
        ("transport: builtin, tools: [execute_command], commands: ['./x']", "commands[0]",
         "BAD_VALUE", "a name or an absolute path"),
        ("transport: builtin, tools: [execute_command], commands: [\"a 'b\"]", "commands[0]",
         "BAD_VALUE", "can't be read"),
        (f"{WRITES}, tools: [write_file, execute_command]", "tools", "BAD_VALUE",
         "must not be on together"),
        (f"{WRITES}, tools: [edit_file, execute_command], sandbox: true", "tools", "BAD_VALUE",
         "must not be on together"),
        ("transport: builtin, tools: [http_get], hosts: ['http://a']", "hosts[0]", "BAD_VALUE",
         "without scheme"),
        ("transport: builtin, tools: [read_file], roots: ['-x']", "roots[0]", "BAD_VALUE",
         "not a folder"),
        ("transport: builtin, tools: [read_file], roots: ['~/x']", "roots[0]", "BAD_VALUE",
         "'~/x' is no home folder: write ${HOME} in the place of '~'."),
        ("transport: builtin, tools: [read_file], roots: []", "roots", "BAD_VALUE", "is empty"),
        ("transport: builtin, tools: [get_env], args: [x]", "args", "KEY_NOT_FOR_TRANSPORT",
         "only for 'stdio'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(
    entry: str, key: str | None, reason: str, words: str
) -> None:
    parsed = parse_server(entry)
    assert parsed.rejected == {"s"}
    issue = next(each_issue for each_issue in parsed.issues if each_issue.severity == "error")
    assert issue.reason == reason
    assert words in issue.message
    assert issue.line == 3
    if key is not None:
        assert issue.key == f"servers.s.{key}"


@pytest.mark.parametrize("key", ["roots: [a]", "commands: [git]", "hosts: [a.b]"])
def test_what_serves_no_tool_that_is_on_is_a_warning(key: str) -> None:
    parsed = parse_server(f"transport: builtin, tools: [current_time], {key}")
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason) == ("warning", "KEY_WITHOUT_EFFECT")


def test_a_literal_credential_in_a_config_is_warned_about_and_not_shown() -> None:
    token = "ghp_" + "a1B2c3D4e5" * 3
    parsed = parse_server(f"{PYTHON}, config: {{db: {{token: {token}, host: h}}}}")
    (issue,) = parsed.issues
    assert (issue.reason, issue.key) == ("LITERAL_CREDENTIAL", "servers.s.config.db.token")
    assert token not in issue.message
    shown = {
        effective_value.key: effective_value.value
        for effective_value in effective_values(parsed, ())
    }
    assert shown["config"] == {"db": {"token": "***", "host": "h"}}


SYSTEM = """version: 1
servers:
  kit: {transport: builtin, tools: [read_file, list_files], roots: [docs]}
  class: {transport: python, module: a, class: B, config: {a: 1, b: {c: 2}}}
"""


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("kit: {tools: [read_file, write_file]}", "A domain can't enable 'write_file'"),
        ("kit: {tools: {whitelist: ['*_file']}}", "A domain can't enable 'write_file'"),
        ("kit: {roots: [/]}", "A domain can't set 'roots'"),
        ("kit: {commands: [sh]}", "A domain can't set 'commands'"),
        ("kit: {hosts: [a]}", "A domain can't set 'hosts'"),
        ("class: {module: os}", "A domain can't set 'module'"),
        ("class: {class: C}", "A domain can't set 'class'"),
    ],
)
def test_a_domain_widens_nothing(tmp_path: Path, entry: str, words: str) -> None:
    parsed = layered(tmp_path, entry)
    assert any(words in issue.message for issue in parsed.issues)
    assert parsed.refused == {VariantKey(entry.partition(":")[0], "acme")}


def test_a_domain_narrows_the_tools_and_merges_the_config_by_name(tmp_path: Path) -> None:
    parsed = layered(tmp_path, "kit: {tools: [list_files]}\n  class: {config: {b: 3}}")
    assert parsed.issues == ()
    kit, made = (parsed.servers[VariantKey(name, "acme")] for name in ("kit", "class"))
    assert part(kit).builtin == Builtin(("list_files",), ("docs",))
    assert json.loads(part(made).config) == {"a": 1, "b": 3}


def test_a_blacklist_of_a_domain_turns_off_tools_that_are_on_below(tmp_path: Path) -> None:
    parsed = layered(tmp_path, "kit: {tools: {blacklist: [read_*]}}")
    assert parsed.issues == ()
    kit = parsed.servers[VariantKey("kit", "acme")]
    assert part(kit).builtin == Builtin(("list_files",), ("docs",))
    assert kit.tools.passes("list_files")
    assert not kit.tools.passes("write_file")
    nothing = layered(tmp_path, "kit: {tools: {blacklist: ['*']}}")
    assert nothing.refused == {VariantKey("kit", "acme")}


def test_a_blacklist_of_a_domain_that_turns_off_nothing_is_told(tmp_path: Path) -> None:
    parsed = layered(tmp_path, "kit: {tools: {blacklist: [write_fil]}}")
    (issue,) = parsed.issues
    assert (issue.severity, issue.reason, issue.line) == ("warning", "BAD_PATTERN", 3)
    assert "'write_fil' turns off no tool of the server 'kit'" in issue.message


def layered(folder: Path, entry: str) -> ParsedConfig:
    (folder / "system.yaml").write_text(SYSTEM)
    (folder / "acme.yaml").write_text(f"version: 1\nservers:\n  {entry}\n")
    words = [f"system={folder / 'system.yaml'}", f"domain=acme:{folder / 'acme.yaml'}"]
    return load(*words)


_IMAGE = "transport: stdio, image: 'registry.example/tickets:1.2'"


def test_an_image_needs_no_command() -> None:
    spec = server(f"{_IMAGE}, args: [--fast]")
    assert (part(spec).image, part(spec).command, part(spec).args) == (
        "registry.example/tickets:1.2",
        "",
        ("--fast",),
    )
    assert not spec.hidden


def test_an_image_and_its_template_travel_and_belong_to_the_launch() -> None:
    template = "podTemplate: {metadata: {labels: {a: b}}, spec: {nodeSelector: {disk: ssd}}}"
    plain, made = server(_IMAGE), server(f"{_IMAGE}, {template}")

    assert json.loads(part(made).pod_template) == {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeSelector": {"disk": "ssd"}},
    }
    assert decode_spec(made.key, encode_spec(made)) == made
    other = server("transport: stdio, image: 'registry.example/tickets:1.3'")
    assert len({plain.launch_hash, made.launch_hash, other.launch_hash}) == 3


def test_a_template_keeps_its_text_so_that_an_upgrade_restarts_nothing() -> None:
    template = "podTemplate: {spec: {nodeSelector: {zone: é, disk: ssd}}, metadata: {labels: {}}}"
    made = server(f"{_IMAGE}, {template}")

    assert part(made).pod_template == (
        r'{"spec":{"nodeSelector":{"zone":"\u00e9","disk":"ssd"}},"metadata":{"labels":{}}}'
    )


@pytest.mark.parametrize(
    ("entry", "reason", "words"),
    [
        ("transport: stdio", "MISSING_KEY", "'command' or 'image'"),
        ("transport: stdio, image: --privileged", "BAD_VALUE", "the name of an image"),
        ("transport: stdio, image: 'a b'", "BAD_VALUE", "the name of an image"),
        ("transport: stdio, image: [a]", "WRONG_TYPE", "must be text"),
        (f"{_IMAGE}, podTemplate: [a]", "WRONG_TYPE", "must be a mapping"),
        (f"{_IMAGE}, podTemplate: {{specs: {{}}}}", "UNKNOWN_KEY", "did you mean 'spec'?"),
        (f"{_IMAGE}, podTemplate: {{spec: {{a: .inf}}}}", "BAD_VALUE", "JSON"),
        (
            f"{_IMAGE}, podTemplate: {{a: {'x' * 65_536}}}".replace("a:", "spec:"),
            "BAD_VALUE",
            "longer than 65536 characters",
        ),
        ("transport: sse, url: 'http://a', image: a", "KEY_NOT_FOR_TRANSPORT", "only for 'stdio'"),
        (f"{_IMAGE}, inherit_env: all", "KEY_WITHOUT_EFFECT", "no effect with 'image'"),
        ("transport: stdio, command: a, podTemplate: {}", "KEY_WITHOUT_EFFECT", "without 'image'"),
    ],
)
def test_a_mistake_in_an_image_is_told_in_a_sentence(entry: str, reason: str, words: str) -> None:
    (issue,) = parse_server(entry).issues

    assert issue.reason == reason
    assert words in issue.message


def test_a_credential_in_a_template_is_told() -> None:
    entry = f"{_IMAGE}, podTemplate: {{metadata: {{annotations: {{api_token: ghp_{'k7' * 18}}}}}}}"

    assert [issue.reason for issue in parse_server(entry).issues] == ["LITERAL_CREDENTIAL"]
