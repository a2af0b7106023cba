"""`http_tools` and `openapi`: what is read, and each mistake with its place and a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.control_plane.config.parsing import load, only_issue, parse_server, spec_of
from tests.specs import part

from leaseway.control_plane.config.effective import effective_values
from leaseway.control_plane.config.formats.detection import parse_text
from leaseway.control_plane.config.layers.sources import parse_sources
from leaseway.control_plane.config.schema.issues import ConfigIssue, ParsedConfig
from leaseway.spec.kinds.http_api import HttpApiPart
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.spec.model import VariantKey, transformed
from leaseway.wire.names import is_valid_name

HEAD = """version: 1
servers:
  s:
    transport: http_api
    base_url: http://127.0.0.1:1/v1
    headers: { X-Key: abc }
    http_tools:
"""


def parse(tools: str) -> ParsedConfig:
    return parse_text(HEAD + tools, "mcp.yaml")


def only_error(tools: str) -> ConfigIssue:
    issue = only_issue(parse(tools))
    assert issue.severity == "error"
    return issue


def tool(line: str) -> HttpTool:
    (made,) = spec_of(parse(f"      - {line}\n")).part_as(HttpApiPart).http_tools
    return made


def test_a_tool_has_what_is_written() -> None:
    made = tool(
        "{ name: add, title: Add, description: 'Adds ${x}', method: POST, endpoint: '/a/{id}?v=1',"
        " timeout: 2s, body: form, response_template: '{{ .x }}', annotations:"
        " { destructiveHint: true }, parameters: [ { name: id, type: [string, integer] },"
        " { name: n, as: 'n[]', style: comma, type: array, items: { type: integer },"
        " default: [1] },"
        " { name: q, position: query, enum: [a, b], required: true } ] }"
    )
    assert (made.title, made.description, made.body) == ("Add", "Adds ${x}", "form")
    assert (made.timeout, made.annotations) == (2.0, (("destructiveHint", True),))
    by_name = {parameter.name: parameter for parameter in made.parameters}
    assert by_name["id"].position == "path"  # as its placeholder says
    assert (by_name["n"].position, by_name["n"].sent_as) == ("body", "n[]")
    assert by_name["n"].parsed == {"type": "array", "items": {"type": "integer"}, "default": [1]}
    assert (by_name["q"].required, by_name["q"].parsed) == (True, {"enum": ["a", "b"]})


def test_parameters_without_a_place_go_where_the_method_takes_them() -> None:
    for method, position in (("GET", "query"), ("DELETE", "query"), ("PATCH", "body")):
        made = tool(f"{{ name: t, method: {method}, endpoint: /x, parameters: [ {{ name: p }} ] }}")
        assert made.parameters[0].position == position


def test_members_of_an_object_say_themselves_that_they_are_required() -> None:
    made = tool(
        "{ name: t, method: POST, endpoint: /x, parameters: [ { name: address, type: object,"
        " properties: { city: { type: string, required: true }, geo: { type: object, properties:"
        " { lat: { type: number } }, required: [lat] } } } ] }"
    )
    assert made.parameters[0].parsed == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "geo": {
                "type": "object",
                "properties": {"lat": {"type": "number"}},
                "required": ["lat"],
            },
        },
        "required": ["city"],
    }


@pytest.mark.parametrize(
    ("line", "key", "reason", "words"),
    [
        ("name: t, method: GET, endpoint: '/u/{id}'", "endpoint", "BAD_HTTP_TOOL",
         "has the placeholder {id} in its endpoint, and no parameter 'id' with position: path"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: id, position: path}]",
         "parameters[0]", "BAD_HTTP_TOOL", "its endpoint no placeholder {id}"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: id, position: form}]",
         "parameters[0].position", "BAD_VALUE", "can't be 'form': use one of body, cookie, header"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a b, position: cookie}]",
         "parameters[0]", "BAD_HTTP_TOOL", "which is not a valid name of a cookie"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a b, position: header}]",
         "parameters[0]", "BAD_HTTP_TOOL", "which is not a valid header name"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: Host, position: header}]",
         "parameters[0]", "BAD_HTTP_TOOL", "a header that Leaseway sets itself"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: x-key, position: header}]",
         "", "BAD_HTTP_TOOL", "the header parameter 'x-key', which 'headers' sets already"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a}, {name: a}]",
         "parameters[1]", "BAD_HTTP_TOOL", "has two parameters called 'a'"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, as: x}, {name: b, as: x}]",
         "parameters", "BAD_HTTP_TOOL", "sends 'x' twice as query"),
        ("name: t, method: HEAD, endpoint: /u, parameters: [{name: a, position: body}]",
         "parameters[0]", "BAD_HTTP_TOOL", "but HEAD has no body"),
        ("name: t, method: GET, endpoint: u", "endpoint", "BAD_HTTP_TOOL",
         "does not begin with one '/'"),
        ("name: t, method: GET, endpoint: //u", "endpoint", "BAD_HTTP_TOOL",
         "does not begin with one '/'"),
        ("name: t, method: GET, endpoint: /a/../b", "endpoint", "BAD_HTTP_TOOL", "leads elsewhere"),
        ("name: t, method: GET, endpoint: /a/%2e%2E/b", "endpoint", "BAD_HTTP_TOOL", "elsewhere"),
        ("name: t, method: GET, endpoint: '/a#b'", "endpoint", "BAD_HTTP_TOOL", "has an endpoint"),
        ("name: t, method: GET, endpoint: '/a?x={y}'", "endpoint", "BAD_HTTP_TOOL",
         "a placeholder in the endpoint's query"),
        ("name: t, method: GET, endpoint: '/a{'", "endpoint", "BAD_HTTP_TOOL", "not closed"),
        ("name: t, method: FETCH, endpoint: /u", "method", "BAD_VALUE", "can't be 'FETCH'"),
        ("name: t, method: POST, endpoint: /u, retries: 1", "retries", "BAD_HTTP_TOOL",
         "POST may not be sent twice"),
        ("name: t, method: GET, endpoint: /u, response_template: '{{ .a | nope }}'",
         "response_template", "BAD_TEMPLATE", "line 1 of it: the function 'nope' is not defined"),
        ("name: a b, method: GET, endpoint: /u", "name", "BAD_VALUE", "is 'a b'; write 1 to 64"),
        ("name: t, method: GET, endpiont: /u, endpoint: /u", "endpiont", "UNKNOWN_KEY",
         "did you mean 'endpoint'?"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, typ: string}]",
         "parameters[0].typ", "UNKNOWN_KEY", "is not a key of a parameter: did you mean 'type'?"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, type: text}]",
         "parameters[0].type", "BAD_VALUE", "can't be 'text'"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, enum: x}]",
         "parameters[0].enum", "WRONG_TYPE", "must be a list"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, pattern: '['}]",
         "parameters[0]", "BAD_HTTP_TOOL", "no valid JSON Schema, at 'pattern'"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, items: {multipleOf: 0}}]",
         "parameters[0]", "BAD_HTTP_TOOL", "no valid JSON Schema, at 'items.multipleOf'"),
        ("name: t, method: GET, endpoint: /u, parameters: [{name: a, type: integer, default: x}]",
         "parameters[0]", "BAD_HTTP_TOOL", "has a 'default' that does not fit: the value"),
        ("name: t, method: GET", "endpoint", "MISSING_KEY", "needs 'endpoint'."),
        (("name: t, method: POST, endpoint: /u, body: binary,"
         " parameters: [{name: a}, {name: b}]"), "body", "BAD_HTTP_TOOL", "needs exactly one body"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_tool_has_its_place_and_a_sentence(
    line: str, key: str, reason: str, words: str
) -> None:
    issue = only_error(f"      - {{ {line} }}\n")
    place = "servers.s.http_tools" + ("" if "'headers' sets" in words else "[0]")
    assert issue.key == (f"{place}.{key}" if key else place)
    assert (issue.reason, issue.server_id) == (reason, "s")
    assert words in issue.message
    assert issue.line >= 7


def test_a_default_of_null_is_none() -> None:
    parameter = "{name: a, type: integer, default: null}"
    assert tool(f"{{name: t, method: GET, endpoint: /u, parameters: [{parameter}]}}").parameters


def test_two_tools_of_one_name_are_refused() -> None:
    line = "      - { name: t, method: GET, endpoint: /u }\n"
    issue = only_error(line + line)
    assert (issue.reason, issue.line) == ("DUPLICATE_KEY", 9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base_url: http://x", "needs 'http_tools' or 'openapi'"),
        ("http_tools: [ { name: t, method: GET, endpoint: / } ]", "needs 'base_url'"),
        ("url: http://x, http_tools: []", "'url' is not for the transport 'http_api'"),
        ("base_url: ftp://x, http_tools: [ { name: t, method: GET, endpoint: / } ]", "base_url"),
        ("openapi: { include: {} }", "openapi' needs 'source'"),
        ("openapi: { source: x.json, inclde: {} }", "did you mean 'include'?"),
        ("openapi: none.json", "none.json can't be read: no such file"),
    ],
)
def test_a_server_lacks_what_it_needs(text: str, words: str) -> None:
    parsed = parse_server(f"transport: http_api, {text}")
    assert parsed.rejected == {"s"}
    assert any(words in issue.message for issue in parsed.issues), parsed.issues


def _with_document(folder: Path, entry: str) -> Path:
    document = {
        "openapi": "3.0.3",
        "servers": [{"url": "https://{host}/v1", "variables": {"host": {"default": "a.example"}}}],
        "paths": {
            "/x": {"get": {"operationId": "x", "parameters": [{"name": "X-Key", "in": "header"}]}},
            "/y": {"get": {"operationId": "y"}, "trace": {}},
        },
        "components": {"securitySchemes": {"k": {"type": "http", "scheme": "bearer"}}},
    }
    (folder / "api.json").write_text(json.dumps(document))
    path = folder / "mcp.yaml"
    path.write_text(f"version: 1\nservers:\n  s: {{ transport: http_api, {entry} }}\n")
    return path


def test_a_document_gives_tools_and_an_address_and_what_is_written_out_wins(tmp_path: Path) -> None:
    path = _with_document(
        tmp_path,
        "openapi: api.json, headers: { X-Key: a, Authorization: { env: T } }, http_tools:"
        " [ { name: y, method: POST, endpoint: /z } ]",
    )
    parsed = load(path)
    assert [issue.reason for issue in parsed.issues] == ["OPERATION_SKIPPED"]
    assert "TRACE /y does not become a tool" in parsed.issues[0].message
    spec = parsed.servers[VariantKey("s")]
    assert part(spec).url == "https://a.example/v1"
    assert [(http_tool.name, http_tool.method) for http_tool in part(spec).http_tools] == [
        ("x", "GET"),
        ("y", "POST"),
    ]
    assert not part(spec).http_tools[0].parameters  # the server's own headers set it
    assert parsed.followed.keys() == {tmp_path / "api.json"}
    values = {
        effective_value.key: effective_value.value
        for effective_value in effective_values(parsed, parse_sources([str(path)]))
    }
    assert values["openapi"] == ["x: GET /x", "y: POST /z"]


def test_credentials_that_a_document_wants_are_asked_for(tmp_path: Path) -> None:
    entry = "openapi: { source: api.json, include: { operations: [x] } }"
    parsed = load(_with_document(tmp_path, entry))
    (issue,) = parsed.issues
    assert (issue.reason, issue.severity) == ("CREDENTIAL_MISSING", "warning")
    assert "'k' (the header 'Authorization: Bearer …')" in issue.message
    auth = "auth: { client_credentials: { client_id: a, client_secret: { secret: b } } }"
    assert not load(_with_document(tmp_path, f"{entry}, {auth}")).issues


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("z*", "no operation fits the patterns"), ("trace/*", "no chosen operation can become one")],
)
def test_a_choice_without_tools_says_why(tmp_path: Path, pattern: str, why: str) -> None:
    entry = f"openapi: {{ source: api.json, include: {{ operations: ['{pattern}'] }} }}"
    parsed = load(_with_document(tmp_path, entry))
    assert f"'servers.s.openapi' yields no tool: {why}." in [each.message for each in parsed.issues]


UPLOADS = "https://uploads.example.com"


def _with_other_servers(folder: Path, entry: str) -> Path:
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://api.example.com"}],
        "paths": {
            f"/{name}": {"get": {"operationId": name, "servers": [{"url": url}]}}
            for name, url in (("a", UPLOADS), ("b", f"{UPLOADS}/v2"), ("c", "/v3"))
        },
    }
    (folder / "api.json").write_text(json.dumps(document))
    path = folder / "mcp.yaml"
    path.write_text(f"version: 1\nservers:\n  s: {{ transport: http_api, {entry} }}\n")
    return path


def test_another_server_gets_credentials_only_if_the_operator_says_so(tmp_path: Path) -> None:
    headers = "headers: { X-Key: { secret: KEY } }"
    parsed = load(_with_other_servers(tmp_path, f"openapi: api.json, {headers}"))
    (issue,) = parsed.issues
    assert (issue.reason, issue.severity) == ("CREDENTIAL_MISSING", "warning")
    assert "'a' and 1 more of the document has its own server, https://uploads" in issue.message
    tools = part(parsed.servers[VariantKey("s")]).http_tools
    assert [(tool.base_url, tool.send_credentials) for tool in tools] == [
        (UPLOADS, False),
        (f"{UPLOADS}/v2", False),
        ("/v3", False),
    ]
    trusting = f"openapi: {{ source: api.json, send_credentials_to: ['{UPLOADS}:443'] }}"
    parsed = load(_with_other_servers(tmp_path, f"{trusting}, {headers}"))
    assert not parsed.issues
    tools = part(parsed.servers[VariantKey("s")]).http_tools
    assert [tool.send_credentials for tool in tools] == [True, True, False]
    parsed = load(_with_other_servers(tmp_path, "openapi: api.json"))
    assert not parsed.issues, "there is nothing that could be sent"
    parsed = load(_with_other_servers(tmp_path, "openapi: api.json, base_url: http://staging"))
    assert [
        "'base_url' does not apply to it" in each_issue.message for each_issue in parsed.issues
    ] == [True]


def test_an_origin_is_a_scheme_and_a_host(tmp_path: Path) -> None:
    for text in ("example.com", f"{UPLOADS}/v2", "ftp://example.com", "https://u:p@x.test"):
        entry = f"openapi: {{ source: api.json, send_credentials_to: ['{text}'] }}"
        (issue,) = load(_with_other_servers(tmp_path, entry)).issues
        assert "write the scheme and host of a server" in issue.message


def test_names_of_operations_leave_room_for_what_the_transform_adds(tmp_path: Path) -> None:
    long = ["x" * 60, f"{'x' * 70}a", f"{'x' * 70}b", "short"]
    paths = {f"/{number}": {"get": {"operationId": name}} for number, name in enumerate(long)}
    document = {"openapi": "3.1.0", "servers": [{"url": "https://a.example"}], "paths": paths}
    (tmp_path / "api.json").write_text(json.dumps(document))
    path = tmp_path / "mcp.yaml"
    path.write_text(
        "version: 1\ndefaults: { transform: [ { prefix: '{server}_' }, { suffix: _x } ] }\n"
        "servers:\n  github: { transport: http_api, openapi: api.json }\n"
    )
    first, again = (load(path).servers[VariantKey("github")] for _ in range(2))
    names = [tool.name for tool in part(first).http_tools]
    assert all(is_valid_name(transformed(name, first.transforms)) for name in names)
    assert [len(name) for name in names] == [55, 55, 55, 5]
    assert len(set(names)) == len(names)
    assert names == [tool.name for tool in part(again).http_tools]
    assert names[3] == "short"


@pytest.mark.parametrize(
    "url", ["", "ftp://x", "x.test", "//x.test", "https://u@x.test", "https://x?q=1", "/a/../b"]
)
def test_a_tools_own_server_is_an_address_or_a_path(url: str) -> None:
    text = f"      - {{ name: t, method: GET, endpoint: /u, base_url: '{url}' }}\n"
    assert any("base_url" in issue.message for issue in parse(text).issues)
    good = "      - { name: t, method: GET, endpoint: /u, base_url: 'https://x.test/v2' }\n"
    assert not parse(good).issues


def test_a_tools_change_is_a_new_launch() -> None:
    first = spec_of(parse("      - { name: t, method: GET, endpoint: /u }\n"))
    other = spec_of(parse("      - { name: t, method: GET, endpoint: /v }\n"))
    assert first.launch_hash != other.launch_hash


def test_a_domain_sets_no_tools(tmp_path: Path) -> None:
    system, domain = tmp_path / "system.yaml", tmp_path / "acme.yaml"
    system.write_text(HEAD + "      - { name: t, method: GET, endpoint: /u }\n")
    domain.write_text("version: 1\nservers:\n  s: { base_url: http://evil }\n")
    parsed = load(f"system={system}", f"domain=acme:{domain}")
    assert any(issue.reason == "KEY_NOT_FOR_LAYER" for issue in parsed.issues)
