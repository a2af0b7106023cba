"""The environment of a server's process (design.md#configuration). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from leaseway.spec.model import InheritEnv
from leaseway.wire.grpc_environment import OF_COMMANDS, OF_EVERY_PROGRAM
from leaseway.wire.secrets.secret_names import looks_secret

_OWN_PREFIX: Final = "LEASEWAY_"
_OWN_GRPC: Final = {**OF_EVERY_PROGRAM, **OF_COMMANDS}
"""Variables that the command line sets for its own gRPC, not for that of servers."""

_MINIMAL: Final = frozenset(
    (
        *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR"),
        *("TZ", "USER"),
    )
)


def child_environment(
    parent: Mapping[str, str], inherit: InheritEnv, configured: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a server's process.

    Args:
        parent: The worker's environment.
        inherit: `safe`: the worker's environment without names that look like secrets; `all`: with
            them; `none`: only what programs need to run (PATH, HOME, the locale …). Leaseway's
            own variables are never inherited.
        configured: The variables of the configuration, resolved; they win.
    """
    theirs = {
        name: value
        for name, value in parent.items()
        if not name.startswith(_OWN_PREFIX) and _OWN_GRPC.get(name) != value
    }
    match inherit:
        case "none":
            inherited = {name: value for name, value in parent.items() if name in _MINIMAL}
        case "safe":
            inherited = {name: value for name, value in theirs.items() if not looks_secret(name)}
        case "all":
            inherited = theirs
        case _:
            assert_never(inherit)
    return {**inherited, **configured}
