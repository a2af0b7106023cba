"""The gRPC interceptor that authenticates and authorizes every RPC, and sets its tenant.

`caller()` is the principal of the current RPC. Streams are aborted when their credential is revoked
or expires.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import grpc

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.principal import CREDENTIAL, LOOPBACK, Principal
from leaseway.identity.rules import HEALTH, authorize, scope_request
from leaseway.wire.errors import Fault
from leaseway.wire.status import abort

Context = grpc.aio.ServicerContext[Any, Any]
RpcBehaviour = Callable[[Any, Context], Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_PACKAGE: Final = "/leaseway.v1."
_caller: Final[ContextVar[Principal]] = ContextVar("leaseway-caller", default=LOOPBACK)


def caller() -> Principal:
    """Return the principal of the current RPC; `LOOPBACK` if no credentials are configured."""
    return _caller.get()


class IdentityInterceptor(grpc.aio.ServerInterceptor):
    """Refuses RPCs without a valid credential or an allowed role."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._handlers: dict[str, tuple[_Handler, _Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Wrap the handler of an RPC in the check."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(HEALTH):
            return handler
        if handler is None:  # do not reveal unknown RPCs without a credential
            return self._checked(method, _UNKNOWN)
        known, checked = self._handlers.get(method, (None, None))
        if known is not handler or checked is None:  # gRPC calls this for each RPC
            checked = self._checked(method, handler)
            self._handlers[method] = handler, checked
        return checked

    def _checked(self, method: str, handler: _Handler) -> _Handler:
        make_handler, behaviour = _kind(handler)
        one_request = not handler.request_streaming

        if handler.response_streaming:

            async def checked(request: Any, context: Context) -> Any:
                await self._stream(method, behaviour, one_request, request, context)

        else:

            async def checked(request: Any, context: Context) -> Any:
                authorization, certificate = self._credentials(context)
                try:
                    principal = await self._authorize(
                        method,
                        authorization,
                        certificate,
                        request if one_request else None,
                        context,
                    )
                except Fault as fault:
                    await abort(context, fault)
                _caller.set(principal)
                return await behaviour(request, context)

        wrapped: _Handler = make_handler(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped

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

    async def _stream(
        self,
        method: str,
        behaviour: RpcBehaviour,
        one_request: bool,
        request: Any,
        context: Context,
    ) -> None:
        authorization, certificate = self._credentials(context)
        known_method = method if behaviour is not _unimplemented else ""
        try:
            principal = await self._authorize(
                known_method, authorization, certificate, request if one_request else None, context
            )
        except Fault as fault:
            await abort(context, fault)
        _caller.set(principal)
        with self._authenticator.watch(authorization, certificate, principal) as revoked:
            serving = asyncio.ensure_future(_run_streaming(behaviour, request, context))
            try:
                ends: set[asyncio.Future[Any]] = {serving, revoked}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not serving.done():
                    serving.cancel()
                    await asyncio.wait({serving})
                if not serving.cancelled():
                    serving.exception()  # retrieve it, or asyncio logs it; the peer disconnected
            if revoked.done() and serving.cancelled():
                await abort(context, revoked.result())
            await serving

    async def _authorize(
        self,
        method: str,
        authorization: str | None,
        certificate: bytes | None,
        request: Any,
        context: Context,
    ) -> Principal:
        """Return the principal of an RPC; `method` is empty for an unknown RPC.

        Raises:
            Fault: The RPC is refused, which is recorded.
        """
        name = ""
        try:
            principal = await self._authenticator.principal(authorization, certificate)
            name = principal.name
            if method:
                rule = authorize(principal, method)
                if request is not None:
                    scope_request(principal, rule, request)
        except Fault as fault:
            rpc = method.removeprefix(_PACKAGE)
            by = name or fault.metadata.get(CREDENTIAL, "")
            self._authenticator.refusals.record(rpc, by, str(context.peer()), fault)
            raise
        return principal


def identity_interceptors(authenticator: Authenticator) -> tuple[IdentityInterceptor, ...]:
    """Return the interceptors of a server: none if all senders may send all RPCs."""
    return () if authenticator.allows_all else (IdentityInterceptor(authenticator),)


async def _run_streaming(behaviour: RpcBehaviour, request: Any, context: Context) -> None:
    """Run a streaming handler: an asynchronous generator, or a coroutine that writes."""
    if inspect.isasyncgenfunction(behaviour):
        async for response in behaviour(request, context):
            await context.write(response)
    else:
        await behaviour(request, context)


def _kind(handler: Any) -> tuple[Callable[..., Any], RpcBehaviour]:
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler, handler.unary_unary
        case False, True:
            return grpc.unary_stream_rpc_method_handler, handler.unary_stream
        case True, False:
            return grpc.stream_unary_rpc_method_handler, handler.stream_unary
        case _:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream


async def _unimplemented(_requests: Any, context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Unknown method.")


# On the wire a unary request is a stream of one message, so this handler fits every kind.
_UNKNOWN: Final[_Handler] = grpc.stream_stream_rpc_method_handler(_unimplemented)
