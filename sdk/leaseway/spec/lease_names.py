"""`${lease}`, `${session}` and `${tenant}` in args, env and cwd of leased servers.

Workers replace them when an instance starts, after all other references. Values are file names:
without separators and `..`, and different for different sessions and tenants, also on disks that
ignore case.

See design.md#configuration.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leaseway.spec.references import references

PRIVATE: Final = "private"
"""The `cwd` of a server whose instances each get a folder of their own."""

LEASE: Final = "lease"
SESSION: Final = "session"
TENANT: Final = "tenant"
NAMES: Final = (LEASE, SESSION, TENANT)

_PLAIN: Final = re.compile(r"[a-z0-9_-]{1,64}")
_ODD: Final = re.compile(r"[^a-z0-9_-]+")
_SHOWN: Final = 24
_RUN: Final = secrets.token_hex(16)
"""Makes names of probes unguessable."""


def names_in(texts: Iterable[str]) -> frozenset[str]:
    """Return which of `NAMES` some texts refer to."""
    return frozenset(name for text in texts for name, _ in references(text) if name in NAMES)


def depth_of_names(path: str) -> int:
    """Return how many parts at the end of a path begin at the first with one of `NAMES`."""
    parts = [part for part in path.split("/") if part]
    named = (index for index, part in enumerate(parts) if names_in([part]))
    return len(parts) - next(named, len(parts))


def shared_part(cwd: str) -> str:
    """Return the part of a `cwd` that all leases share; empty for private folders."""
    if cwd == PRIVATE:
        return ""
    depth = depth_of_names(cwd)
    return "/".join(cwd.rstrip("/").split("/")[:-depth]) if depth else cwd


def marks() -> dict[str, str]:
    """Return what stands for the names until an instance starts: no other value contains NUL."""
    return {name: f"\0{name}\0" for name in NAMES}


def file_name(text: str) -> str:
    """Return a file name for a tenant: itself if it is plain, else with a digest after a dot."""
    if _PLAIN.fullmatch(text):
        return text
    return f"{_shown(text)}.{_digest(text)}"


@dataclass(frozen=True)
class LeaseNames:
    """The values for one instance.

    Attributes:
        lease: A random name, which no other instance has.
        session: A name of the session, the same for each of its leases; different from those of
            all other sessions and tenants.
        tenant: A name of the tenant.
    """

    lease: str
    session: str
    tenant: str

    @staticmethod
    def of(tenant: str, session: str) -> LeaseNames:
        """Return the values for a lease."""
        digest = _digest(f"{len(tenant)} {tenant}{session}")
        return LeaseNames(_random(), f"{_shown(session)}.{digest}", file_name(tenant))

    @staticmethod
    def of_none(variant: str) -> LeaseNames:
        """Return the values for an instance without a lease, such as a probe of a variant.

        No session or tenant has them. They stay the same in this process, so that repeated probes
        leave no more than one file behind.
        """
        name = f"probe.{_digest(f'{_RUN} {variant}')}"
        return LeaseNames(_random(), name, name)

    def fill(self, text: str) -> str:
        """Return a resolved text with its marks replaced."""
        if "\0" not in text:
            return text
        for name, mark in marks().items():
            text = text.replace(mark, getattr(self, name))
        return text


def _random() -> str:
    return secrets.token_hex(16)


def _shown(text: str) -> str:
    return _ODD.sub("_", text.lower())[:_SHOWN] or "_"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
