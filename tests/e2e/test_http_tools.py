"""REST APIs as servers in a whole system: listed, called, reloaded, leased."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.system import eventually, python_server, running
from tests.servers import rest_api
from tests.servers.pictures import png

from leaseway.sdk import AsyncClient, InvalidArguments, LeasewayError
from leaseway.wire.messages.admin import ADMIN_TOOLSET

TEMPLATE = "Name: {{ .data.name }}{{- range $i, $t := .data.tags }} {{ $i }}={{ $t }}{{- end }}"
GET_USER: dict[str, object] = {
    "name": "get_user",
    "description": "Fetch a user",
    "method": "GET",
    "endpoint": "/users/{userId}",
    "parameters": [
        {"name": "userId", "type": "string", "position": "path", "required": True},
        {"name": "verbose", "type": "boolean", "position": "query"},
        {"name": "X-Trace", "type": "string", "position": "header"},
    ],
    "response_template": TEMPLATE,
}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Users", "version": "1"},
    "paths": {
        "/users/{id}": {
            "get": {
                "operationId": "users/get",
                "parameters": [{"name": "id", "in": "path", "required": True}],
            }
        }
    },
}


async def names(client: AsyncClient) -> list[str]:
    return sorted(
        tool.name for tool in await client.list_tools() if tool.server_id != ADMIN_TOOLSET
    )


@pytest.mark.usefixtures("leak_guard")
async def test_a_rest_api_is_listed_called_reloaded_and_leased(tmp_path: Path) -> None:
    async with rest_api.serve() as api:
        petstore: dict[str, object] = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": api.url,
            "headers": {"Authorization": {"secret": "PETSTORE_TOKEN"}},
            "http_tools": [GET_USER],
        }
        leased = {**petstore, "truely-stateless": False, "transform": [{"prefix": "mine_"}]}
        servers: dict[str, object] = {"petstore": petstore, "leased": leased}
        secret = {"PETSTORE_TOKEN": "Bearer t0p-s3cret"}
        async with running(tmp_path, servers, environment=secret) as (system, client):
            await eventually(lambda: _lists(client, ["get_user", "mine_get_user"]))
            result = await client.call_tool("get_user", {"userId": "../a b", "verbose": True})
            assert result.text == "Name: Ann 0=a 1=b"
            assert api.last.raw_path == "/users/..%2Fa%20b?verbose=true"
            assert api.last.headers["Authorization"] == "Bearer t0p-s3cret"

            with pytest.raises(InvalidArguments, match="userId"):
                await client.call_tool("get_user", {"verbose": True})
            async with client.session("one") as session:
                own = await session.call_tool("leased:get_user", {"userId": "1"})
                assert own.text == "Name: Ann 0=a 1=b"

            # A changed tool, an added tool, and an invalid tool that changes nothing.
            changed = {**GET_USER, "response_template": "{{ .data.id }}"}
            added = {"name": "missing", "method": "GET", "endpoint": "/nowhere"}
            system.write({"petstore": {**petstore, "http_tools": [changed, added]}})
            await eventually(lambda: _lists(client, ["get_user", "missing"]))
            assert (await client.call_tool("get_user", {"userId": "7"})).text == "7"
            rejected = await client.call_tool("missing", {})
            assert rejected.is_error
            assert rejected.text.startswith("HTTP 404 Not Found")
            broken = {**GET_USER, "response_template": "{{ if }}"}
            system.write({"petstore": {**petstore, "http_tools": [broken]}})
            await eventually(lambda: _has_problem(client, "BAD_TEMPLATE"))
            assert (await client.call_tool("get_user", {"userId": "8"})).text == "8"


@pytest.mark.usefixtures("leak_guard")
async def test_a_changed_openapi_document_is_reloaded(tmp_path: Path) -> None:
    document = tmp_path / "users.json"
    document.write_text(json.dumps(DOCUMENT))
    async with rest_api.serve() as api:
        users = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": api.url,
            "openapi": "users.json",
        }
        async with running(tmp_path, {"users": users}) as (_, client):
            await eventually(lambda: _lists(client, ["users_get"]))
            answer = json.loads((await client.call_tool("users_get", {"id": 5})).text)
            assert answer["data"]["id"] == "5"
            more = {**DOCUMENT, "paths": {**DOCUMENT["paths"], "/text": {"get": {}}}}  # type: ignore[dict-item]
            fresh = tmp_path / "users.new"
            fresh.write_text(json.dumps(more))
            fresh.replace(document)
            await eventually(lambda: _lists(client, ["get_text", "users_get"]))
            assert (await client.call_tool("get_text", {})).text == "größe"


@pytest.mark.usefixtures("leak_guard")
async def test_a_replaced_credential_is_used_by_the_next_calls(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-token")
    async with rest_api.serve() as api:
        server = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": api.url,
            "security": {
                "user": {"type": "bearer", "value": {"file": str(token)}},
                "app": {"type": "query", "name": "app_key", "value": {"secret": "APP_KEY"}},
            },
            "http_tools": [GET_USER],
        }
        secret = {"APP_KEY": "k3y-of-the-app"}
        async with running(tmp_path, {"petstore": server}, environment=secret) as (_, client):
            await eventually(lambda: _lists(client, ["get_user"]))
            await client.call_tool("get_user", {"userId": "1"})
            assert api.last.query == [("app_key", "k3y-of-the-app")]
            assert api.last.headers["Authorization"] == "Bearer first-token"
            token.write_text("other-token")

            async def sends_other_token() -> bool:
                await client.call_tool("get_user", {"userId": "1"})
                return api.last.headers["Authorization"] == "Bearer other-token"

            await eventually(sends_other_token)


@pytest.mark.usefixtures("leak_guard")
async def test_an_artifact_of_one_server_is_sent_to_a_rest_api_by_its_reference(
    tmp_path: Path,
) -> None:
    upload = {
        "name": "upload",
        "method": "POST",
        "endpoint": "/users/1",
        "body": "multipart",
        "parameters": [
            {"name": "title", "type": "string"},
            {"name": "file", "type": "string", "contentEncoding": "base64"},
        ],
    }
    async with rest_api.serve() as api:
        rest = {
            "transport": "http_api",
            "truely-stateless": True,
            "base_url": api.url,
            "http_tools": [upload],
        }
        servers = {
            "pictures": python_server("pictures.py", **{"truely-stateless": True}),
            "rest": rest,
        }
        async with running(tmp_path, servers, workers=2) as (system, client):
            await eventually(lambda: _calls(client, "pixel", {"color": [1, 2, 3]}))
            await eventually(lambda: _calls(client, "upload", {"title": "warm-up"}))
            for red in range(4):  # whichever worker stores it
                picture = await client.call_tool("pixel", {"color": [red, 0, 0]})
                (kept,) = [media.artifact for media in picture.media]
                await client.call_tool("upload", {"title": "red", "file": kept})
                assert png(red, 0, 0) in api.last.body
            async with AsyncClient(system.address) as other:
                with pytest.raises(LeasewayError, match="pass its bytes as base64"):
                    await other.call_tool("upload", {"file": kept})


async def _calls(client: AsyncClient, tool: str, arguments: dict[str, object]) -> bool:
    try:
        return not (await client.call_tool(tool, arguments)).is_error
    except LeasewayError:
        return False


async def _lists(client: AsyncClient, wanted: list[str]) -> bool:
    try:
        return await names(client) == wanted
    except LeasewayError:
        return False


async def _has_problem(client: AsyncClient, reason: str) -> bool:
    return any(problem.reason == reason for problem in await client.problems())
