"""Descriptions that servers are published with, named as a configuration."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value

STDIO = {"transport": {"type": "stdio"}}


def published(**root: Any) -> ParsedConfig:
    head = {"name": "io.github.someone/weather", "description": "d", "version": "1.0.2"}
    return parse_text(json.dumps(head | root), "server.json")


def bundle(
    config: dict[str, Any] | None = None, options: dict[str, Any] | None = None, kind: str = "node"
) -> ParsedConfig:
    server = {"type": kind, "entry_point": "server/start"}
    root = {
        "manifest_version": "0.3",
        "name": "weather",
        "version": "1.0.0",
        "tools": [{"name": "t"}],
        "server": server if config is None else server | {"mcp_config": config},
        "user_config": options or {},
    }
    return parse_text(json.dumps(root), "/srv/weather/manifest.json")


def words(parsed: ParsedConfig) -> tuple[str, ...]:
    assert not parsed.rejected, parsed.issues
    server = part(parsed.servers[VariantKey("weather")])
    return (server.command, *server.args)


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ({"registryType": "npm", "identifier": "@a/b", "version": "1.2.3"},
         ("npx", "-y", "@a/b@1.2.3")),
        ({"registryType": "pypi", "identifier": "a", "version": "1.2.3", "runtimeHint": "uvx"},
         ("uvx", "a@1.2.3")),
        ({"registryType": "pypi", "identifier": "a", "runtimeHint": "uv",
          "runtimeArguments": [{"type": "positional", "value": "run"}]},
         ("uv", "run", "a")),
        ({"registryType": "oci", "identifier": "ghcr.io/a/b:1.2",
          "environmentVariables": [{"name": "A", "value": "1"}]},
         ("docker", "run", "-i", "--rm", "-e", "A", "ghcr.io/a/b:1.2")),
        ({"registry_type": "npm", "identifier": "a", "version": "1",
          "runtime_arguments": [{"type": "positional", "value": "-y"}],
          "package_arguments": [{"type": "named", "name": "--port", "value": "{port}",
                                 "variables": {"port": {"default": "80"}}}]},
         ("npx", "-y", "a@1", "--port", "80")),
        ({"registryType": "npm", "identifier": "a", "packageArguments": [
            {"type": "positional", "valueHint": "data_dir", "isRequired": True},
            {"type": "positional", "valueHint": "extra"},
            {"type": "named", "name": "--key", "valueHint": "key", "isRequired": True},
            {"type": "named", "name": "--optional", "valueHint": "x"}]},
         ("npx", "-y", "a", "${DATA_DIR}", "--key", "${KEY}")),
    ],
)  # fmt: skip
def test_a_package_of_the_registry_is_started_by_its_registrys_runner(
    package: dict[str, Any], expected: tuple[str, ...]
) -> None:
    parsed = published(packages=[package | STDIO])
    assert words(parsed) == expected


def test_a_variable_counts_for_all_arguments_and_docker_runs_once() -> None:
    folder = {"workdir": {"isRequired": True, "default": "/tmp"}}
    arguments = [
        {"type": "positional", "value": "run"},
        {"type": "named", "name": "-v", "value": "{workdir}:/w", "variables": folder},
        {"type": "named", "name": "-w", "value": "{workdir}"},
    ]
    package = {"registryType": "oci", "identifier": "a:1", "runtimeArguments": arguments}
    parsed = published(packages=[package | {"packageArguments": ["--stdio", None]} | STDIO])
    program, *given = words(parsed)
    assert (program, given[:3]) == ("docker", ["run", "-i", "--rm"])
    assert given[3:] == ["-v", "/tmp:/w", "-w", "/tmp", "a:1", "--stdio"]


def test_dockers_whole_command_line_may_stand_in_the_runtime_arguments() -> None:
    variables = {"token": {"isRequired": True, "isSecret": True}, "host": {"default": "h"}}
    arguments = [
        {"type": "positional", "value": "run"},
        {"type": "named", "name": "-i", "value": "true", "format": "boolean"},
        {"type": "named", "name": "--init", "value": "true", "format": "boolean"},
        {"type": "named", "name": "--privileged", "value": "false", "format": "boolean"},
        {"type": "named", "name": "-e", "value": "GH_TOKEN={token}", "variables": variables},
        {"type": "named", "name": "-e", "value": "GH_HOST={host}"},
        {"type": "named", "name": "-e", "value": "GH_ORG={org}", "variables": {"org": {}}},
        {"type": "named", "name": "-e", "value": "MODE=fast"},
        {"type": "positional", "value": "ghcr.io/a/b"},
        {"type": "positional", "value": "stdio"},
    ]
    package = {"registryType": "oci", "identifier": "ghcr.io/a/b:1", "runtimeArguments": arguments}
    parsed = published(packages=[package | STDIO])
    _, *given = words(parsed)
    assert given[:3] == ["run", "-i", "--rm"]
    passed = ["-e", "GH_TOKEN", "-e", "GH_HOST", "-e", "GH_ORG"]
    assert given[3:] == ["--init", "-e", "MODE=fast", *passed, "ghcr.io/a/b:1", "stdio"]
    assert part(parsed.servers[VariantKey("weather")]).env == {
        "GH_TOKEN": Value("secret", "GH_TOKEN"),
        "GH_HOST": Value("literal", "h"),
        "GH_ORG": Value("literal", "${GH_ORG:-}"),
    }


@pytest.mark.parametrize(
    ("kind", "option", "expected"),
    [
        ("npm", "--package", ("npx", "-y", "--package", "a", "a")),
        ("pypi", "--from", ("uvx", "--from", "a", "a")),
        ("oci", "--name", ("docker", "run", "-i", "--rm", "--name", "a", "a")),
    ],
)
def test_the_value_of_an_option_is_not_the_package_itself(
    kind: str, option: str, expected: tuple[str, ...]
) -> None:
    arguments = [{"type": "named", "name": option, "value": "a"}]
    package = {"registryType": kind, "identifier": "a", "runtimeArguments": arguments}
    assert words(published(packages=[package | STDIO])) == expected


def test_a_variable_that_docker_is_told_to_pass_may_be_declared_besides() -> None:
    token = {"isRequired": True, "isSecret": True}
    option = {"type": "named", "name": "-e", "value": "TOKEN={t}", "variables": {"t": token}}
    package = {"registryType": "oci", "identifier": "a:1", "runtimeArguments": [option]}
    parsed = published(
        packages=[package | {"environmentVariables": [token | {"name": "TOKEN"}]} | STDIO]
    )
    assert words(parsed) == ("docker", "run", "-i", "--rm", "-e", "TOKEN", "a:1")
    assert part(parsed.servers[VariantKey("weather")]).env == {"TOKEN": Value("secret", "TOKEN")}


def test_of_two_values_of_a_variable_docker_is_told_the_last_one() -> None:
    options = [
        {"type": "named", "name": "-e", "value": "MODE={m}", "variables": {"m": {"default": mode}}}
        for mode in ("slow", "fast")
    ]
    package = {"registryType": "oci", "identifier": "a:1", "runtimeArguments": options}
    parsed = published(packages=[package | STDIO])
    assert words(parsed) == ("docker", "run", "-i", "--rm", "-e", "MODE", "a:1")
    assert part(parsed.servers[VariantKey("weather")]).env == {"MODE": Value("literal", "fast")}


def test_values_that_a_person_has_to_give_become_references() -> None:
    variables = [
        {"name": "TOKEN", "isRequired": True, "isSecret": True},
        {"name": "REGION", "isRequired": True},
        {"name": "LEVEL", "default": "info"},
        {"name": "OTHER"},
    ]
    package = {"registryType": "npm", "identifier": "a", "environmentVariables": variables}
    parsed = published(packages=[package])
    assert part(parsed.servers[VariantKey("weather")]).env == {
        "TOKEN": Value("secret", "TOKEN"),
        "REGION": Value("literal", "${REGION}"),
        "LEVEL": Value("literal", "info"),
    }


def test_variables_and_headers_without_a_value_are_a_warning() -> None:
    package = {"registryType": "npm", "identifier": "a"} | STDIO
    remote = {"type": "sse", "url": "https://a.example/sse"}
    optional = [{"name": "TOKEN", "isSecret": True}, {"name": "LEVEL", "default": "info"}]
    for way in (
        {"packages": [package | {"environmentVariables": optional}]},
        {"remotes": [remote | {"headers": optional}]},
    ):
        (issue,) = published(**way).issues
        assert (issue.severity, "left out: 'TOKEN'." in issue.message) == ("warning", True)


def test_an_address_counts_before_packages_and_the_others_are_a_warning() -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{team}.example/mcp",
        "variables": {"team": {"isRequired": True}},
        "headers": [
            {"name": "X-Api-Key", "isRequired": True, "isSecret": True},
            {"name": "Authorization", "value": "Bearer {key}", "variables": {
                "key": {"isRequired": True}}},
        ],
    }  # fmt: skip
    package = {"registryType": "npm", "identifier": "a"} | STDIO
    parsed = published(packages=[package], remotes=[remote])
    server = parsed.servers[VariantKey("weather")]
    assert (server.transport, part(server).url) == (
        "streamable_http",
        "https://${TEAM}.example/mcp",
    )
    assert part(server).headers == {
        "X-Api-Key": Value("secret", "X_API_KEY"),
        "Authorization": Value("literal", "Bearer ${KEY}"),
    }
    (issue,) = parsed.issues
    assert (issue.severity, "2 ways" in issue.message) == ("warning", True)


@pytest.mark.parametrize(
    "package",
    [
        {"registryType": "mcpb", "identifier": "https://a/b.mcpb"} | STDIO,
        {"registryType": "npm", "identifier": "a", "transport": {"type": "sse", "url": "http://a"}},
    ],
)
def test_a_package_that_no_worker_can_start_refuses_the_file(package: dict[str, Any]) -> None:
    parsed = published(packages=[package])
    assert parsed.broken
    (issue,) = parsed.issues
    assert "npm, pypi, nuget, oci" in issue.message


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"version": 1.0}, "'version' must be text."),
        ({"transport": "stdio"}, "'transport' must be a mapping with a 'type'."),
        ({"environmentVariables": {"KEY": "k"}},
         "'environmentVariables' must be a list of mappings."),
        ({"environmentVariables": ["KEY"]},
         "Each item of 'environmentVariables' must be a mapping."),
        ({"environmentVariables": [{"value": "k"}]},
         "Each item of 'environmentVariables' needs a 'name'."),
        ({"environmentVariables": [{"name": "A", "isRequired": "true"}]},
         "'isRequired' must be true or false."),
        ({"environmentVariables": [{"name": "A", "value": "{x}", "variables": {"x": "y"}}]},
         "Each item of 'variables' must be a mapping."),
        ({"package_arguments": [{"type": "named", "value": "3"}]},
         "Each item of 'package_arguments' needs a 'name'."),
        ({"packageArguments": [{"type": "option", "name": "--a"}]},
         "Each item of 'packageArguments' needs the 'type' 'named' or 'positional'."),
        ({"packageArguments": [{"argument": "a"}]},
         "Each item of 'packageArguments' needs a 'type' and a 'value'."),
        ({"packageArguments": [{"type": "positional", "value": ["a"]}]}, "'value' must be text."),
    ],
)  # fmt: skip
def test_a_part_of_another_shape_refuses_the_file_and_is_not_left_out(
    part: dict[str, Any], message: str
) -> None:
    parsed = published(packages=[{"registryType": "npm", "identifier": "a"} | STDIO | part])
    assert parsed.broken
    assert [issue.message for issue in parsed.issues] == [message]


def test_an_answer_of_the_registry_is_read_like_its_description() -> None:
    inner = {"name": "a/weather", "remotes": [{"type": "sse", "url": "https://a.example/sse"}]}
    parsed = parse_text(json.dumps({"server": inner, "_meta": {}}), "answer.json")
    assert parsed.servers[VariantKey("weather")].transport == "sse"


def test_an_npm_package_is_no_published_server() -> None:
    root = {"name": "a", "version": "1.0.0", "packages": {"": {"name": "a"}}}
    assert parse_text(json.dumps(root), "package-lock.json").broken


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({"command": "node", "args": ["${__dirname}/x.js", "--in=${DOWNLOADS}"]}, {},
         ("node", "/srv/weather/x.js", "--in=${HOME}/Downloads")),
        ({"command": "a", "platform_overrides": {"linux": {"command": "b"}, "win32": {
            "command": "c"}}}, {}, ("b",)),
        ({"command": "a", "args": ["${user_config.dirs}", "${user_config.other}"]},
         {"dirs": {"type": "directory", "multiple": True,
                   "default": ["${HOME}/a", "${__dirname}/b"]}, "other": {"type": "string"}},
         ("a", "${HOME}/a", "/srv/weather/b")),
        ({"command": "a", "args": ["${user_config.dir}", "-l=${user_config.level}"]},
         {"dir": {"type": "directory", "required": True}, "level": {"default": 3}},
         ("a", "${DIR}", "-l=3")),
        ({"command": "a", "args": ["${user_config.a}"]}, {"a": {"default": "${user_config.a}"}},
         ("a", "${user_config.a}")),
    ],
)  # fmt: skip
def test_a_bundle_says_how_it_is_started_from_its_folder(
    config: dict[str, Any], options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert words(bundle(config, options)) == expected


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ("node", {}, "'mcp_config' must be a mapping."),
        ({"command": "a", "platform_overrides": ["linux"]}, {},
         "'platform_overrides' must be a mapping."),
        ({"command": "a", "platform_overrides": {"linux": "b"}}, {},
         "'platform_overrides.linux' must be a mapping."),
        ({"command": "a"}, {"key": "k"}, "'user_config.key' must be a mapping."),
        ({"command": "a"}, {"key": {"required": "yes"}}, "'required' must be true or false."),
    ],
)  # fmt: skip
def test_a_part_of_a_bundle_of_another_shape_refuses_the_file(
    config: Any, options: Any, message: str
) -> None:
    parsed = bundle(config, options)
    assert parsed.broken
    assert [issue.message for issue in parsed.issues] == [message]


def test_a_sensitive_option_of_a_bundle_is_a_secret() -> None:
    env = {"API_KEY": "${user_config.key}", "UNSET": "${user_config.unset}", "A": "b"}
    options = {"key": {"sensitive": True, "required": True}, "unset": {"sensitive": True}}
    parsed = bundle({"command": "a", "env": env}, options)
    assert part(parsed.servers[VariantKey("weather")]).env == {
        "API_KEY": Value("secret", "API_KEY"),
        "A": Value("literal", "b"),
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("node", ("node", "/srv/weather/server/start")),
        ("python", ("python3", "/srv/weather/server/start")),
        ("uv", ("uv", "run", "--directory", "/srv/weather", "/srv/weather/server/start")),
        ("binary", ("/srv/weather/server/start",)),
    ],
)
def test_a_bundle_without_a_command_starts_its_entry_point(
    kind: str, expected: tuple[str, ...]
) -> None:
    assert words(bundle(kind=kind)) == expected


def test_the_folder_of_a_manifest_with_a_relative_name_is_absolute() -> None:
    root = {"dxt_version": "0.1", "name": "s", "server": {"type": "binary", "entry_point": "a"}}
    spec = parse_text(json.dumps(root), "b/manifest.json").servers[VariantKey("s")]
    assert part(spec).command == str(Path.cwd() / "b" / "a")
