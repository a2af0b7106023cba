"""The two ends of an exchange within one process: a worker, and callers in its process.

A front that runs in a worker's process passes calls and results as objects. Everything else is as
over gRPC, in the same messages; neither end knows how the other one is built (design.md#calls).
"""

from __future__ import annotations

from typing import Final, Protocol

from leaseway.v1 import catalog_pb2, execution_pb2

SINGLE_FIELDS: Final = ("keep_alive", "going_away")
"""Fields of requests and responses of an exchange that are one message each, not a list."""


class LocalStream(Protocol):
    """The worker's end of one stream. Its methods return at once and do not raise."""

    def start_call(self, call: execution_pb2.Call, arguments: bytes) -> None:
        """Start a call. Its result goes to the caller's end, possibly before this returns.

        Args:
            call: The call, without its arguments.
            arguments: The arguments as UTF-8 JSON, of any length.
        """

    def handle_request(self, request: execution_pb2.ExchangeRequest) -> None:
        """Handle a message without calls and chunks."""


class LocalCaller(Protocol):
    """The caller's end of one stream. Its methods return at once and do not raise."""

    def open(self, stream: LocalStream) -> None:
        """Use a stream from now on: the worker has accepted the caller."""

    def handle_result(self, call_id: int, result: execution_pb2.Result, payload: bytes) -> None:
        """Handle the result of a call.

        Args:
            result: The result without call id and payload; several calls may share it.
            payload: The MCP result, or empty.
        """

    def handle_response(self, message: execution_pb2.ExchangeResponse) -> None:
        """Handle a message without results and chunks."""


class LocalWorker(Protocol):
    """A worker, as callers in its process see it.

    Attributes:
        incarnation: Its run.
        address: Where it listens, as this machine reaches it. What it advertises may be the
            address of a balancer or gateway, which need not lead back to this machine.
    """

    @property
    def id(self) -> str: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def address(self) -> str: ...

    def admits(self, authorization: str | None) -> bool:
        """Return whether a credential in a header is all that tells who a caller is.

        Otherwise the caller has to connect: its client certificate may be its credential.
        """

    async def carry(
        self, caller: LocalCaller, authorization: str | None, hello: catalog_pb2.ClientInfo
    ) -> None:
        """Carry the calls of a caller until it cancels this, or the worker ends the stream.

        Args:
            caller: The caller's end.
            authorization: Its credential, as in the header of that name, or None.
            hello: The caller, as it identifies itself.

        Raises:
            Fault: The credential is not accepted any more, or a limit was reached.
        """
