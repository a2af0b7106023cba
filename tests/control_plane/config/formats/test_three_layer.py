"""Three-layer YAML: parameters, permissions, classes."""

from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load
from tests.specs import part

from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.model import VariantKey
from leaseway.spec.policy import Permissions
from leaseway.spec.references import Value

LAYERS = Path(__file__).resolve().parents[3] / "corpus" / "layers"
HEAD = 'version: "1.0"\nschema: mcp-config-v5\n'


def test_parameters_become_variables_and_a_list_of_tools_a_whitelist() -> None:
    parsed = load(LAYERS / "system.yaml")
    files = parsed.servers[VariantKey("files")]
    assert (files.transport, part(files).command) == ("stdio", "npx")
    assert part(files).env == {
        "ROOT": Value("literal", "reports"),
        "PAGE_SIZE": Value("literal", "20"),
    }
    assert files.tools == NameFilter(whitelist=("read_file", "list_files"))


def test_a_class_is_a_python_server_that_is_handed_its_parameters() -> None:
    parsed = load(LAYERS / "system.yaml")
    assert parsed.rejected == set()
    knowledge = parsed.servers[VariantKey("knowledge")]
    assert (knowledge.transport, part(knowledge).module) == ("python", "acme.knowledge")
    assert part(knowledge).class_name == "KnowledgeServer"
    assert part(knowledge).config == '{"url":"${KNOWLEDGE_URL:-http://localhost:6333}"}'
    assert part(knowledge).env == {}


def test_an_override_reaches_the_config_of_a_class_and_the_environment_of_others(
    tmp_path: Path,
) -> None:
    domain = tmp_path / "acme.yaml"
    domain.write_text(
        f"{HEAD}servers:\n  knowledge: {{override: {{collection: acme, url: 'http://b'}}}}\n"
        "  files: {override: {root: acme}}\n"
    )
    words = [f"system={LAYERS / 'system.yaml'}", f"domain=acme:{domain}"]
    parsed = load(*words)
    knowledge = parsed.servers[VariantKey("knowledge", "acme")]
    assert part(knowledge).config == '{"collection":"acme","url":"http://b"}'
    files = parsed.servers[VariantKey("files", "acme")]
    assert part(files).env["ROOT"] == Value("literal", "acme")


def test_permissions_are_kept_as_they_stand() -> None:
    parsed = load(LAYERS / "system.yaml")
    kept = [parsed.servers[VariantKey(name)].policy.permissions for name in ("knowledge", "files")]
    assert kept == [Permissions(write=False), Permissions()]


def test_a_domain_overrides_parameters_enables_and_declares_nothing() -> None:
    words = [f"system={LAYERS / 'system.yaml'}", f"domain={LAYERS / 'tenants'}"]
    parsed = load(*words)
    acme, globex = VariantKey("files", "acme"), VariantKey("files", "globex")
    assert part(parsed.servers[acme]).env["ROOT"] == Value("literal", "acme")
    assert part(parsed.servers[acme]).env["PAGE_SIZE"] == Value("literal", "20")
    assert parsed.servers[globex].hidden
    assert VariantKey("spare", "acme") in parsed.servers
    assert VariantKey("spare") not in parsed.servers
    (undeclared,) = [issue for issue in parsed.issues if issue.reason == "UNDECLARED_SERVER"]
    assert (undeclared.tenant, undeclared.line) == ("acme", 8)
    assert all("sellers" not in key.server_id for key in parsed.servers)


def test_a_domain_alone_lies_over_the_file_that_it_inherits() -> None:
    sources = parse_sources([f"domain=globex:{LAYERS / 'tenants' / 'globex.yaml'}"])
    assert [source.kind for source in sources] == ["system", "domain"]
    assert sources[0].path.resolve() == LAYERS / "system.yaml"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_env_says_itself_wins_over_override_and_that_over_config(is_reversed: bool) -> None:
    keys = ["config: {a: 1, b: 1, c: 1}", "override: {b: 2, c: 2}", "env: {C: '3'}"]
    entry = f"{{command: x, {', '.join(keys[::-1] if is_reversed else keys)}}}"
    spec = parse_text(f"{HEAD}servers: {{s: {entry}}}\n", "s.yaml").servers[VariantKey("s")]
    assert {name: value.text for name, value in part(spec).env.items()} == {
        "A": "1",
        "B": "2",
        "C": "3",
    }


def test_a_parameter_that_no_variable_can_hold_is_an_error() -> None:
    parsed = parse_text(f"{HEAD}servers: {{s: {{command: x, config: {{a: [1]}}}}}}\n", "s.yaml")
    assert parsed.rejected == {"s"}
    assert [issue.key for issue in parsed.issues] == ["servers.s.config.a"]


def test_another_version_breaks_the_file() -> None:
    parsed = parse_text('version: "2.0"\nschema: mcp-config-v5\nservers: {}\n', "s.yaml")
    assert parsed.broken
    assert [issue.reason for issue in parsed.issues] == ["UNSUPPORTED_VERSION"]


def test_an_unknown_schema_names_the_known_one() -> None:
    parsed = parse_text('version: "1.0"\nschema: mcp-config-v4\nservers: {}\n', "s.yaml")
    assert ["mcp-config-v5" in issue.message for issue in parsed.issues] == [True]
