"""The one hook of each gRPC server: who calls, may they, and for which tenant.

`caller()` is who sent the RPC that is being served. Streams are cut off when their credential is
revoked or expires.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import grpc

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.principal import LOOPBACK, Principal
from leaseway.identity.rules import HEALTH, authorize, scope_request
from leaseway.wire.errors import Fault
from leaseway.wire.status import abort

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_PACKAGE: Final = "/leaseway.v1."
_caller: Final[ContextVar[Principal]] = ContextVar("leaseway-caller", default=LOOPBACK)


def caller() -> Principal:
    """Return who sent the RPC that is being served; everybody is `LOOPBACK` without credentials."""
    return _caller.get()


class IdentityInterceptor(grpc.aio.ServerInterceptor):
    """Refuses RPCs whose sender is not known or may not send them."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._handlers: dict[str, tuple[_Handler, _Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Put the check in front of an RPC's handler."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(HEALTH):
            return handler
        if handler is None:  # nobody learns which RPCs there are without a credential
            return self._checked(method, _UNKNOWN)
        known, checked = self._handlers.get(method, (None, None))
        if known is not handler or checked is None:  # gRPC asks for each RPC anew
            checked = self._checked(method, handler)
            self._handlers[method] = handler, checked
        return checked

    def _checked(self, method: str, handler: _Handler) -> _Handler:
        make, behaviour = _kind(handler)
        one_request = not handler.request_streaming

        if handler.response_streaming:

            async def checked(request: Any, context: Context) -> Any:
                await self._stream(method, behaviour, one_request, request, context)

        else:

            async def checked(request: Any, context: Context) -> Any:
                authorization, certificate = credentials_of(context)
                try:
                    who = await self._admit(
                        method,
                        authorization,
                        certificate,
                        request if one_request else None,
                        context,
                    )
                except Fault as fault:
                    await abort(context, fault)
                _caller.set(who)
                return await behaviour(request, context)

        wrapped: _Handler = make(
            checked,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped

    async def _stream(
        self, method: str, behaviour: Behaviour, one_request: bool, request: Any, context: Context
    ) -> None:
        authorization, certificate = credentials_of(context)
        known = method if behaviour is not _unimplemented else ""
        try:
            who = await self._admit(
                known, authorization, certificate, request if one_request else None, context
            )
        except Fault as fault:
            await abort(context, fault)
        _caller.set(who)
        with self._authenticator.watch(authorization, certificate, who) as no_longer:
            serving = asyncio.ensure_future(_served(behaviour, request, context))
            try:
                ends: set[asyncio.Future[Any]] = {serving, no_longer}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not serving.done():
                    serving.cancel()
                    await asyncio.wait({serving})
                    if not serving.cancelled():
                        serving.exception()  # nobody is there to be told: the peer hung up
            if no_longer.done() and serving.cancelled():
                await abort(context, no_longer.result())
            await serving

    async def _admit(
        self,
        method: str,
        authorization: str | None,
        certificate: bytes | None,
        request: Any,
        context: Context,
    ) -> Principal:
        """Return who sends an RPC, and may; `method` is empty for one that there is not.

        Raises:
            Fault: It may not, which is noted.
        """
        by = ""
        try:
            who = await self._authenticator.principal(authorization, certificate)
            by = who.name
            if method:
                rule = authorize(who, method)
                if request is not None:
                    scope_request(who, rule, request)
        except Fault as fault:
            rpc = method.removeprefix(_PACKAGE)
            self._authenticator.refusals.note(rpc, by, str(context.peer()), fault)
            raise
        return who


def identity_interceptors(authenticator: Authenticator) -> tuple[IdentityInterceptor, ...]:
    """Return what a server is made with; where everybody may do everything, nothing."""
    return () if authenticator.checks_nobody else (IdentityInterceptor(authenticator),)


async def _served(behaviour: Behaviour, request: Any, context: Context) -> None:
    """Run a handler that streams, whichever way it is written."""
    if inspect.isasyncgenfunction(behaviour):
        async for response in behaviour(request, context):
            await context.write(response)
    else:
        await behaviour(request, context)


def credentials_of(context: Context) -> tuple[str | None, bytes | None]:
    """Return the `authorization` header and the client certificate of an RPC."""
    authorization = None
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            authorization = value if isinstance(value, str) else value.decode(errors="replace")
            break
    certificates = context.auth_context().get("x509_pem_cert", ())
    return authorization, next(iter(certificates), None)


def _kind(handler: Any) -> tuple[Callable[..., Any], Behaviour]:
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
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "There is no such method.")


# On the wire a unary request is a stream of one message: this one handler answers every kind.
_UNKNOWN: Final[_Handler] = grpc.stream_stream_rpc_method_handler(_unimplemented)
