"""`${lease}`, `${session}`, `${tenant}` and `cwd: private` in a configuration."""

from pathlib import Path

import pytest
from tests.control_plane.config.parsing import entry, load, only_issue, parse, spec_of

from leaseway.spec.model import VariantKey

API = "transport: http_api, http_tools: [{name: get, method: GET, endpoint: /a}]"


@pytest.mark.parametrize(
    "body",
    [
        "args: ['--dir=/x/${lease}']",
        "env: {DIR: '/x/${session}'}",
        "cwd: '/srv/${tenant}/${session}'",
        "cwd: private",
        "cwd: private, truely-stateless: true",
        "args: ['${lease}'], warm: 2, start: eager",
        "args: ['${session}'], warm: 0, start: lazy",
    ],
)
def test_where_there_is_a_lease_its_names_may_be_used(body: str) -> None:
    assert spec_of(parse(entry(body)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("args: ['${session}'], truely-stateless: true", "belongs to no lease"),
        ("env: {A: '${lease}'}, truely-stateless: true", "belongs to no lease"),
        ("args: ['${session}'], warm: 1", "'warm' asks for warm spares"),
        ("cwd: '/a/${tenant}', start: eager", "'start' asks for warm spares"),
        ("cwd: '${session}'", "must be an absolute path"),
        ("cwd: here", "must be an absolute path"),
    ],
)
def test_where_there_is_none_they_are_errors(body: str, words: str) -> None:
    issue = only_issue(parse(entry(body)))
    assert (issue.severity, issue.server_id) == ("error", "s")
    assert words in issue.message


@pytest.mark.parametrize(
    "server",
    [
        "transport: stdio, command: 'x-${session}'",
        "transport: streamable_http, url: 'http://a/${tenant}'",
        "transport: streamable_http, url: 'http://a', headers: {A: '${lease}'}",
        "transport: streamable_http, url: 'http://a', proxy: 'http://${tenant}:1'",
        f"{API}, base_url: 'http://${{lease}}'",
        f"{API}, base_url: 'http://a', security: {{k: {{type: bearer, value: '${{session}}'}}}}",
    ],
)
def test_in_other_keys_they_are_errors(server: str) -> None:
    issue = only_issue(parse(entry("", server)))
    assert "which only 'args', 'cwd' and 'env' may" in issue.message


def test_an_image_has_no_private_folder() -> None:
    parsed = parse(entry("cwd: private", "transport: stdio, image: 'a/b:1', "))
    assert [issue.severity for issue in parsed.issues] == ["error"]


def test_they_are_no_variables_that_must_be_set_or_granted(tmp_path: Path) -> None:
    system, domain = tmp_path / "system.yaml", tmp_path / "acme.yaml"
    system.write_text(entry("env: {A: '${session}'}"))
    domain.write_text("version: 1\nservers: {s: {env: {A: 'x/${tenant}'}}}\n")
    parsed = load(f"system={system}", f"domain=acme:{domain}")
    assert parsed.issues == ()
    assert parsed.servers[VariantKey("s", "acme")].needs_holder
