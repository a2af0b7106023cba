"""The example configurations are valid, free of clashes, and say what they promise."""

import json
import re
from pathlib import Path

import pytest
from tests.specs import part

from leaseway.control_plane.config.check import check_sources
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.core.catalog.exposure import expose, resolve_clashes
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.references import Value

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "examples"
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def parse(name: str) -> ParsedConfig:
    path = FOLDER / name
    return parse_text(path.read_text(encoding="utf-8"), str(path))


def server(name: str, server_id: str) -> ServerSpec:
    return parse(name).servers[VariantKey(server_id)]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_parses_without_any_issue(name: str) -> None:
    parsed = parse(name)
    assert parsed.issues == ()
    assert parsed.servers


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_that_has_everything_finds_nothing_to_say(name: str) -> None:
    environ = {"MCP_AUTH_HEADER": "set", "SHOP_AUTH_HEADER": "set"}
    assert (
        check_sources(
            parse_sources([str(FOLDER / name)]), environ=environ, which=lambda command: command
        )
        == []
    )


def test_the_readme_has_a_paragraph_for_each_example() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\*\*\[(.+?)\]\(\1\)\*\*", readme) == [
        "quickstart-stdio.yaml",
        "quickstart-time.yaml",
        "quickstart-http.yaml",
        "from-mcpservers.yaml",
        "kit.yaml",
        "python-server.yaml",
        "rest-tools.yaml",
    ]
    assert len(NAMES) == 7


def test_the_examples_together_have_no_clash() -> None:
    tools = ["current_time", "read_file", "list_files", "get_current_time", "search_files"]
    exposed = {
        spec.key.server_id: expose(spec, tools).exposed
        for name in NAMES
        for spec in parse(name).servers.values()
    }
    assert set(exposed) == {"kit", "time", "remote", "filesystem", "notes", "hello", "shop"}
    assert resolve_clashes(exposed).problems == ()


def test_the_kit_is_started_as_a_module_on_the_current_folder() -> None:
    spec = server("quickstart-stdio.yaml", "kit")
    assert (part(spec).command, part(spec).args) == (
        "python",
        ("-m", "leaseway.data_plane.kit", "."),
    )
    assert expose(spec, ["current_time"]).exposed == (("current_time", "kit_current_time"),)


def test_the_http_example_takes_its_header_from_the_environment() -> None:
    spec = server("quickstart-http.yaml", "remote")
    assert part(spec).headers == {"Authorization": Value("env", "MCP_AUTH_HEADER")}
    assert not spec.truely_stateless


def test_the_json_beside_the_taken_over_entry_says_the_same() -> None:
    text = (FOLDER / "from-mcpservers.yaml").read_text(encoding="utf-8")
    comment = "\n".join(re.findall(r"(?m)^#   (.*)$", text))
    entry = json.loads(comment)["mcpServers"]["filesystem"]
    spec = server("from-mcpservers.yaml", "filesystem")
    assert part(spec).command == entry["command"]
    assert list(part(spec).args) == entry["args"]
    assert {name: value.text for name, value in part(spec).env.items()} == entry["env"]
    assert expose(spec, ["read_file", "write_file"]).exposed == (("read_file", "fs_read_file"),)


@pytest.mark.parametrize("page", ["servers.md", "configuration.md"])
def test_every_configuration_in_the_pages_is_valid(page: str) -> None:
    text = (FOLDER.parents[1] / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```yaml\n(version: 1\n.+?)^```", text)
    assert blocks
    for block in blocks:
        parsed = parse_text(block, page)
        assert parsed.issues == ()
        assert parsed.servers
