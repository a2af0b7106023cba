"""Who a client is, and how it opens channels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from leaseway.sdk.validation import check_key, check_tenant, check_text, checked_token
from leaseway.v1 import catalog_pb2
from leaseway.wire.channels.auth import (
    KEY_VARIABLE,
    CredentialFile,
    bearer_metadata,
    key_path,
    read_key,
)
from leaseway.wire.channels.endpoint import ADDRESS_VARIABLE, DEFAULT_ADDRESS, parse_endpoints
from leaseway.wire.channels.tls import Tls, read_client_tls
from leaseway.wire.version import PROTOCOL_VERSION, user_agent


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
        key_file: The file of the key, which may change, instead of `key`; or None.
    """

    address: str
    agent: str
    tenant: str
    key: str | None
    user: str = ""
    subject_token: str = ""
    key_file: CredentialFile | None = None

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

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of every RPC that begins now."""
        file = self.key_file
        return self._metadata if file is None else bearer_metadata(file.current())

    @cached_property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return bearer_metadata(self.key)

    @property
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
    key: str | os.PathLike[str] | None,
    user: str | None = None,
    subject_token: str | None = None,
) -> ClientIdentity:
    """Return an identity; missing values are read from the environment.

    Raises:
        ValueError: The address is not HOST:PORT, or the key cannot be sent, or not be read.
        TypeError: One of them is not a string.
        InvalidRequest: The agent, tenant or user is too long or has control characters.
    """
    path = Path(key) if isinstance(key, os.PathLike) else None
    given = {"address": address, "agent": agent, "tenant": tenant, "user": user}
    if path is None:
        given["key"] = None if key is None else cast("str", key)
    for parameter, value in given.items():
        if value is not None:
            check_text(parameter, value)
    check_key("agent", agent or "")
    check_key("user", user or "")
    check_tenant(tenant or "")
    chosen = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    if key is None:
        path = key_path(os.environ)
    named = {KEY_VARIABLE: key} if isinstance(key, str) else os.environ
    return ClientIdentity(
        address=str(parse_endpoints(chosen)),
        agent=agent or "",
        tenant=tenant or "",
        key=read_key(named) if path is None else None,
        user=user or "",
        subject_token=checked_token(subject_token),
        key_file=None if path is None else CredentialFile(path),
    )
