"""Answers the calls of clients as a simulated worker: every result is the same text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from leaseway.v1 import execution_pb2
from leaseway.wire.channels.serving import SERVER_OPTIONS
from leaseway.wire.version import PROTOCOL_VERSION

__all__ = ["Executions"]

_SERVICE: Final = execution_pb2.DESCRIPTOR.services_by_name["ExecutionService"].full_name
_RESULT: Final = json.dumps({"content": [{"type": "text", "text": "done"}]}).encode()


class Executions:
    """The exchange streams of one worker.

    Args:
        worker_id: Its id.
    """

    def __init__(self, worker_id: str) -> None:
        self._id = worker_id
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        exchange = grpc.stream_stream_rpc_method_handler(
            self._exchange,
            request_deserializer=execution_pb2.ExchangeRequest.FromString,
            response_serializer=execution_pb2.ExchangeResponse.SerializeToString,
        )
        handlers = {"Exchange": exchange}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, handlers)]
        )

    async def start(self) -> str:
        """Listen; return the address."""
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        """Die at once: streams are cut."""
        await self._server.stop(None)

    async def _exchange(
        self, request_iterator: AsyncIterator[execution_pb2.ExchangeRequest], context: Any
    ) -> None:
        """Answer each call of a batch with one."""
        info = execution_pb2.WorkerInfo(id=self._id, protocol_version=PROTOCOL_VERSION)
        await context.write(execution_pb2.ExchangeResponse(worker=info))
        async for request in request_iterator:
            results = [
                execution_pb2.Result(call_id=call.id, payload=_RESULT) for call in request.calls
            ]
            if results:
                await context.write(execution_pb2.ExchangeResponse(results=results))
