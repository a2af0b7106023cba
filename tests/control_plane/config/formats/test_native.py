"""What a valid native file becomes."""

import pytest
from tests.control_plane.config.parsing import parse
from tests.specs import part

from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import InstancePolicy, ServerSpec, Transform, VariantKey
from leaseway.spec.references import Value
from leaseway.wire.timing.backoff import Backoff

EXAMPLE = """\
version: 1
defaults: { transform: [ { prefix: '{server}_' } ] }
servers:
  playwright:
    truely-stateless: false
    transport: stdio
    command: npx
    args: ['-y', '@playwright/mcp@latest']
    env: { TOKEN: { env: HOST_TOKEN }, DB: { secret: db_password }, \
CA: { file: /run/secrets/ca }, MODE: headless }
    tools: { whitelist: ['browser_*'], blacklist: ['*_unsafe'] }
    transform: [ { prefix: 'playwright_' }, { prefix: { remove: 'a_', add: 'b_' } }, \
{ suffix: '_x' } ]
  remote:
    transport: streamable_http
    url: http://127.0.0.1:3000/mcp
    headers: { Authorization: { env: MCP_AUTH_TOKEN } }
    sessionId: ''
    protocol: auto
"""

EVERY_KEY = """\
version: 1
servers:
  all:
    enabled: true
    description: What it is for.
    truely-stateless: true
    transport: stdio
    protocol: 2026-07-28
    command: ${HOME}/bin/server
    args: [--root, '${ROOT:-/tmp}']
    env: { EMPTY: '', A: '${B}' }
    inherit_env: none
    limits: { memory: 512MiB, cpu: 1.5, open_files: 256, processes: 32 }
    sandbox: { network: true, writable: [/tmp, /var/lib/x] }
    tools: { whitelist: [a, 'b*'] }
    prompts: { blacklist: ['*-draft'] }
    resources: { whitelist: ['file:///docs/*', 'db://{table}?a=1'], blacklist: ['*'] }
    transform: [ { suffix: '_{server}' } ]
    startup_timeout: 500ms
    call_timeout: 90
    lease_drain_timeout: 0
    start: lazy
    warm: 0
    max_instances: 8
    idle_timeout: 10m
    max_age: 1h30m
    restart: { initial: 0.1, max: 1m, multiplier: 1.5 }
"""


def one(body: str) -> ServerSpec:
    """Return the spec of a stdio server with more keys, which must be valid."""
    parsed = parse(f"version: 1\nservers:\n  s:\n    transport: stdio\n    command: x\n{body}")
    assert parsed.issues == ()
    return parsed.servers[VariantKey("s")]


def test_the_designs_example_becomes_typed_specs() -> None:
    parsed = parse(EXAMPLE)
    assert (parsed.issues, parsed.rejected, parsed.broken) == ((), frozenset(), False)
    assert parsed.servers == {
        VariantKey("playwright"): server_spec(
            key=VariantKey("playwright"),
            transport="stdio",
            command="npx",
            args=("-y", "@playwright/mcp@latest"),
            env={
                "TOKEN": Value("env", "HOST_TOKEN"),
                "DB": Value("secret", "db_password"),
                "CA": Value("file", "/run/secrets/ca"),
                "MODE": Value("literal", "headless"),
            },
            tools=NameFilter(("browser_*",), ("*_unsafe",)),
            transforms=(
                Transform("prefix", "playwright_"),
                Transform("prefix", "b_", "a_"),
                Transform("suffix", "_x"),
            ),
        ),
        VariantKey("remote"): server_spec(
            key=VariantKey("remote"),
            transport="streamable_http",
            url="http://127.0.0.1:3000/mcp",
            headers={"Authorization": Value("env", "MCP_AUTH_TOKEN")},
            transforms=(Transform("prefix", "remote_"),),
        ),
    }


def test_every_key_reaches_its_place_in_the_spec() -> None:
    parsed = parse(EVERY_KEY)
    assert parsed.issues == ()
    assert parsed.servers[VariantKey("all")] == server_spec(
        key=VariantKey("all"),
        transport="stdio",
        truely_stateless=True,
        command="${HOME}/bin/server",
        args=("--root", "${ROOT:-/tmp}"),
        env={"EMPTY": Value("literal", ""), "A": Value("literal", "${B}")},
        protocol="2026-07-28",
        inherit_env="none",
        limits=Limits(512 * 1024**2, 1.5, 256, 32),
        sandbox=Sandbox(enabled=True, network=True, writable_paths=("/tmp", "/var/lib/x")),
        instances=InstancePolicy(
            start="lazy",
            warm=0,
            max_instances=8,
            idle_timeout=600.0,
            max_age=5400.0,
            restart=Backoff(0.1, 60.0, 1.5),
        ),
        startup_timeout=0.5,
        call_timeout=90.0,
        lease_drain_timeout=0.0,
        description="What it is for.",
        tools=NameFilter(("a", "b*")),
        prompts=NameFilter((), ("*-draft",)),
        resources=NameFilter(("file:///docs/*", "db://{table}?a=1"), ("*",)),
        transforms=(Transform("suffix", "_all"),),
    )


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30", 30.0),
        ("1.5", 1.5),
        ("30s", 30.0),
        ("15m", 900.0),
        ("500ms", 0.5),
        ("1h", 3600.0),
        ("1d", 86_400.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("'45'", None),
    ],
)
def test_a_duration_is_seconds_or_numbers_with_units(written: str, seconds: float | None) -> None:
    parsed = parse(
        f"version: 1\nservers:\n  s: {{transport: stdio, command: x, call_timeout: {written}}}"
    )
    specs = list(parsed.servers.values())
    assert [spec.call_timeout for spec in specs] == ([] if seconds is None else [seconds])


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("1048576", 1024**2),
        ("'1048576'", 1024**2),
        ("512MiB", 512 * 1024**2),
        ("512 MB", 512 * 1000**2),
        ("2GiB", 2 * 1024**3),
        ("2048KiB", 2 * 1024**2),
    ],
)
def test_a_memory_limit_is_bytes_or_a_number_with_a_unit(written: str, size: int) -> None:
    assert part(one(f"    limits: {{memory: {written}}}")).limits.memory_bytes == size


@pytest.mark.parametrize(
    ("written", "sandbox"),
    [
        ("true", Sandbox(enabled=True)),
        ("false", Sandbox()),
        ("{}", Sandbox(enabled=True)),
        ("{network: true}", Sandbox(enabled=True, network=True)),
        ("{writable: [/a]}", Sandbox(enabled=True, writable_paths=("/a",))),
        ("strict", Sandbox(enabled=True, strict=True)),
        ("{level: basic}", Sandbox(enabled=True)),
        ("{level: strict, network: true}", Sandbox(enabled=True, network=True, strict=True)),
    ],
)
def test_a_sandbox_is_a_switch_or_says_what_stays_open(written: str, sandbox: Sandbox) -> None:
    assert part(one(f"    sandbox: {written}")).sandbox == sandbox


@pytest.mark.parametrize(
    "protocol",
    ["auto", "legacy", "2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
)
def test_a_protocol_version_needs_no_quotes(protocol: str) -> None:
    assert part(one(f"    protocol: {protocol}")).protocol == protocol


def test_words_that_older_yaml_takes_for_booleans_are_text() -> None:
    spec = one("    env: {A: yes, B: off, C: 12:30:45}")
    assert [value.text for value in part(spec).env.values()] == ["yes", "off", "12:30:45"]


def test_a_disabled_server_is_absent_and_not_rejected() -> None:
    parsed = parse("version: 1\nservers:\n  s: {enabled: false, transport: stdio, command: x}")
    assert (parsed.servers, parsed.rejected, parsed.broken) == ({}, frozenset(), False)


def test_a_disabled_server_with_an_error_goes_all_the_same_and_the_error_is_told() -> None:
    parsed = parse("version: 1\nservers:\n  s: {enabled: false, transport: stdio, comand: x}")
    assert (parsed.servers, parsed.rejected) == ({}, frozenset())
    assert [issue.reason for issue in parsed.issues] == ["MISSING_KEY", "UNKNOWN_KEY"]


def test_no_servers_is_a_valid_file() -> None:
    parsed = parse("version: 1\nservers: {}")
    assert (parsed.servers, parsed.issues, parsed.broken) == ({}, (), False)


def test_default_transforms_serve_servers_that_have_none_of_their_own() -> None:
    parsed = parse(
        "version: 1\ndefaults: {transform: [{prefix: '{server}_'}, {suffix: _s}]}\nservers:\n"
        "  a: {transport: stdio, command: x}\n"
        "  b: {transport: stdio, command: x, transform: [{prefix: 'p_'}]}\n"
        "  c: {transport: stdio, command: x, transform: []}\n"
    )
    assert {key.server_id: spec.transforms for key, spec in parsed.servers.items()} == {
        "a": (Transform("prefix", "a_"), Transform("suffix", "_s")),
        "b": (Transform("prefix", "p_"),),
        "c": (),
    }


def test_an_alias_repeats_what_its_anchor_holds() -> None:
    parsed = parse(
        "version: 1\nservers:\n"
        "  a: {transport: stdio, command: x, env: &env {A: '1'}}\n"
        "  b: {transport: stdio, command: x, env: *env}\n"
    )
    assert part(parsed.servers[VariantKey("b")]).env == {"A": Value("literal", "1")}


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert parse("\ufeffversion: 1\nservers: {}").issues == ()


def test_places_tell_where_each_value_is() -> None:
    parsed = parse(EXAMPLE)
    at = parsed.places["servers.playwright.args[1]"]
    assert (at.line, at.column) == (8, 18)
    at = parsed.places["servers.remote.headers.Authorization.env"]
    assert (at.line, at.column) == (15, 38)


@pytest.mark.parametrize(("key", "refused"), [("templates", False), ("defalts", True)])
def test_only_a_key_that_is_meant_to_be_defaults_refuses_servers_that_rely_on_it(
    key: str, refused: bool
) -> None:
    text = f"version: 1\n{key}: {{}}\nservers: {{a: {{transport: stdio, command: x}}}}\n"
    parsed = parse(text)
    assert (parsed.rejected == {"a"}) is refused
    assert "UNKNOWN_KEY" in {issue.reason for issue in parsed.issues}
