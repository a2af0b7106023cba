"""A tenant's layer reads the references that the system layer grants to it, and no other."""

import pytest
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_config
from leaseway.control_plane.config.layers.document import Layer
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value

ACME = VariantKey("on", "acme")


def parsed(value: str, tenants: str = "", key: str = "env: { A: VALUE }") -> ParsedConfig:
    system = (
        "version: 1\n"
        f"{tenants}\n"
        "servers:\n"
        "  on:\n"
        "    transport: stdio\n"
        "    command: on\n"
        "    domain_may: [args]\n"
        "    env: { A: { env: COMMON_TOKEN }, B: b }\n"
    )
    entry = key.replace("VALUE", value)
    domain = f"version: 1\nservers:\n  on: {{ {entry} }}\n"
    layers = [Layer("system", "s.yaml", system), Layer("domain", "acme.yaml", domain, "acme")]
    return parse_config(layers)


def granting(*patterns: str, tenant: str = "acme") -> str:
    return f"tenants: {{ '{tenant}': {{ secrets: [{', '.join(map(repr, patterns))}] }} }}"


@pytest.mark.parametrize(
    "value",
    [
        "{ secret: GLOBEX_API_TOKEN }",
        "{ env: GLOBEX_API_TOKEN }",
        "{ file: /run/secrets/globex }",
        "'x-${GLOBEX_API_TOKEN}'",
        "'${GLOBEX_API_TOKEN:-none}'",
    ],
)
@pytest.mark.parametrize("tenants", ["", granting("acme_*"), granting("*", tenant="globex")])
def test_a_reference_that_is_not_granted_is_refused_by_name(value: str, tenants: str) -> None:
    found = parsed(value, tenants)
    assert ACME in found.refused
    (issue,) = found.issues
    assert (issue.file, issue.line, issue.severity) == ("acme.yaml", 3, "error")
    assert "which the system layer does not grant to it" in issue.message
    assert "secrets: [...]" in issue.message


@pytest.mark.parametrize(
    ("value", "pattern", "expected"),
    [
        ("{ secret: acme_token }", "acme_*", Value("secret", "acme_token")),
        ("{ env: acme_token }", "acme_*", Value("env", "acme_token")),
        ("{ file: /run/acme/ca }", "/run/acme/*", Value("file", "/run/acme/ca")),
        ("'${acme_host}'", "acme_*", Value("literal", "${acme_host}")),
    ],
)
def test_a_granted_reference_is_the_tenants_own(value: str, pattern: str, expected: Value) -> None:
    found = parsed(value, granting(pattern))
    assert found.issues == ()
    assert part(found.servers[ACME]).env["A"] == expected


def test_a_granted_file_carries_the_patterns_that_the_worker_checks_its_target_with() -> None:
    found = parsed("{ file: /run/acme/ca }", granting("acme_*", "/run/acme/*"))
    assert found.servers[ACME].confined_files == {"/run/acme/ca": ("/run/acme/*",)}
    assert found.servers[VariantKey("on")].confined_files == {}


def test_what_the_server_reads_anyway_needs_no_grant() -> None:
    found = parsed("{ env: COMMON_TOKEN }", key="env: { B: VALUE }")
    assert found.issues == ()
    assert part(found.servers[ACME]).env["B"] == Value("env", "COMMON_TOKEN")


def test_a_grant_of_a_folder_does_not_lead_out_of_it() -> None:
    found = parsed("{ file: /run/acme/../globex/ca }", granting("/run/acme/*"))
    assert ACME in found.refused


def test_keys_that_a_domain_may_set_read_nothing_else_either() -> None:
    found = parsed("'${GLOBEX_API_TOKEN}'", key="args: [VALUE]")
    assert ACME in found.refused
    assert parsed("'${acme_x}'", granting("acme_*"), "args: [VALUE]").issues == ()


def test_a_grant_for_all_others_serves_a_tenant_without_one_of_its_own() -> None:
    assert parsed("{ secret: shared_key }", granting("shared_*", tenant="*")).issues == ()
