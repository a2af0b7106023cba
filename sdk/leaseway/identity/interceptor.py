"""The gRPC interceptor that authenticates and authorizes every RPC, and sets its tenant.

`caller()` is the principal of the current RPC. Streams are aborted when their credential is revoked
or expires.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc

from leaseway.identity.authenticator import Authenticator, run_until_revoked
from leaseway.identity.principal import CREDENTIAL, LOOPBACK, Principal
from leaseway.identity.rpc_memory import CallerMemory, CallerReads
from leaseway.identity.rules import HEALTH, authorize, limit_of, scope_request
from leaseway.wire import bounds
from leaseway.wire.channels.requests import OpenReads, read_request, release
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.decoding import MessageDecoder
from leaseway.wire.status import abort

Context = grpc.aio.ServicerContext[Any, Any]
RpcBehaviour = Callable[[Any, Context], Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_PACKAGE: Final = "/leaseway.v1."
_REFUSALS: Final = (Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED, Reason.INVALID_REQUEST)
_REFUSAL_DELAY: Final = 0.01
"""Seconds until a refusal is sent. gRPC loses some memory when it sends to a stream that its client
has reset, as an attacker can thousands of times a second; such an RPC is cancelled by then."""
_caller: Final[ContextVar[Principal]] = ContextVar("leaseway-caller", default=LOOPBACK)


def caller() -> Principal:
    """Return the principal of the current RPC; `LOOPBACK` if no credentials are configured."""
    return _caller.get()


@dataclass(frozen=True, slots=True)
class _Rpc:
    """How one RPC is served.

    Attributes:
        method: Its path, or empty for an unknown RPC.
        behaviour: Its handler.
        decode: Decodes its request; None if it has a stream of requests.
        streams: Whether it has a stream of responses.
        generates: Whether its handler is an asynchronous generator of responses.
    """

    method: str
    behaviour: RpcBehaviour
    decode: MessageDecoder | None
    streams: bool
    generates: bool


class IdentityInterceptor(grpc.aio.ServerInterceptor):
    """Refuses RPCs without a valid credential or an allowed role, before it reads their requests.

    It also limits what is read and releases the memory of RPCs that fail, so a server needs it even
    if all senders may send all RPCs.

    Args:
        authenticator: Knows the senders.
        held: Counts what RPCs hold in memory; None for a count with the usual limit.
    """

    def __init__(self, authenticator: Authenticator, held: CallerMemory | None = None) -> None:
        self._authenticator = authenticator
        self._handlers: dict[str, tuple[_Handler, _Handler]] = {}
        self._open_reads = OpenReads()
        self._reads = CallerReads()
        self._held = held or CallerMemory()
        self._open_watches = 0
        self._unknown = self._checked("", _UNKNOWN)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the handler of an RPC in the check."""
        handler = await continuation(handler_call_details)
        if handler is None:  # do not reveal unknown RPCs without a credential
            return self._unknown
        method = handler_call_details.method
        known, checked = self._handlers.get(method, (None, None))
        if known is not handler or checked is None:  # gRPC calls this for each RPC
            checked = self._checked(method, handler)
            self._handlers[method] = handler, checked
        return checked

    def _checked(self, method: str, handler: _Handler) -> _Handler:
        """Return a handler that checks the RPC, then reads its request, then runs `handler`."""
        name = method.rpartition("/")[2]
        decode = MessageDecoder(name, handler.request_deserializer or _as_is, limit_of(method))
        has_one = method != "" and not handler.request_streaming
        behaviour = _behaviour(handler)
        rpc = _Rpc(
            method,
            behaviour,
            decode if has_one else None,
            streams=handler.response_streaming,
            generates=inspect.isasyncgenfunction(behaviour),
        )

        async def checked(requests: Any, context: Context) -> Any:
            try:
                return await self._serve(rpc, requests, context)
            except (grpc.aio.AbortError, asyncio.CancelledError) as error:
                release(error)
                del requests, context  # `raise` adds this frame to the traceback
                raise

        # A handler with a stream of requests decides when it reads the first one. On the wire a
        # single request is a stream of one. Where no sender is refused, gRPC may read a unary
        # request at once, which costs an eighth less; it is still decoded here, within its limits.
        make_handler: Callable[..., _Handler]
        if handler.response_streaming:
            make_handler = grpc.stream_stream_rpc_method_handler
        elif has_one and self._authenticator.allows_all and not method.startswith(HEALTH):
            make_handler = grpc.unary_unary_rpc_method_handler
        else:
            make_handler = grpc.stream_unary_rpc_method_handler
        return make_handler(
            checked,
            request_deserializer=None if has_one else decode,
            response_serializer=handler.response_serializer,
        )

    async def _serve(self, rpc: _Rpc, requests: Any, context: Context) -> Any:
        try:
            if rpc.decode is not None and rpc.method.startswith(HEALTH):
                return await self._serve_open(rpc, rpc.decode, context)
            if self._authenticator.allows_all:
                if rpc.decode is not None:
                    requests = await read_request(context, rpc.decode, requests)
                serving = _run(rpc, requests, context)
                # In a task of its own, a message of a stream does not resume this call chain, too.
                return await (asyncio.ensure_future(serving) if rpc.streams else serving)
            return await self._serve_authorized(rpc, requests, context)
        except Fault as fault:
            release(fault)
            if fault.reason in _REFUSALS:
                await asyncio.sleep(_REFUSAL_DELAY)
            await abort(context, fault)

    async def _serve_open(self, rpc: _Rpc, decode: MessageDecoder, context: Context) -> Any:
        """Serve an RPC that needs no credential."""
        request = await self._open_reads.read(context, decode)
        if not rpc.streams:
            return await _run(rpc, request, context)
        if self._open_watches >= bounds.MAX_OPEN_WATCHES:
            message = f"This server has {bounds.MAX_OPEN_WATCHES} watches of its health, its limit."
            raise Fault(Reason.OVERLOADED, message, retry_delay=1.0)
        self._open_watches += 1
        try:
            return await _run(rpc, request, context)
        finally:
            self._open_watches -= 1

    async def _serve_authorized(self, rpc: _Rpc, requests: Any, context: Context) -> Any:
        authorization, certificate = self._credentials(context)
        name = ""
        try:
            principal = await self._authenticator.principal(authorization, certificate)
            name = principal.name
            rule = authorize(principal, rpc.method) if rpc.method else None
            if rpc.decode is not None:
                requests = await self._reads.read(context, rpc.decode, principal)
                if rule is not None:
                    scope_request(principal, rule, requests)
        except Fault as fault:
            method = rpc.method.removeprefix(_PACKAGE)
            by = name or fault.metadata.get(CREDENTIAL, "")
            self._authenticator.refusals.record(method, by, str(context.peer()), fault)
            raise
        _caller.set(principal)
        if not rpc.streams:
            self._hold(requests, principal, context)
            response = await _run(rpc, requests, context)
            del requests
            self._hold(response, principal, context)
            return response
        with self._authenticator.watch(authorization, certificate, principal) as revoked:
            return await run_until_revoked(revoked, _run(rpc, requests, context))

    def _hold(self, message: Any, principal: Principal, context: Context) -> None:
        try:
            self._held.hold(message, principal, context)
        except Fault as fault:
            self._authenticator.limit_reached.emit(fault.metadata)
            raise

    def _credentials(self, context: Context) -> tuple[str | None, bytes | None]:
        """Return the `authorization` header, or else the client certificate, of an RPC.

        gRPC builds the authentication context anew for each RPC, so it is read only if needed.
        """
        for name, value in context.invocation_metadata() or ():
            if name == "authorization":
                return value if isinstance(value, str) else value.decode(errors="replace"), None
        if not self._authenticator.accepts_certificates:
            return None, None
        return None, next(iter(context.auth_context().get("x509_pem_cert", ())), None)


async def run_stream(
    authenticator: Authenticator,
    method: str,
    authorization: str | None,
    connection: str,
    serve: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Serve a stream within this process as that of an RPC: `caller()` is its authorized sender.

    Call it in a task of its own, because the sender stays that of the task.

    Args:
        authenticator: Checks the credential, and revokes the stream when it ends.
        method: The path of the RPC.
        authorization: The credential, as in the header of that name, or None.
        connection: What stands for the address of the sender in refusals.
        serve: Serves the stream until it ends.

    Raises:
        Fault: The credential is not accepted, or not any more.
    """
    if authenticator.allows_all:
        await serve()
        return
    name = ""
    try:
        principal = await authenticator.principal(authorization)
        name = principal.name
        authorize(principal, method)
    except Fault as fault:
        by = name or fault.metadata.get(CREDENTIAL, "")
        authenticator.refusals.record(method.removeprefix(_PACKAGE), by, connection, fault)
        raise
    _caller.set(principal)
    with authenticator.watch(authorization, None, principal) as revoked:
        await run_until_revoked(revoked, serve())


def identity_interceptors(authenticator: Authenticator) -> tuple[IdentityInterceptor, ...]:
    """Return the interceptors of a server."""
    return (IdentityInterceptor(authenticator),)


def _run(rpc: _Rpc, request: Any, context: Context) -> Coroutine[Any, Any, Any]:
    """Return what runs a handler: a coroutine, or an asynchronous generator of responses."""
    if rpc.generates:
        return _write_all(rpc.behaviour(request, context), context)
    serving: Coroutine[Any, Any, Any] = rpc.behaviour(request, context)
    return serving


async def _write_all(responses: AsyncIterable[Any], context: Context) -> None:
    async for response in responses:
        await context.write(response)


def _behaviour(handler: Any) -> RpcBehaviour:
    behaviour: RpcBehaviour
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            behaviour = handler.unary_unary
        case False, True:
            behaviour = handler.unary_stream
        case True, False:
            behaviour = handler.stream_unary
        case _:
            behaviour = handler.stream_stream
    return behaviour


def _as_is(content: bytes) -> bytes:
    return content


async def _unimplemented(_requests: Any, context: Context) -> None:
    await asyncio.sleep(_REFUSAL_DELAY)
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Unknown method.")


# On the wire a unary request is a stream of one message, so this handler fits every kind.
_UNKNOWN: Final[_Handler] = grpc.stream_stream_rpc_method_handler(_unimplemented)
