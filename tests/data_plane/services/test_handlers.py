"""How the worker's services are registered with a server."""

from __future__ import annotations

from typing import Any, cast
from unittest import mock

import grpc

from leaseway.data_plane.services.execution import ExecutionService, add_execution_service


class ServerOfOlderGrpc:
    """Ignores registered handlers, as asynchronous servers did before they were supported."""

    def __init__(self) -> None:
        self.handlers: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self.handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        pass


class Details(grpc.HandlerCallDetails):
    method = "/leaseway.v1.ExecutionService/Exchange"
    invocation_metadata = ()


def test_responses_of_an_exchange_are_written_as_they_are_with_older_versions_of_grpc() -> None:
    server = ServerOfOlderGrpc()
    add_execution_service(mock.create_autospec(ExecutionService), cast("grpc.aio.Server", server))
    found = [handler.service(Details()) for handler in server.handlers]
    first = next(handler for handler in found if handler is not None)
    assert first.response_serializer is None
