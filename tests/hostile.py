"""Requests of a malicious caller, built from the descriptors of services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

TEXTS: Final = ("", "guessed-1", "x" * 70_000, "\x1b]0;t\x07\n../\u202e")
LARGEST: Final = {
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_BOOL: True,
}


def methods_of(services: Iterable[Any]) -> Mapping[str, Any]:
    """Return every RPC of some services by its path."""
    return {
        f"/{service.full_name}/{method.name}": method
        for service in services
        for method in service.methods
    }


def request_of(method: Any) -> Any:
    """Return the empty request of an RPC."""
    return message_factory.GetMessageClass(method.input_type)()


def hostile(method: Any, text: str, **known: str) -> Any:
    """Return a request with a text in all string fields and the largest value in all number fields.

    Args:
        method: The RPC.
        text: The text.
        known: Values of some fields by name, so that the request passes the first checks.
    """
    request = request_of(method)
    _fill(request, text, known)
    return request


def _fill(message: Any, text: str, known: Mapping[str, str]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            plain = known.get(field.name, text)
            value: Any = plain if field.type == FieldDescriptor.TYPE_STRING else plain.encode()
        elif field.cpp_type in LARGEST and field.type != FieldDescriptor.TYPE_ENUM:
            value = LARGEST[field.cpp_type]
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            if _is_filled(field):
                part = getattr(message, field.name)
                _fill(part.add() if field.is_repeated else part, text, known)
            continue
        else:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend([value] * 3)
        else:
            setattr(message, field.name, value)


def _is_filled(field: Any) -> bool:
    """Return whether to fill a nested message; an unknown client version is rejected at once."""
    kind = field.message_type
    own = kind.file.package == "leaseway.v1" or kind.full_name == "google.protobuf.Duration"
    return own and not kind.GetOptions().map_entry and field.name != "client"


def calling(channel: Any, full: str, method: Any, request: Any, **how: Any) -> Any:
    """Send one request of an RPC; return the call."""
    response = message_factory.GetMessageClass(method.output_type)
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    make = kinds[method.client_streaming, method.server_streaming]
    rpc = make(
        full,
        request_serializer=type(request).SerializeToString,
        response_deserializer=response.FromString,
    )
    return rpc(iter([request]) if method.client_streaming else request, **how)
