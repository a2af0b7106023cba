"""Keys of callers for tests of whole systems."""

from __future__ import annotations

from pathlib import Path

from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role


def key_for(path: Path, role: Role, tenant: str | None = None) -> str:
    key, record = make_key(roles=[role], tenant=tenant, agent=None, now=0.0)
    add_key(path, record)
    return key
