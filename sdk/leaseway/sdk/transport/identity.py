"""Who a client is, and how it opens channels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from leaseway.sdk.validation import check_key, check_tenant, check_text, checked_token
from leaseway.v1 import catalog_pb2
from leaseway.wire.channels.auth import bearer_metadata, read_key
from leaseway.wire.channels.endpoint import DEFAULT_ADDRESS, parse_endpoints
from leaseway.wire.channels.tls import Tls, read_client_tls
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

ADDRESS_VARIABLE = "LEASEWAY_ADDRESS"
"""The environment variable with the address of the control plane."""


@dataclass(frozen=True)
class ClientIdentity:
    """The client's names and credential, and the control plane's address.

    Attributes:
        address: The control plane as HOST:PORT, or several, separated by commas.
        agent: The agent of the tenant; empty means unnamed.
        tenant: The tenant; empty means the default one.
        key: The shared key, or None.
        user: The tenant's user for whom it calls; empty means none, or that of the key.
        subject_token: The token of whoever it calls for, or empty.
    """

    address: str
    agent: str
    tenant: str
    key: str | None
    user: str = ""
    subject_token: str = ""

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the control planes, one of which leads."""
        return tuple(self.address.split(","))

    @cached_property
    def tls(self) -> Tls:
        """The certificate files: those of the first use, also if the process changes its folder.

        Raises:
            ValueError: They cannot be used, or the variables that name them contradict each other.
        """
        return read_client_tls()

    @cached_property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of every RPC."""
        return bearer_metadata(self.key)

    @cached_property
    def authorization(self) -> str | None:
        """The credential as in a header of that name, or None."""
        return dict(self.metadata).get("authorization")

    @cached_property
    def client_info(self) -> catalog_pb2.ClientInfo:
        """The client as it identifies itself to the planes."""
        return catalog_pb2.ClientInfo(
            protocol_version=PROTOCOL_VERSION, package_version=user_agent(), agent=self.agent
        )

    def client_info_for(self, user: str) -> catalog_pb2.ClientInfo:
        """Return the same for a user, or for none if the name is empty."""
        if not user:
            return self.client_info
        info = catalog_pb2.ClientInfo(user=user)
        info.MergeFrom(self.client_info)
        return info

    def __repr__(self) -> str:
        return f"ClientIdentity({self.address!r}, agent={self.agent!r}, tenant={self.tenant!r})"


def identify(
    address: str | None,
    agent: str | None,
    tenant: str | None,
    key: str | None,
    user: str | None = None,
    subject_token: str | None = None,
) -> ClientIdentity:
    """Return an identity; missing values are read from the environment.

    Raises:
        ValueError: The address is not HOST:PORT, or the key cannot be sent.
        TypeError: One of them is not a string.
        InvalidRequest: The agent, tenant or user is too long or has control characters.
    """
    given = {"address": address, "agent": agent, "tenant": tenant, "key": key, "user": user}
    for parameter, value in given.items():
        if value is not None:
            check_text(parameter, value)
    check_key("agent", agent or "")
    check_key("user", user or "")
    check_tenant(tenant or "")
    chosen = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    shared = read_key({"LEASEWAY_KEY": key}) if key is not None else read_key(os.environ)
    return ClientIdentity(
        address=str(parse_endpoints(chosen)),
        agent=agent or "",
        tenant=tenant or "",
        key=shared,
        user=user or "",
        subject_token=checked_token(subject_token),
    )
