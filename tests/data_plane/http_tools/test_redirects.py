"""Redirects of HTTP tools that are followed: with which method and body, and how often."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from tests.data_plane.http_tools.callers import calling, spec_of
from tests.servers import rest_api
from tests.servers.rest_api import RestApi
from yarl import URL

from leaseway.data_plane.kinds.http_api.client import HttpToolClient, SendState
from leaseway.data_plane.kinds.http_api.redirects import Sending, next_sending
from leaseway.data_plane.kinds.http_api.requests import HttpRequest
from leaseway.data_plane.mcp.host import http_client
from leaseway.data_plane.outgoing import Credential, Outgoing
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool

NAME = HttpParameter("name", "body", '{"type": "string"}')
HERE = URL("https://api.example/a")
ELSEWHERE = "https://other.example/b"


def moved(method: str, status: int, to: str = "/echo") -> HttpTool:
    return HttpTool("moved", method, f"/moved/{status}?to={to}", parameters=(NAME,))


@pytest.fixture
async def api() -> AsyncIterator[RestApi]:
    async with rest_api.serve() as serving:
        yield serving


@pytest.mark.parametrize(
    ("method", "body", "status", "location", "expected"),
    [
        ("POST", b"x", 303, "/b", ("GET", None)),
        ("DELETE", None, 303, ELSEWHERE, ("GET", None)),
        ("HEAD", None, 303, "/b", ("HEAD", None)),
        ("POST", b"x", 307, "/b", ("POST", b"x")),
        ("PUT", b"x", 308, "/b", ("PUT", b"x")),
        ("POST", b"x", 308, ELSEWHERE, None),
        ("DELETE", None, 307, ELSEWHERE, None),
        ("POST", b"x", 301, "/b", None),
        ("POST", None, 302, "/b", None),
        ("GET", None, 302, ELSEWHERE, ("GET", None)),
        ("GET", b"x", 302, "/b", ("GET", b"x")),
        ("GET", b"x", 302, ELSEWHERE, None),
        ("POST", b"x", 304, "/b", None),
    ],
)
def test_what_may_act_or_has_a_body_is_sent_again_only_where_that_is_asked_for(
    method: str, body: bytes | None, status: int, location: str,
    expected: tuple[str, bytes | None] | None,
) -> None:  # fmt: skip
    following = next_sending(Sending(method, HERE, body), status, location)
    assert following == (expected and Sending(expected[0], HERE.join(URL(location)), expected[1]))


def test_a_server_behind_a_proxy_that_ends_tls_names_itself_by_http() -> None:
    following = next_sending(Sending("GET", HERE, None), 307, "http://api.example/a/")
    assert following is not None
    assert str(following.url) == "https://api.example/a/"


async def test_303_after_a_post_leads_to_what_it_has_made(api: RestApi) -> None:
    async with calling(
        spec_of(api.url, moved("POST", 303, "/users/1"), follow_redirects=True)
    ) as caller:
        assert '"id": "1"' in await caller.text("moved", name="n")
    assert [seen.method for seen in api.seen] == ["POST", "GET"]
    assert api.last.body == b""
    assert not {"Content-Type", "Content-Length"} & set(api.last.headers)


async def test_307_sends_the_body_again(api: RestApi) -> None:
    async with calling(spec_of(api.url, moved("POST", 307), follow_redirects=True)) as caller:
        assert await caller.text("moved", name="n") == '{"name":"n"}'
    assert [seen.method for seen in api.seen] == ["POST", "POST"]


async def test_a_call_that_was_made_before_its_redirect_failed_may_have_started(
    api: RestApi,
) -> None:
    api.elsewhere = "http://127.0.0.1:9"
    async with calling(spec_of(api.url, moved("POST", 303), follow_redirects=True)) as caller:
        fault = await caller.fault("moved", name="n")
    assert (fault.reason, fault.started) == ("SERVER_LOST", "unknown")


class Renewing:
    """Has a new token whenever one is refused."""

    async def credential(self) -> Credential | None:
        return None

    async def refused(
        self, sent: Credential | None, status: int, headers: Mapping[str, str]
    ) -> bool:
        return True

    def without_token(self, text: str) -> str:
        return text


async def test_a_post_is_not_sent_again_if_what_it_made_is_refused(api: RestApi) -> None:
    body = HttpRequest("POST", f"{api.url}/moved/303?to=/status/401", {}, b"{}")
    async with http_client() as http:
        client = HttpToolClient(
            "s", http, {}, {}, follow_redirects=True, outgoing=Outgoing(authorization=Renewing())
        )
        response = await client.send(body, {}, 0, SendState(), client.carried(None))
    assert response.status == 401
    assert [seen.method for seen in api.seen] == ["POST", "GET"]


@pytest.mark.parametrize(("names", "times"), [(None, 4), (("auth",), 4), (("user",), 1), ((), 1)])
async def test_a_token_is_only_used_where_credentials_name_auth(
    api: RestApi, names: tuple[str, ...] | None, times: int
) -> None:
    refused = HttpRequest("GET", f"{api.url}/status/401", {}, None)
    async with http_client() as http:
        client = HttpToolClient("s", http, {}, {}, outgoing=Outgoing(authorization=Renewing()))
        await client.send(refused, {}, 0, SendState(), client.carried(names))
    assert len(api.seen) == times
