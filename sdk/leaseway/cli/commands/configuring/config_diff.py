"""What a reload would do, from a parsed configuration and the servers that run. Pure."""

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
    "hidden": "this tenant does not see it any more; its leases end once its calls are done",
    "removed": "new calls are refused at once; leases end once their calls are done",
    "launch": "a worker probes it, then new calls and leases use it; old leases drain",
    "exposure": "tools and settings change at once; no process is touched",
    "rejected": "its entry has an error: it stays as it is",
    "same": "",
}

_LEFT_OUT: Final = "its entry has an error: it does not run, and will not until that is mended"
_COMMON_INSTEAD: Final = "new calls of this tenant get the common variant; old leases end"

CHANGED: Final = frozenset({"added", "hidden", "removed", "launch", "exposure"})
"""The changes that are one; the others leave a server as it is."""


@dataclass(frozen=True)
class Change:
    """What a reload would do to one variant.

    Attributes:
        server: The server's id.
        tenant: Whose variant it is, or empty for the common one.
        change: `added`, `removed`, `hidden`, `launch`, `exposure`, `rejected` or `same`.
        effect: What follows, in words; empty for nothing.
    """

    server: str
    tenant: str
    change: str
    effect: str


def compared(parsed: ParsedConfig, running: Iterable[ServerInfo]) -> list[Change]:
    """Return what a reload would do to each variant, by server id and tenant.

    Args:
        parsed: The configuration that would be read.
        running: Every variant that runs, of all tenants.
    """
    before = {VariantKey(one.id, one.tenant): one for one in running if one.launch_hash}
    changes = []
    refused = {*parsed.refused, *(VariantKey(server_id) for server_id in parsed.rejected)}
    for key in sorted({*before, *parsed.servers, *refused}):
        change = _change(key, parsed, before.get(key))
        common = parsed.servers.get(VariantKey(key.server_id))
        replaced = change == "removed" and key.tenant and common is not None
        effect = _COMMON_INSTEAD if replaced else _EFFECTS[change]
        if change == "rejected" and key not in before:
            effect = _LEFT_OUT
        changes.append(Change(key.server_id, key.tenant, change, effect))
    return changes


def _change(key: VariantKey, parsed: ParsedConfig, running: ServerInfo | None) -> str:
    spec: ServerSpec | None = parsed.servers.get(key)
    if spec is None:
        kept = key.server_id in parsed.rejected or key in parsed.refused
        return "rejected" if kept else "removed"
    if running is not None:
        # What serves may be older than what was read last, which is being tried or has failed.
        if spec.launch_hash == (running.wanted_launch_hash or running.launch_hash):
            return "same" if running.exposure_hash == spec.exposure_hash else "exposure"
        if spec.launch_hash == running.launch_hash:
            return "exposure"  # that try is taken back
    if spec.hidden:
        return "hidden"
    return "added" if running is None else "launch"
