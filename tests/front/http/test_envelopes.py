"""Messages and headers over HTTP that say nothing, two things, or not what the body says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, INFO, MODERN, VERSION, front

from leaseway.sdk.testing import FakeLeaseway

JSON = {"Content-Type": "application/json"}
LEGACY = {**ACCEPT, **JSON}
VERSION_HEADER = "MCP-Protocol-Version"
LATEST = {**LEGACY, VERSION_HEADER: "2026-07-28"}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
DISCOVER = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": MODERN}}


class Poster:
    """Posts to a front on a loop of its own, so that tests of properties can.

    Attributes:
        url: The front.
    """

    def __init__(self, runner: asyncio.Runner, url: str, http: aiohttp.ClientSession) -> None:
        self._runner = runner
        self.url = url
        self._http = http

    def post(self, body: Any, headers: Any, *skip: str) -> tuple[int, Any]:
        """Send a body; return the status and what the response says, if anything.

        Args:
            body: It, as bytes or as what JSON says.
            headers: The headers that it has.
            skip: Headers that it does not have.
        """
        return self._runner.run(self._post(body, headers, skip))

    async def _post(self, body: Any, headers: Any, skip: Sequence[str]) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            asyncio.timeout(BOUND),
            self._http.post(self.url, data=data, headers=headers, skip_auto_headers=skip) as answer,
        ):
            said = await answer.read()
            return answer.status, json.loads(said) if said else None


@pytest.fixture(scope="module")
def poster() -> Iterator[Poster]:
    with FakeLeaseway() as fake, asyncio.Runner() as runner:
        serving = front(fake)
        url = runner.run(serving.__aenter__())
        http = runner.run(_session())
        yield Poster(runner, url, http)
        runner.run(http.close())
        runner.run(serving.__aexit__(None, None, None))


async def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())


BODIES = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=4).map(lambda part: b'{"jsonrpc":"2.0","id":"%b","method":"ping"}' % part),
    st.binary(max_size=4).map(lambda part: b'{"jsonrpc":"2.0","id":1,"method":"ping"%b}' % part),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.dictionaries(
                st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "_meta"]),
                parts | st.sampled_from(["2.0", "ping", "notifications/cancelled", "tools/call"]),
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BODIES, st.sampled_from([LEGACY, LATEST]))
def test_any_body_gets_a_response_in_json_or_none_that_is_needed(
    poster: Poster, body: bytes, headers: dict[str, str]
) -> None:
    status, answer = poster.post(body, headers)
    assert status in {200, 202, 400, 404}
    if status == 202:
        assert answer is None
        return
    for said in answer if isinstance(answer, list) else [answer]:
        assert said["jsonrpc"] == "2.0"
        assert ("result" in said) != ("error" in said)
        assert said.get("id") is None or type(said["id"]) in (int, str)


ONCE = (
    "Mcp-Method",
    "Mcp-Name",
    "Mcp-Session-Id",
    "Mcp-Param-Region",
    "Last-Event-ID",
    "Leaseway-Session",
    "Leaseway-Media",
    "Authorization",
    "Origin",
)


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("values", [("a", "b"), ("a", "a")])
def test_a_header_that_may_occur_once_does(
    poster: Poster, name: str, values: tuple[str, str]
) -> None:
    headers = [*LEGACY.items(), *((name, value) for value in values)]
    status, answer = poster.post(PING, headers)
    assert status == 400
    assert name.lower() in answer["error"]["message"].lower()


@pytest.mark.parametrize(("other", "status"), [("2025-06-18", 200), ("2025-03-26", 400)])
def test_a_version_that_a_client_says_twice_counts_once(
    poster: Poster, other: str, status: int
) -> None:
    versions = [(VERSION_HEADER, "2025-06-18"), (VERSION_HEADER, other)]
    assert poster.post(PING, [*LEGACY.items(), *versions])[0] == status


@pytest.mark.parametrize(
    ("version", "status"),
    [("2025-06-18, 2025-06-18", 200), ("2025-06-18,2025-03-26", 400), (",", 400)],
)
def test_a_version_that_was_joined_with_itself_counts_once(
    poster: Poster, version: str, status: int
) -> None:
    assert poster.post(PING, {**LEGACY, VERSION_HEADER: version})[0] == status


def test_a_header_whose_values_are_a_list_may_be_split(poster: Poster) -> None:
    accept = [("Accept", "application/json"), ("Accept", "text/event-stream"), *JSON.items()]
    assert poster.post(PING, accept)[0] == 200


@pytest.mark.parametrize("headers", [{"Mcp-Method": "server/discover", "Mcp-Name": "x"}, {}])
def test_a_modern_message_without_the_header_of_its_version_is_refused(
    poster: Poster, headers: dict[str, str]
) -> None:
    for message in (DISCOVER, {**DISCOVER, "method": "notifications/cancelled", "id": None}):
        sent = {name: value for name, value in message.items() if value is not None}
        status, answer = poster.post(sent, {**LEGACY, **headers})
        assert (status, answer["error"]["code"]) == (400, -32020)


def escaped(message: Any) -> bytes:
    """Return a message whose key of the version is written in another way."""
    return (
        json.dumps(message)
        .encode()
        .replace(VERSION.encode(), VERSION.encode().replace(b"/", rb"\/"))
    )


@pytest.mark.parametrize("body", [json.dumps(DISCOVER).encode(), escaped(DISCOVER)])
def test_a_header_of_another_version_than_the_body_is_refused(poster: Poster, body: bytes) -> None:
    headers = {**LEGACY, "Mcp-Method": "server/discover"}
    assert poster.post(body, {**headers, VERSION_HEADER: "2026-07-28"})[0] == 200
    for version in ("2025-11-25", "2099-01-01"):
        status, answer = poster.post(body, {**headers, VERSION_HEADER: version})
        assert (status, answer["id"], answer["error"]["code"]) == (400, 1, -32020)


def test_texts_of_a_legacy_client_may_name_the_key_of_the_version(poster: Poster) -> None:
    message = {**PING, "params": {"_meta": {"about": VERSION}}}
    assert poster.post(message, LEGACY)[0] == 200


@pytest.mark.parametrize("message", [PING, {"jsonrpc": "2.0", "method": "notifications/x"}])
def test_an_unknown_version_in_the_header_is_refused_by_the_code_of_the_specification(
    poster: Poster, message: Any
) -> None:
    for version in ("2099-01-01", "", "x" * 1000):
        status, answer = poster.post(message, {**LEGACY, VERSION_HEADER: version})
        error = answer["error"]
        assert (status, error["code"]) == (400, -32022)
        assert error["data"] == {"supported": ["2026-07-28"], "requested": version[:64]}


INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
WRONG: list[Any] = [
    5,
    [1],
    {"elicitation": 5},
    {"sampling": [1]},
    {"roots": {"listChanged": 1}},
    {"extensions": {"x": 1}},
]


@pytest.mark.parametrize("capabilities", WRONG, ids=json.dumps)
def test_capabilities_of_another_type_are_refused(poster: Poster, capabilities: Any) -> None:
    for wrong in ({"capabilities": capabilities}, {"clientInfo": 5}, {"protocolVersion": 5}):
        message = {**PING, "method": "initialize", "params": {**INITIALIZE, **wrong}}
        assert poster.post(message, LEGACY)[1]["error"]["code"] == -32602
    headers = {**LATEST, "Mcp-Method": "server/discover"}
    for meta in ({CAPABILITIES: capabilities}, {CLIENT_INFO: 5}, {CLIENT_INFO: {"name": 5}}):
        message = {**DISCOVER, "params": {"_meta": {**MODERN, **meta}}}
        status, answer = poster.post(message, headers)
        assert (status, answer["error"]["code"]) == (400, -32602)


@pytest.mark.parametrize("capabilities", [[], {"roots": [], "extensions": {"a/b": []}}])
def test_capabilities_may_be_written_as_php_writes_empty_ones(
    poster: Poster, capabilities: Any
) -> None:
    params = {**INITIALIZE, "capabilities": capabilities}
    message = {**PING, "method": "initialize", "params": params}
    assert "result" in poster.post(message, LEGACY)[1]
    message = {**DISCOVER, "params": {"_meta": {**MODERN, CAPABILITIES: capabilities}}}
    assert "result" in poster.post(message, {**LATEST, "Mcp-Method": "server/discover"})[1]


@pytest.mark.parametrize("version", ["2026-07-28", "2099-01-01", "2024-10-07", ""])
def test_initialize_agrees_on_a_version_whatever_its_header_says(
    poster: Poster, version: str
) -> None:
    message = {**PING, "method": "initialize", "params": INITIALIZE}
    for more in ({}, {"Mcp-Method": "initialize"}):
        status, answer = poster.post(message, {**LEGACY, VERSION_HEADER: version, **more})
        assert (status, answer["result"]["protocolVersion"]) == (200, "2025-11-25")


@pytest.mark.parametrize(
    ("meta", "method", "refusal"),
    [
        ({"_meta": MODERN}, "initialize", (404, -32601)),
        ({}, "tools/list", (400, -32602)),
    ],
)
def test_initialize_is_no_method_of_the_modern_version(
    poster: Poster, meta: dict[str, Any], method: str, refusal: tuple[int, int]
) -> None:
    message = {**PING, "method": "initialize", "params": {**INITIALIZE, **meta}}
    status, answer = poster.post(message, {**LATEST, "Mcp-Method": method})
    assert (status, answer["error"]["code"]) == refusal


@pytest.mark.parametrize("charset", ["UTF-8", "utf8", "us-ascii"])
def test_a_charset_that_is_utf_8_by_another_name_is_read(poster: Poster, charset: str) -> None:
    kind = f"application/json; charset={charset}"
    assert poster.post(PING, {**LEGACY, "Content-Type": kind})[0] == 200


def test_a_body_whose_type_is_not_said_is_read(poster: Poster) -> None:
    assert poster.post(PING, ACCEPT, "Content-Type")[0] == 200


@pytest.mark.parametrize("kind", ["application/json; charset=latin-1", "text/plain"])
def test_a_body_in_another_encoding_is_refused(poster: Poster, kind: str) -> None:
    assert poster.post(PING, {**LEGACY, "Content-Type": kind})[0] == 415


def test_the_identity_is_no_encoding(poster: Poster) -> None:
    for encoding, status in (("identity", 200), ("", 200), ("gzip", 415), ("identity, br", 415)):
        assert poster.post(PING, {**LEGACY, "Content-Encoding": encoding})[0] == status
