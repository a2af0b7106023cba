"""The shared key: who may talk to a control plane or worker until tenants exist (DESIGN §10).

A process that knows a key sends it as `authorization: Bearer KEY` with every RPC and refuses
RPCs that come without it. Health checks are exempt, so that an orchestrator needs no secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import grpc

from leaseway.wire.endpoint import Endpoint
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.redaction import hide
from leaseway.wire.status import abort

KEY_VARIABLE: Final = "LEASEWAY_KEY"
"""The environment variable that holds the shared key."""

_HEADER: Final = "authorization"
_HEALTH: Final = "/grpc.health.v1.Health/"


def read_key(environment: Mapping[str, str]) -> str | None:
    """Return the shared key of an environment, or None where it is unset or empty.

    From then on no log line of this process shows it.

    Raises:
        ValueError: The key holds what an HTTP header cannot; the message never shows it.

    """
    key = environment.get(KEY_VARIABLE, "")
    if not key:
        return None
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(
            f"{KEY_VARIABLE} may only hold visible ASCII characters without spaces; "
            f"make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    hide((key,), KEY_VARIABLE)
    return key


def bearer_metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the gRPC metadata that proves knowledge of the key; empty without one."""
    return ((_HEADER, f"Bearer {key}"),) if key else ()


def check_listen(endpoint: Endpoint, key: str | None) -> None:
    """Refuse to listen where other machines can reach an unprotected service.

    Raises:
        ValueError: The address is not loopback and there is no key.

    """
    if key is None and not endpoint.is_loopback:
        raise ValueError(
            f"Listening on {endpoint} would let other machines in without a credential. "
            f"Set {KEY_VARIABLE} to a shared key, or listen on 127.0.0.1:{endpoint.port}."
        )


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses RPCs that do not carry the shared key."""

    def __init__(self, key: str) -> None:
        self._expected = f"Bearer {key}".encode()

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Pass an RPC on, or answer it with UNAUTHENTICATED."""
        if handler_call_details.method.startswith(_HEALTH) or self._knows_key(handler_call_details):
            return await continuation(handler_call_details)
        return _REFUSAL if _given(handler_call_details) is None else _WRONG

    def _knows_key(self, details: grpc.HandlerCallDetails) -> bool:
        given = _given(details)
        return given is not None and hmac.compare_digest(given, self._expected)


def _given(details: grpc.HandlerCallDetails) -> bytes | None:
    """Return the credential that an RPC carries, or None."""
    for name, value in details.invocation_metadata or ():
        if name == _HEADER:
            return value.encode() if isinstance(value, str) else value
    return None


def _refusing(what: str) -> grpc.RpcMethodHandler[Any, Any]:
    fault = Fault(
        Reason.UNAUTHENTICATED,
        f"{what} Set {KEY_VARIABLE} to the key that it was started with.",
    )

    async def refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, fault)

    # One handler refuses every kind of RPC: on the wire a unary request is a stream of one
    # message, and the refusal reads none of it.
    return grpc.stream_stream_rpc_method_handler(refuse)


_REFUSAL: Final = _refusing("This address wants a shared key.")
_WRONG: Final = _refusing("The key that was sent is not the one that this address wants.")
