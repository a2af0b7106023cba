"""Refuses callers that speak another version of the protocol."""

from __future__ import annotations

from leaseway.v1 import catalog_pb2
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

__all__ = ["check_client_version"]


def check_client_version(client: catalog_pb2.ClientInfo, where: str) -> None:
    """Check the version that a caller says it speaks; one that does not say is taken.

    Args:
        client: What it says of itself.
        where: Who was called, for the message, such as `this worker`.

    Raises:
        Fault: INCOMPATIBLE_VERSION.

    """
    if client.protocol_version not in (0, PROTOCOL_VERSION):
        raise Fault(
            Reason.INCOMPATIBLE_VERSION,
            f"The caller speaks protocol version {client.protocol_version}"
            f" ({client.package_version[:128] or 'unknown package'}), {where} {PROTOCOL_VERSION} "
            f"({user_agent()}). Use the same release of both.",
        )
