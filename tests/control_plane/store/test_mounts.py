"""Which file system a folder is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.control_plane.store.mounts import network_file_system

MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:45 /exports /srv rw,relatime shared:5 - nfs4 nas:/exports rw,vers=4.2
31 30 254:2 / /srv/disk rw,relatime shared:6 - xfs /dev/vdb rw
32 22 0:50 / /mnt/my\\040share rw - cifs //nas/share rw
33 22 0:51 / /home/ann/far rw master:2 propagate_from:1 - fuse.sshfs ann@host:/ rw
34 22 0:52 / /twice rw - nfs nas:/old rw
35 22 254:3 / /twice rw - ext4 /dev/vdc rw
a line of another form
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib/leaseway", ""),
        ("/srv", "nfs4"),
        ("/srv/data", "nfs4"),
        ("/srvs/data", ""),
        ("/srv/disk/data", ""),
        ("/mnt/my share/data", "cifs"),
        ("/home/ann/far/data", "fuse.sshfs"),
        ("/twice/data", ""),
    ],
)
def test_the_deepest_mount_says_the_kind(folder: str, kind: str) -> None:
    assert network_file_system(Path(folder), MOUNTS) == kind


def test_nothing_is_known_where_nothing_is_listed() -> None:
    assert network_file_system(Path("/srv"), "") == ""
