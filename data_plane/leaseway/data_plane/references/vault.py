"""The worker's view of the encrypted vault: read when its file or key changes, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leaseway.vault.file import read_vault
from leaseway.vault.key import VaultError, VaultPlace

Mark = tuple[int, int, int, int] | None
"""What tells one state of a file from the next, without reading it; None where there is none."""


def mark_of(path: Path) -> Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


class WorkerVault:
    """The secrets of a vault as they were read last. Satisfies `resolve.Vault`.

    Args:
        place: The vault, or None for one that stays empty.

    Attributes:
        trouble: Why the vault cannot be read; None where it can, or where there is none.
    """

    def __init__(self, place: VaultPlace | None) -> None:
        self.trouble: VaultError | None = None
        self._place = place
        self._secrets: Mapping[str, str] = {}
        self._read_at: tuple[Mark, ...] = ()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """What tells whether the vault or its key has changed; asks the file system."""
        if self._place is None:
            return ()
        paths = [self._place.path]
        if self._place.passphrase is None:
            paths.append(self._place.key_file)
        return tuple(map(mark_of, paths))

    def get(self, name: str) -> str | None:
        """Return a secret, or None where there is none of that name.

        Raises:
            VaultError: There is a vault, and it cannot be read.
        """
        if self.trouble is not None:
            raise VaultError(str(self.trouble))
        return self._secrets.get(name)

    def refresh(self) -> None:
        """Read the vault again if it has changed. Takes a tenth of a second: not for a loop."""
        marks = self.marks  # before reading, so that what changes meanwhile is read again
        if self._place is None or marks == self._read_at:
            return
        try:
            self._secrets = {name: e.value for name, e in read_vault(self._place).items()}
            self.trouble = None
        except VaultError as error:
            self.trouble = error
        self._read_at = marks
