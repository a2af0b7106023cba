"""How each limit is held on this machine, and what operators are told of it (DESIGN §2). Pure.

A cgroup holds memory, CPU and processes for an instance's whole tree. Where there is none,
resource limits of the process stand in, which are weaker; CPU time has no stand-in.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leaseway.data_plane.core.problems import LIMIT_NOT_ENFORCED, LIMIT_PARTLY_ENFORCED
from leaseway.spec.model import Limits
from leaseway.wire.bounds import MIB

_ADVICE: Final = (
    "Give the worker a cgroup that it may write (systemd: Delegate=yes; a container: a writable"
    " /sys/fs/cgroup), or remove the limit."
)
_CAP_SYS_ADMIN: Final = 1 << 21
_CAP_SYS_RESOURCE: Final = 1 << 24


@dataclass(frozen=True)
class KernelLimits:
    """What the kernel does with resource limits of this worker's children.

    Attributes:
        bounds_data: It holds a process's private memory (RLIMIT_DATA); Linux does.
        bounds_tasks: It holds the number of a user's processes; not for privileged ones.
    """

    bounds_data: bool
    bounds_tasks: bool


@dataclass(frozen=True)
class LimitPlan:
    """What is done for an instance's limits.

    Attributes:
        steps: What the launcher does, in order.
        warnings: (reason, sentence) of each reason that there is; the sentence goes on from
            "On worker W, server S".
    """

    steps: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()


def plan_limits(
    limits: Limits, entrances: Collection[Path], missing: Mapping[str, str], host: KernelLimits
) -> LimitPlan:
    """Decide how limits are held.

    Args:
        limits: As configured.
        entrances: The process files of the cgroups that were made.
        missing: Why a cgroup does not hold a limit, by its key.
        host: What resource limits do here.
    """
    steps = [f"join={path}" for path in entrances]
    said: dict[str, list[str]] = {}
    for key, why in missing.items():
        step, reason, text = _stand_in(key, limits, host)
        steps += [step] if step else []
        said.setdefault(reason, []).append(f"limits.{key} ({_shown(key, limits)}) {text}: {why}")
    if limits.open_files is not None:
        steps.append(f"nofile={limits.open_files}")  # last: the other steps open files
    warnings = tuple((reason, f"{'; '.join(texts)}. {_ADVICE}") for reason, texts in said.items())
    return LimitPlan(tuple(steps), warnings)


def this_host() -> KernelLimits:
    """Look at the worker's own rights."""
    linux = sys.platform.startswith("linux")
    return KernelLimits(bounds_data=linux, bounds_tasks=not linux or not _is_privileged())


def _stand_in(key: str, limits: Limits, host: KernelLimits) -> tuple[str, str, str]:
    """Return the launcher's step or nothing, the reason, and how far the limit holds."""
    if key == "memory" and host.bounds_data:
        text = "holds for each process of its own, not for all of them together"
        return f"data={limits.memory_bytes}", LIMIT_PARTLY_ENFORCED, text
    if key == "processes" and host.bounds_tasks:
        text = "holds roughly: the kernel counts all processes and threads of the worker's user"
        return f"nproc={limits.processes}", LIMIT_PARTLY_ENFORCED, text
    return "", LIMIT_NOT_ENFORCED, "is not enforced"


def _shown(key: str, limits: Limits) -> str:
    if key == "memory":
        return f"{(limits.memory_bytes or 0) / MIB:g} MiB"
    return f"{limits.cpu_cores:g}" if key == "cpu" else str(limits.processes)


def _is_privileged() -> bool:
    """Return whether the kernel exempts this process from the limit on a user's processes."""
    fields = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    status = {name: value.split() for name, _, value in fields}
    is_root = status["Uid"][0] == "0"
    rights = int(status["CapEff"][0], 16)
    return is_root or bool(rights & (_CAP_SYS_ADMIN | _CAP_SYS_RESOURCE))
