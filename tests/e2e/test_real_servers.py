"""Servers of other projects, over both transports and in both protocol eras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ServerCommand
from tests.e2e.servers import PREFIX, entry, http_server
from tests.e2e.system import SERVERS, python_server, running
from tests.ports import free_port

from leaseway.sdk import PermissionDenied


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_server_everything_over_stdio(tmp_path: Path, npm_server: ServerCommand) -> None:
    servers = {"everything": entry(npm_server("mcp-server-everything"), "stdio")}
    async with running(tmp_path, servers) as (_, client):
        tools = await client.list_tools()
        assert len(tools) >= 10
        async with client.session("dialog-42") as session:
            result = await session.call_tool("everything:echo", {"message": "hi"})
            assert result.text == "Echo: hi"
            summed = await session.call_tool("everything:get-sum", {"a": 2, "b": 3})
            assert "5" in summed.text


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_a_memory_in_a_file_of_its_session_is_no_one_elses(
    tmp_path: Path, npm_server: ServerCommand
) -> None:
    env = {"MEMORY_FILE_PATH": f"{tmp_path}/${{session}}.json"}
    servers = {"memory": entry(npm_server("mcp-server-memory"), env=env)}
    secret = {"name": "alice's secret", "entityType": "note", "observations": ["blue"]}
    async with running(tmp_path, servers) as (_, client):
        async with client.session("alice") as alice, client.session("bob") as bob:
            await alice.call_tool("memory:create_entities", {"entities": [secret]})
            seen = (await bob.call_tool("memory:read_graph", {})).text
            assert "secret" not in seen
        async with client.session("alice") as later:  # another lease, another process
            assert "secret" in (await later.call_tool("memory:read_graph", {})).text


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_server_everything_over_streamable_http(
    tmp_path: Path, npm_server: ServerCommand
) -> None:
    port = free_port()
    command = [*npm_server("mcp-server-everything"), "streamableHttp"]
    async with http_server(*command, port=port, PORT=str(port)):
        remote = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        prefixed = {"transform": [{"prefix": "leased_"}]}
        servers = {"remote": remote | {"truely-stateless": True}, "leased": remote | prefixed}
        async with running(tmp_path, servers) as (_, client):
            result = await client.call_tool("remote:echo", {"message": "over http"})
            assert result.text == "Echo: over http"
            async with client.session("s") as session:
                lease = await session.acquire("leased")
                assert lease.server_id == "leased"
                result = await session.call_tool("leased:echo", {"message": "leased"})
                assert result.text == "Echo: leased"


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_server_filesystem_with_structured_results(
    tmp_path: Path, npm_server: ServerCommand
) -> None:
    root = tmp_path / "files"
    root.mkdir()
    (root / "note.txt").write_text("kept")
    command = npm_server("mcp-server-filesystem")
    servers = {"files": entry(command, str(root), **{"truely-stateless": True})}
    async with running(tmp_path, servers) as (_, client):
        result = await client.call_tool("files:read_text_file", {"path": str(root / "note.txt")})
        assert result.text == "kept"
        assert result.structured == {"content": "kept"}
        refused = await client.call_tool("files:read_text_file", {"path": "/etc/passwd"})
        assert refused.is_error


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_server_filesystem_by_permissions(tmp_path: Path, npm_server: ServerCommand) -> None:
    root = tmp_path / "files"
    (root / "secrets").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for place in (root, root / "secrets"):
        (place / "note.txt").write_text("kept")
    permissions = {"write": False, "allowed_paths": [str(root)], "denied_paths": ["secrets/"]}
    options = {"truely-stateless": True, "permissions": permissions}
    servers = {
        "files": entry(npm_server("mcp-server-filesystem"), str(tmp_path / "other"), **options)
    }
    async with running(tmp_path, servers) as (_, client):
        read = "files:read_text_file"
        assert (await client.call_tool(read, {"path": str(root / "note.txt")})).text == "kept"
        several = [str(root / "note.txt"), str(root / "secrets/note.txt")]
        for tool, arguments in (
            (read, {"path": "/etc/passwd"}),
            (read, {"path": several[1]}),
            ("files:read_multiple_files", {"paths": several}),
            ("files:write_file", {"path": str(root / "new.txt"), "content": "x"}),
        ):
            with pytest.raises(PermissionDenied):
                await client.call_tool(tool, arguments)
        assert not (root / "new.txt").exists()
        # The server is started for another folder, and gets its roots from the worker.
        allowed = (await client.call_tool("files:list_allowed_directories", {})).text
        assert str(root) in allowed
        assert str(tmp_path / "other") not in allowed


@pytest.mark.legacy_servers
@pytest.mark.usefixtures("leak_guard")
async def test_servers_from_pypi(tmp_path: Path, legacy_server: ServerCommand) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    servers = {
        "time": entry(legacy_server("mcp-server-time"))
        | {"truely-stateless": True, "transform": [{"prefix": "time_"}]},
        "git": entry(legacy_server("mcp-server-git"), "--repository", str(repository)),
    }
    async with running(tmp_path, servers) as (_, client):
        result = await client.call_tool("time_get_current_time", {"timezone": "UTC"})
        assert '"timezone": "UTC"' in result.text
        status = await client.call_tool("git:git_status", {"repo_path": str(repository)})
        assert "branch" in status.text


@pytest.mark.parametrize("era", ["auto", "legacy", "2026-07-28"])
@pytest.mark.usefixtures("leak_guard")
async def test_the_official_packages_server_in_either_era(tmp_path: Path, era: str) -> None:
    command = [sys.executable, str(SERVERS / "official_http.py")]
    async with http_server(*command) as port:
        remote = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        shared = {"truely-stateless": True, "protocol": era, "transform": PREFIX}
        servers = {"http": remote | shared, "stdio": python_server("official_stdio.py") | shared}
        async with running(tmp_path, servers) as (_, client):
            for server in await client.servers():
                modern = server.protocol_version == "2026-07-28"
                assert modern == (era != "legacy"), server
                result = await client.call_tool(f"{server.id}:echo", {"text": "hi"})
                assert result.text == "hi"


@pytest.mark.usefixtures("leak_guard")
async def test_a_hand_written_modern_server_over_both_transports(tmp_path: Path) -> None:
    async with http_server(sys.executable, str(SERVERS / "http_raw.py"), "--sse") as port:
        remote = {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
        shared = {"truely-stateless": True, "transform": PREFIX}
        servers = {"http": remote | shared, "stdio": python_server("echo_raw.py") | shared}
        async with running(tmp_path, servers) as (_, client):
            for name in servers:
                result = await client.call_tool(f"{name}:echo", {"text": "raw"})
                assert "raw" in result.text
