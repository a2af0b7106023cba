"""What holds the processes of an instance: limits and a sandbox (docs/security.md). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leaseway.spec.keys import Choice, Flag, Key, Number, OwnReader, Size, Whole, setting
from leaseway.wire import bounds

MAX_MEMORY: Final = 1024**5
MAX_FILES: Final = 1_048_576
"""The highest limits of an instance."""

BASIC: Final = "basic"
STRICT: Final = "strict"
"""Levels of a sandbox."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of one instance's processes; None means unlimited."""

    memory_bytes: int | None = setting(
        None, Key(Size(bounds.MIB, MAX_MEMORY), "Memory of its processes together.", name="memory")
    )
    cpu_cores: float | None = setting(
        None, Key(Number(0.01, 1_024), "Cores that its processes may use.", name="cpu")
    )
    open_files: int | None = setting(None, Key(Whole(1, MAX_FILES), "Open files of each process."))
    processes: int | None = setting(None, Key(Whole(1, MAX_FILES), "Processes and threads."))


NO_LIMITS: Final = Limits()


@dataclass(frozen=True)
class Sandbox:
    """What a sandboxed instance may access; `strict` is the stronger of two levels."""

    enabled: bool = False
    network: bool = setting(False, Key(Flag(), "Whether its process has the network."))
    writable_paths: tuple[str, ...] = setting(
        (),
        Key(OwnReader(), "Folders that its process may write to, absolute.", name="writable"),
    )
    strict: bool = setting(
        False,
        Key(
            Choice((BASIC, STRICT)),
            "How much is blocked: [the levels](security.md#what-holds-a-server).",
            name="level",
            default=f"`{BASIC}`",
        ),
    )


NO_SANDBOX: Final = Sandbox()
