"""Chooses how to enforce each limit on this machine, and reports gaps. Pure.

A cgroup limits memory, CPU and processes of an instance's whole process tree. Without a cgroup,
resource limits of the process (setrlimit) are the fallback, which is weaker; CPU has no fallback.

See design.md#configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leaseway.data_plane.core.problems import LIMIT_NOT_ENFORCED, LIMIT_PARTLY_ENFORCED
from leaseway.spec.kinds.confinement import Limits
from leaseway.wire.bounds import MIB

_ADVICE: Final = (
    "Give the worker a writable cgroup (systemd: Delegate=yes; a container: a writable"
    " /sys/fs/cgroup), or remove the limit."
)
_CAP_SYS_ADMIN: Final = 1 << 21
_CAP_SYS_RESOURCE: Final = 1 << 24


@dataclass(frozen=True)
class KernelLimits:
    """Which resource limits the kernel applies to this worker's children.

    Attributes:
        bounds_data: RLIMIT_DATA limits a process's private memory, as on Linux.
        bounds_tasks: RLIMIT_NPROC limits the user's processes; not for privileged workers.
    """

    bounds_data: bool
    bounds_tasks: bool


@dataclass(frozen=True)
class LimitPlan:
    """How an instance's limits are enforced.

    Attributes:
        steps: The launcher's steps, in order.
        warnings: (reason, sentence); the sentence follows "On worker W, server S".
    """

    steps: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()


def plan_limits(
    limits: Limits, procs_files: Collection[Path], missing: Mapping[str, str], host: KernelLimits
) -> LimitPlan:
    """Decide how limits are enforced.

    Args:
        limits: As configured.
        procs_files: The `cgroup.procs` files of the cgroups that were created.
        missing: Why a limit has no cgroup, by its key.
        host: The kernel's resource limits.
    """
    steps = [f"join={path}" for path in procs_files]
    texts: dict[str, list[str]] = {}
    for key, cause in missing.items():
        step, reason, effect = _fallback(key, limits, host)
        steps += [step] if step else []
        texts.setdefault(reason, []).append(
            f"limits.{key} ({_format(key, limits)}) {effect}: {cause}"
        )
    if limits.open_files is not None:
        steps.append(f"nofile={limits.open_files}")  # last: the other steps open files
    warnings = tuple((reason, f"{'; '.join(lacks)}. {_ADVICE}") for reason, lacks in texts.items())
    return LimitPlan(tuple(steps), warnings)


def kernel_limits() -> KernelLimits:
    """Return the resource limits that the kernel applies to children of this process."""
    linux = sys.platform.startswith("linux")
    return KernelLimits(bounds_data=linux, bounds_tasks=not linux or not _is_privileged())


def _fallback(key: str, limits: Limits, host: KernelLimits) -> tuple[str, str, str]:
    """Return the launcher's step or "", the problem's reason, and the effect of the limit."""
    if key == "memory" and host.bounds_data:
        text = "applies to each process alone, not to all of them together"
        return f"data={limits.memory_bytes}", LIMIT_PARTLY_ENFORCED, text
    if key == "processes" and host.bounds_tasks:
        text = "applies roughly: the kernel counts all processes and threads of the worker's user"
        return f"nproc={limits.processes}", LIMIT_PARTLY_ENFORCED, text
    return "", LIMIT_NOT_ENFORCED, "is not enforced"


def _format(key: str, limits: Limits) -> str:
    if key == "memory":
        return f"{(limits.memory_bytes or 0) / MIB:g} MiB"
    return f"{limits.cpu_cores:g}" if key == "cpu" else str(limits.processes)


def _is_privileged() -> bool:
    """Return whether the kernel exempts this process from RLIMIT_NPROC."""
    fields = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    status = {name: value.split() for name, _, value in fields}
    is_root = status["Uid"][0] == "0"
    rights = int(status["CapEff"][0], 16)
    return is_root or bool(rights & (_CAP_SYS_ADMIN | _CAP_SYS_RESOURCE))
