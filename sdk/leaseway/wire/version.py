"""The versions of this package and of its protocol, and the check of a caller's version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from leaseway.wire.errors import Fault, Reason

if TYPE_CHECKING:  # servers in Python need the version, and no protobuf
    from leaseway.v1 import catalog_pb2

PROTOCOL_VERSION = 1
"""The version of the `leaseway.v1` protocol; peers with another version are rejected.

1 is the protocol of the first release. Until then a message, such as `Call`, may change without a
new number, so that only processes of one commit fit together. After it, `make protos` allows only
what earlier peers ignore, and a change of meaning raises this number.
"""

PACKAGE_NAME = "leaseway-python"

try:
    PACKAGE_VERSION = version("leaseway")
except PackageNotFoundError:  # a source tree that was never installed
    PACKAGE_VERSION = "0+unknown"


def user_agent() -> str:
    """Return the package and its version for peers, such as `leaseway-python/0.1.0`."""
    return f"{PACKAGE_NAME}/{PACKAGE_VERSION}"


def check_client_version(client: catalog_pb2.ClientInfo, where: str) -> None:
    """Check a caller's protocol version; a caller that sends none is accepted.

    Args:
        client: The caller, as it identifies itself.
        where: The called process, for the message, such as `this worker`.

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
