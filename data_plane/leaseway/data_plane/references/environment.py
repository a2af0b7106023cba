"""Which environment a server's process gets (DESIGN §2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.spec.model import InheritEnv
from leaseway.wire.secrets.secret_names import looks_secret

_OWN: Final = "LEASEWAY_"
_SET_BY_US: Final = {"GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"}
"""What the command sets for itself: a server's own gRPC is none of our business."""

_MINIMAL: Final = frozenset(
    {
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
    }
)


def child_environment(
    parent: Mapping[str, str], inherit: InheritEnv, wired: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a server's process.

    Args:
        parent: The worker's environment.
        inherit: `safe`: the worker's, less names that look like secrets; `all`: those too;
            `none`: only what programs need to find themselves (PATH, HOME, the locale …).
            Leaseway's own variables are never inherited, nor what it set for itself.
        wired: What the configuration sets, resolved. It wins.
    """
    if inherit == "none":
        inherited = {name: value for name, value in parent.items() if name in _MINIMAL}
    else:
        inherited = {
            name: value
            for name, value in parent.items()
            if not name.startswith(_OWN)
            and _SET_BY_US.get(name) != value
            and (inherit == "all" or not looks_secret(name))
        }
    return {**inherited, **wired}
