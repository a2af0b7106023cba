"""Tools with a server of their own: only the configured one gets headers and credentials."""

from __future__ import annotations

from typing import Any

from tests.data_plane.http_tools.callers import calling, spec_of
from tests.servers import rest_api

from leaseway.spec.kinds.http_api import Credential
from leaseway.spec.kinds.http_tools import HttpParameter, HttpTool
from leaseway.spec.references import Value

CREDENTIALS: dict[str, Any] = {
    "headers": {"X-Key": Value("literal", "header-secret")},
    "security": {
        "token": Credential("bearer", "", Value("literal", "token-secret")),
        "key": Credential("query", "api_key", Value("literal", "query-secret")),
    },
}


def tool(name: str, **more: Any) -> HttpTool:
    mine = HttpParameter("X-Mine", "header", '{"type": "string"}')
    return HttpTool(name, "GET", "/users/1", parameters=(mine,), **more)


async def test_another_origin_gets_the_request_and_no_credentials() -> None:
    async with rest_api.serve() as own, rest_api.serve() as other:
        spec = spec_of(
            f"{own.url}/v1",
            tool("here"),
            tool("path", base_url="/"),
            tool("same", base_url=f"{own.url}/"),
            tool("elsewhere", base_url=other.url),
            tool("trusted", base_url=other.url, send_credentials=True),
            **CREDENTIALS,
        )
        async with calling(spec) as caller:
            await caller.result("here", **{"X-Mine": "1"})
            assert own.last.path == "/v1/users/1"
            for name in ("path", "same"):
                await caller.text(name)
                assert own.last.path == "/users/1"
                assert "secret" in str(own.last)
            await caller.text("elsewhere", **{"X-Mine": "argument"})
            assert other.last.path == "/users/1"
            assert other.last.headers["X-Mine"] == "argument"
            assert "secret" not in str(other.last)
            await caller.text("trusted")
            for secret in ("header-secret", "token-secret", "query-secret"):
                assert secret in str(other.last)
        assert len(other.seen) == 2


async def test_a_redirect_from_another_origin_to_the_configured_one_brings_no_credentials() -> None:
    async with rest_api.serve() as own, rest_api.serve(elsewhere=own.url) as other:
        redirected = HttpTool("redirected", "GET", "/redirect", base_url=other.url)
        spec = spec_of(own.url, redirected, follow_redirects=True, **CREDENTIALS)
        async with calling(spec) as caller:
            await caller.text("redirected")
        assert own.last.path == "/users/1"
        assert "secret" not in str((own.last, other.last))
