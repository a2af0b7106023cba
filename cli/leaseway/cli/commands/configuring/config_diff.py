"""The changes that a reload would make to the running servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leaseway.spec.model import ServerSpec, VariantKey

if TYPE_CHECKING:
    from leaseway.control_plane.config.schema.issues import ParsedConfig
    from leaseway.sdk import ServerInfo

_EFFECTS: Final[Mapping[str, str]] = {
    "added": "a worker probes it, then its tools are listed",
    "hidden": "this tenant no longer sees it; its leases end when its calls are done",
    "removed": "new calls are rejected at once; leases end when their calls are done",
    "launch": "a worker probes it, then new calls and leases use it; old leases drain",
    "exposure": "tools and settings change at once; no process is restarted",
    "rejected": "its entry has an error: it stays as it is",
    "same": "",
}

_NOT_RUNNING: Final = "its entry has an error: it does not run until that is fixed"
_COMMON_VARIANT: Final = "new calls of this tenant use the common variant; old leases end"

CHANGED: Final = frozenset({"added", "hidden", "removed", "launch", "exposure"})
"""The values of `change` that change a server; the others leave it as it is."""


@dataclass(frozen=True)
class VariantChange:
    """The change of one variant of a server.

    Attributes:
        server: The server's id.
        tenant: The tenant of the variant, or empty for the common one.
        change: `added`, `removed`, `hidden`, `launch`, `exposure`, `rejected` or `same`.
        effect: The consequence in words; empty for none.
    """

    server: str
    tenant: str
    change: str
    effect: str


def changes_to(running: Iterable[ServerInfo], parsed: ParsedConfig) -> list[VariantChange]:
    """Return the change of each variant, sorted by server id and tenant.

    Args:
        running: All running variants, of all tenants.
        parsed: The configuration that would be loaded.
    """
    before = {
        VariantKey(server.id, server.tenant): server for server in running if server.launch_hash
    }
    changes = []
    refused = {*parsed.refused, *(VariantKey(server_id) for server_id in parsed.rejected)}
    for key in sorted({*before, *parsed.servers, *refused}):
        change = _change(key, parsed, before.get(key))
        common = parsed.servers.get(VariantKey(key.server_id))
        replaced = change == "removed" and key.tenant and common is not None
        effect = _COMMON_VARIANT if replaced else _EFFECTS[change]
        if change == "rejected" and key not in before:
            effect = _NOT_RUNNING
        changes.append(VariantChange(key.server_id, key.tenant, change, effect))
    return changes


def _change(key: VariantKey, parsed: ParsedConfig, running: ServerInfo | None) -> str:
    spec: ServerSpec | None = parsed.servers.get(key)
    if spec is None:
        kept = key.server_id in parsed.rejected or key in parsed.refused
        return "rejected" if kept else "removed"
    if running is not None:
        # The serving version may be older than the loaded one, which is starting or has failed.
        if spec.launch_hash == (running.wanted_launch_hash or running.launch_hash):
            return "same" if running.exposure_hash == spec.exposure_hash else "exposure"
        if spec.launch_hash == running.launch_hash:
            return "exposure"  # cancels that start
    if spec.hidden:
        return "hidden"
    return "added" if running is None else "launch"
