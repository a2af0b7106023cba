"""The sink that an address names."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Final, Literal, assert_never, cast, get_args
from urllib.parse import urlsplit

from leaseway.data_plane.audit.sinks.port import Sink
from leaseway.data_plane.audit.sinks.settings import SinkSettings

Scheme = Literal["s3", "nats", "tls"]
SCHEMES: Final[tuple[Scheme, ...]] = get_args(Scheme)
_NATS: Final = ("nats", "tls")
_FORMS: Final = (
    "A sink is s3://BUCKET/FOLDER, or nats://HOST:PORT/STREAM/SUBJECT (tls:// with TLS)."
)
_STREAM: Final = re.compile(
    r"/(?P<stream>[A-Za-z0-9_-]+)/(?P<subject>[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)"
)


def check_address(address: str) -> str:
    """Return an address of a sink, without a slash at its end.

    Raises:
        ValueError: It names no sink, or contains a credential; the text says what to write, and
            does not repeat the address.
    """
    address = address.rstrip("/")
    parts = urlsplit(address)
    is_nats = parts.scheme in _NATS
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError(_FORMS)
    has_port = ":" in parts.netloc and not is_nats
    if "@" in parts.netloc or has_port or parts.query or parts.fragment:
        raise ValueError(
            "A sink's address has no user or parameters, and one of s3:// no port. Credentials and "
            "endpoint come from the environment: LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID, "
            "LEASEWAY_AUDIT_AWS_ENDPOINT_URL, LEASEWAY_AUDIT_NATS_PASSWORD_SECRET …"
        )
    if is_nats and not _STREAM.fullmatch(parts.path):
        raise ValueError(_FORMS)
    _ = parts.port  # raises ValueError if it is none
    return address


def open_sink(address: str, settings: SinkSettings | None = None) -> Sink:
    """Open a sink; nothing is sent yet.

    Args:
        address: Its address.
        settings: Where its settings are; None for the variables of this process alone.

    Raises:
        SinkError: Its library is not installed, or its settings are not valid.
        ValueError: The address names no sink.
    """
    parts = urlsplit(check_address(address))
    settings = settings or SinkSettings(os.environ)
    scheme = cast("Scheme", parts.scheme)  # checked above
    match scheme:
        case "nats" | "tls":
            from leaseway.data_plane.audit.sinks.nats import NatsSink

            found = _STREAM.fullmatch(parts.path)
            assert found is not None
            server = f"{scheme}://{parts.netloc}"
            read = partial(settings.of, "NATS_")
            return NatsSink(server, found["stream"], found["subject"], read)
        case "s3":
            from leaseway.data_plane.audit.sinks.s3 import S3Sink

            return S3Sink(parts.netloc, parts.path.strip("/"), partial(settings.of, "AWS_"))
    assert_never(scheme)
