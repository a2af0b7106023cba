"""The sink that an address names."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from leaseway.data_plane.audit.sinks.port import Sink

SCHEMES: Final = ("s3",)


def check_address(address: str) -> str:
    """Return an address of a sink, without a slash at its end.

    Raises:
        ValueError: It names no sink, or contains a credential; the text says what to write.
    """
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ValueError("A sink is s3://BUCKET or s3://BUCKET/FOLDER.")
    if "@" in parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "A sink's address has no user, port or parameters. Credentials and endpoint come from "
            "the environment: LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID, LEASEWAY_AUDIT_AWS_ENDPOINT_URL …"
        )
    return address.rstrip("/")


def open_sink(address: str) -> Sink:
    """Open a sink; nothing is sent yet.

    Raises:
        SinkError: Its library is not installed, or its settings are not valid.
        ValueError: The address names no sink.
    """
    parts = urlsplit(check_address(address))
    from leaseway.data_plane.audit.sinks.s3 import S3Sink

    return S3Sink(parts.netloc, parts.path.strip("/"))
