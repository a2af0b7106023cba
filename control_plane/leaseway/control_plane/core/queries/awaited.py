"""Which servers somebody waits for who has asked for a name that nobody has yet.

Their probes come first. What a server lists is not known before, but its id and its transforms say
which names it may have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, assert_never

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.spec.model import Transform, VariantKey
from leaseway.wire.names import split_qualified

_ALTERED: Final = re.compile("_[0-9a-f]{8}$")
"""The end of names that are too long with their suffix, or that others want, too."""
_MAX_AWAITED: Final = 16
"""Servers that may have a name; of a name that more may have, nothing is known."""


def find_awaited(
    state: Coordinator, tenant: str, name: str, server_id: str = ""
) -> Sequence[VariantKey]:
    """Return the pending variants that may have a name; none if too many may have it.

    Args:
        name: An exposed or qualified name, or a URI.
        server_id: The only server that may have it; empty for any.
    """
    variants = state.servers.variants_of(tenant)
    split = split_qualified(name)
    only = server_id or (split[0] if split is not None else "")
    if only in variants:
        return [variants[only]]
    desired = state.servers.desired or {}
    found: list[VariantKey] = []
    for pending in state.pending.of(tenant):
        spec = desired.get(variants[pending])
        if spec is not None and may_result(spec.transforms, name):
            found.append(spec.key)
            if len(found) > _MAX_AWAITED:
                return []
    return found


def may_result(transforms: Sequence[Transform], name: str) -> bool:
    """Return whether some original name may become this one, as far as that is easy to see."""
    for step in reversed(transforms):
        match step.kind:
            case "replace":
                return True
            case "suffix":
                if not name.endswith(step.add):
                    return _ALTERED.search(name) is not None
                name = name.removesuffix(step.add)
            case "prefix":
                if not name.startswith(step.add):
                    return False
                if step.remove:
                    return True  # the original name may or may not have had it
                name = name.removeprefix(step.add)
            case _:
                assert_never(step.kind)
    return bool(name)
