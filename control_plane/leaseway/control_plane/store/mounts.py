"""Which file system a folder is on (Linux): locks of some hold on one machine only."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
"""What is mounted where; other systems do not have it, and nothing is refused there."""
_OVER_NETWORKS: Final = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "orangefs", "smb3", "smbfs",
        "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.mount-s3",
        "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    }
)  # fmt: skip
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def network_file_system(folder: Path, mounts: str) -> str:
    """Return the kind of the network file system that a folder is on, or an empty text.

    Args:
        folder: The folder, with symbolic links resolved.
        mounts: The content of `MOUNTS`.
    """
    deepest, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = PurePath(_ESCAPE.sub(_unescaped, fields[4]))
        # Of several mounts at one place the last one counts.
        if len(point.parts) >= deepest and folder.is_relative_to(point):
            deepest, kind = len(point.parts), after.split()[0]
    return kind if kind in _OVER_NETWORKS else ""


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))
