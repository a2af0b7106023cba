"""The seccomp filter of `sandbox: strict`, as a program for the kernel, made from tables.

Allowed are all system calls that ordinary programs use. Denied are those that create or join
namespaces, change the machine, read other processes or kernel memory, or are known ways out of a
sandbox. A denied call fails with EPERM, so that programs which merely try it can continue.

The program is classic BPF over `struct seccomp_data`; bubblewrap installs it right before the
server's first instruction, for the server and all its children.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

_EPERM: Final = 1
_ENOSYS: Final = 38
_EAFNOSUPPORT: Final = 97

# Call: number on x86_64, on aarch64; None if the architecture does not have it.
_DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    # Namespaces and mounts: a way to regain rights.
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # The kernel.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    # The machine.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
}


class _Architecture(NamedTuple):
    """Numbers that depend on the architecture.

    Attributes:
        audit: Its id in `seccomp_data`.
        column: In the table above.
        clone, ioctl, socket: Calls whose arguments are checked.
    """

    audit: int
    column: int
    clone: int
    ioctl: int
    socket: int


_X86_64: Final = _Architecture(audit=0xC000003E, column=0, clone=56, ioctl=16, socket=41)
_AARCH64: Final = _Architecture(audit=0xC00000B7, column=1, clone=220, ioctl=29, socket=198)
ARCHITECTURES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64}
"""By machine name, as in `uname -m`."""

_CLONE3: Final = 435
_NEW_NAMESPACES: Final = 0x7E02_0000
"""The flags of clone that make a mount, cgroup, UTS, IPC, user, process or network namespace."""

_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into the controlling terminal."""

_FAMILIES: Final = (1, 2, 10, 16)
"""Socket families of ordinary programs: Unix, IPv4, IPv6, netlink for listing interfaces."""

_X32: Final = 0x4000_0000
"""Bit of the x32 system calls on x86_64, which are not in the table."""

_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets in `seccomp_data`; arguments' low halves
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of BPF
_ALLOW: Final = 0x7FFF_0000
_ERROR: Final = 0x0005_0000

_Instruction = tuple[int, int, int, int]


def denying_filter(machine: str) -> bytes:
    """Return the program for an architecture of `ARCHITECTURES`."""
    own = ARCHITECTURES[machine]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(own))


def _instructions(own: _Architecture) -> Iterable[_Instruction]:
    # Reject the system calls of other architectures that the processor supports.
    yield (_LOAD, 0, 0, _ARCH)
    yield (_EQUAL, 1, 0, own.audit)
    yield _error(_ENOSYS)
    yield (_LOAD, 0, 0, _NUMBER)
    if own is _X86_64:
        yield (_AT_LEAST, 0, 1, _X32)
        yield _error(_ENOSYS)
    for numbers in _DENIED.values():
        number = numbers[own.column]
        if number is not None:
            yield (_EQUAL, 0, 1, number)
            yield _error(_EPERM)
    # clone3's flags are in memory, which a filter can't read: libraries fall back to clone.
    yield (_EQUAL, 0, 1, _CLONE3)
    yield _error(_ENOSYS)
    yield (_EQUAL, 0, 4, own.clone)
    yield (_LOAD, 0, 0, _FIRST)
    yield (_ANY_BIT, 0, 1, _NEW_NAMESPACES)
    yield _error(_EPERM)
    yield _allow()
    yield (_EQUAL, 0, 3 + len(_TERMINAL_INPUT), own.ioctl)
    yield (_LOAD, 0, 0, _SECOND)
    yield from _jumps(_TERMINAL_INPUT)
    yield _allow()
    yield _error(_EPERM)
    yield (_EQUAL, 0, 3 + len(_FAMILIES), own.socket)
    yield (_LOAD, 0, 0, _FIRST)
    yield from _jumps(_FAMILIES)
    yield _error(_EAFNOSUPPORT)
    yield _allow()
    yield _allow()


def _jumps(values: tuple[int, ...]) -> Iterable[_Instruction]:
    """Yield tests that jump over the instruction after the last test if a value matches."""
    for index, value in enumerate(values):
        yield (_EQUAL, len(values) - index, 0, value)


def _error(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERROR | number)


def _allow() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)
