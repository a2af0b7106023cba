"""The key `proxy` of servers with an address."""

from __future__ import annotations

import pytest
from tests.control_plane.config.parsing import only_issue, parse_server, spec_of
from tests.specs import part

from leaseway.spec.codec import decode_spec, encode_spec
from leaseway.spec.model import ServerSpec
from leaseway.spec.references import Value

LITERAL, SECRET = "literal", "secret"


def http(body: str, transport: str = "streamable_http") -> ServerSpec:
    url = "base_url" if transport == "http_api" else "url"
    tools = (
        ", http_tools: [{name: t, method: GET, endpoint: /t}]" if transport == "http_api" else ""
    )
    scheme = "ws" if transport == "websocket" else "http"
    text = f"transport: {transport}, {url}: '{scheme}://a/'{tools}, {body}"
    return spec_of(parse_server(text))


@pytest.mark.parametrize("transport", ["streamable_http", "sse", "websocket", "http_api"])
@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("proxy: none", {"url": (LITERAL, "none")}),
        ("proxy: 'http://proxy:3128'", {"url": (LITERAL, "http://proxy:3128")}),
        ("proxy: '${PROXY:-http://p:1}'", {"url": (LITERAL, "${PROXY:-http://p:1}")}),
        ("proxy: {secret: PROXY}", {"url": (SECRET, "PROXY")}),
        (
            "proxy: {url: 'https://p', username: me, password: {secret: WORD}}",
            {
                "url": (LITERAL, "https://p"),
                "username": (LITERAL, "me"),
                "password": (SECRET, "WORD"),
            },
        ),
    ],
)
def test_a_proxy_is_an_address_a_reference_or_its_parts(
    transport: str, body: str, parts: dict[str, tuple[str, str]]
) -> None:
    spec = http(body, transport)
    assert {name: (proxy.kind, proxy.text) for name, proxy in part(spec).proxy.items()} == parts
    assert part(decode_spec(spec.key, encode_spec(spec))).proxy == part(spec).proxy
    assert {f"proxy.{name}" for name in parts} <= spec.values.keys()


def test_a_proxy_needs_a_new_connection_and_none_keeps_the_hash_of_before() -> None:
    plain, direct, other = http("enabled: true"), http("proxy: none"), http("proxy: 'http://p'")
    assert part(plain).proxy == {}
    assert len({plain.launch_hash, direct.launch_hash, other.launch_hash}) == 3
    assert part(direct).proxy == {"url": Value("literal", "none")}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("proxy: 'socks5://p:1080'", "must be 'none' or the address of an HTTP proxy"),
        ("proxy: proxy.corp", "must be 'none' or the address of an HTTP proxy"),
        ("proxy: 'http://me:pw@p:3128'", "contains credentials, which logs would show"),
        ("proxy: 'http://p:3128/path'", "only the scheme, the host and the port"),
        ("proxy: {username: me}", "url"),
        ("proxy: {url: 'http://p', user: me}", "'user' is not a key of 'proxy'"),
        ("proxy: {url: 'http://p', password: hunter2-hunter2}", "what looks like a password"),
    ],
)
def test_what_cannot_be_used_is_named(body: str, words: str) -> None:
    issue = only_issue(parse_server(f"transport: sse, url: 'http://a/', {body}"))
    assert words in issue.message
    assert "hunter2" not in issue.message
    assert "pw@" not in issue.message


def test_a_process_has_no_proxy_of_its_own() -> None:
    issue = only_issue(parse_server("transport: stdio, command: x, proxy: none"))
    assert issue.reason == "KEY_NOT_FOR_TRANSPORT"
