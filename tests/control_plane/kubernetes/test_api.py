"""What the client says when the program for its credentials, or its pod, is not as it should be."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
from lightkube.resources.coordination_v1 import Lease
from tests.certificates import Authority
from tests.conftest import BOUND

from leaseway.control_plane.config.kubernetes.api import KubernetesFailure, open_api

_NOBODY = "https://127.0.0.1:1"
_PROGRAM = "the program that KUBECONFIG names for credentials"


def kubeconfig(folder: Path, *command: str, server: str = _NOBODY) -> str:
    """Return a file that names this command for credentials."""
    version = "client.authentication.k8s.io/v1beta1"
    program = {"apiVersion": version, "command": command[0], "args": list(command[1:])}
    return kubeconfig_of(folder, {"exec": program}, server)


def kubeconfig_of(folder: Path, user: object, server: str, **cluster: str) -> str:
    """Return a file with this user, and more about its cluster."""
    document = {
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "users": [{"name": "it", "user": user}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    ("command", "timeout", "message"),
    [
        (("echo", "hello"), BOUND, "can't be read (JSONDecodeError"),
        (("echo", '{"status": {}}'), BOUND, "can't be read (KeyError"),
        (("no-such-program",), BOUND, "No such file or directory"),
        (("false",), BOUND, "returned 1"),
        (("sleep", "20"), 0.01, f"also if {_PROGRAM} does not end"),
    ],
)
async def test_a_program_for_credentials_that_fails_is_one_failure_of_the_api(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    timeout: float,
    message: str,
) -> None:
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, *command))
    async with open_api("apps", timeout=timeout) as api:
        with pytest.raises(KubernetesFailure) as caught:
            await api.list("MCPServer")

    assert "list mcpservers of the namespace apps" in str(caught.value)
    assert message in str(caught.value)


async def test_a_pod_without_a_token_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    with pytest.raises(KubernetesFailure, match="set automountServiceAccountToken to true"):
        async with open_api("apps"):
            pass


async def test_a_busy_api_says_when_to_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # As the API's priority and fairness answers, without a JSON document.
        writer.write(
            b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain\r\nRetry-After: 7\r\n"
            b"Content-Length: 0\r\n\r\n"
        )
        writer.close()

    token = {"apiVersion": "client.authentication.k8s.io/v1beta1", "status": {"token": "t"}}
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        command = ("echo", json.dumps({**token, "kind": "ExecCredential"}))
        path = kubeconfig(tmp_path, *command, server=f"http://127.0.0.1:{port}")
        monkeypatch.setenv("KUBECONFIG", path)
        async with open_api("apps") as api:
            with pytest.raises(KubernetesFailure) as caught:
                await api.list("MCPServer")

    assert caught.value.retry_after == 7


async def test_a_kubeconfig_that_is_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = b"401 Unauthorized", b'{"kind": "Status", "code": 401}'
        if b"Bearer newer" in head:
            status, body = b"200 OK", b'{"metadata": {"resourceVersion": "7"}, "items": []}'
        writer.write(
            b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        writer.close()

    async def fails(message: str) -> None:
        with pytest.raises(KubernetesFailure, match=message):
            await api.list("MCPServer")

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        there = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", kubeconfig_of(tmp_path, {"token": "old"}, _NOBODY))
        async with open_api("apps") as api:
            path = Path(kubeconfig_of(tmp_path, {"token": "old"}, there))
            await fails("can't be reached")  # at the earlier address
            path.write_text("")  # while it is being written
            await fails("Its token is missing")
            kubeconfig_of(tmp_path, {"token": "newer"}, there)
            await fails("Its token is missing")
            assert (await api.list("MCPServer")).version == "7"


async def test_an_authority_that_is_replaced_in_its_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"metadata": {"resourceVersion": "7"}, "items": []}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\n\r\n%b" % (len(body), body)
        )
        writer.close()

    newer = Authority("newer")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*newer.issue(tmp_path, "api"))
    path = Authority("old").write(tmp_path / "ca.crt")
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        there = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        named = {"certificate-authority": str(path)}
        config = kubeconfig_of(tmp_path, {"token": "t"}, there, **named)
        monkeypatch.setenv("KUBECONFIG", config)
        async with open_api("apps") as api:
            with pytest.raises(KubernetesFailure, match="certificate verify failed"):
                await api.list("MCPServer")
            newer.write(path)
            with pytest.raises(KubernetesFailure, match="certificate verify failed"):
                await api.list("MCPServer")
            assert (await api.list("MCPServer")).version == "7"


async def test_a_list_whose_client_is_closed_between_two_pages_fails_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def next_page() -> None:
        async with api.client.request("list them") as client:
            for token in ("newer", "newest"):
                kubeconfig_of(tmp_path, {"token": token}, _NOBODY)
                with pytest.raises(KubernetesFailure, match="can't be reached"):
                    await api.list("MCPServer")
            await client.get(Lease, "it")

    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(tmp_path, {"token": "old"}, _NOBODY))
    async with open_api("apps") as api:
        with pytest.raises(KubernetesFailure, match="has been closed"):
            await next_page()
