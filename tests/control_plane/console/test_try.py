"""A tool that is tried in the console is called with the operator's own credential."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import grpc
import pytest

from leaseway.control_plane.console.actions import Actions
from leaseway.identity.principal import Principal, Role
from leaseway.v1 import execution_pb2, execution_pb2_grpc

OPERATOR = Principal("token ann", frozenset({Role.OPERATOR, Role.CALLER}), agent="desk")


class Worker:
    """Notes the credentials of its callers."""

    def __init__(self) -> None:
        self.seen: list[str | bytes] = []

    def __getattr__(self, rpc: str) -> Any:
        return self._call

    async def _call(
        self, request: execution_pb2.CallToolRequest, context: Any
    ) -> execution_pb2.CallToolResponse:
        sent = dict(context.invocation_metadata())
        self.seen.append(sent.get("authorization", ""))
        return execution_pb2.CallToolResponse()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [("Bearer ann's token", "Bearer ann's token"), (None, "Bearer the-shared-key")],
    ids=["with a credential", "on loopback without any"],
)
async def test_the_worker_gets_the_operators_credential(sent: str | None, expected: str) -> None:
    worker, server = Worker(), grpc.aio.server()
    service: Any = worker
    execution_pb2_grpc.add_ExecutionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        record = SimpleNamespace(
            id="w1",
            accepts_work=True,
            hello=SimpleNamespace(address=SimpleNamespace(address=f"127.0.0.1:{port}")),
        )
        plane = MagicMock()
        actions = Actions(plane, "the-shared-key")
        served = SimpleNamespace(spec=SimpleNamespace(truely_stateless=True, call_timeout=5.0))
        plane.state.visible.view.return_value.servers.get.return_value = served
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(actions, "_worker_for", lambda _served, _key: record)
            found = await actions.try_tool("kit", "echo", "acme", {"a": 1}, OPERATOR, sent)
    finally:
        await server.stop(None)
    assert found["worker"] == "w1"
    assert worker.seen == [expected]
