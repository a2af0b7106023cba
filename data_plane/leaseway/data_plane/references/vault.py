"""The worker's copy of the encrypted vault: read when its file or key changes, kept in memory."""

from __future__ import annotations

from collections.abc import Mapping

from leaseway.data_plane.audit.sinks.settings import SecretMissing, SinkSettings
from leaseway.data_plane.references.resolver import MissingReference, Resolver
from leaseway.spec.references import Value
from leaseway.vault.file import read_vault
from leaseway.vault.key import VaultError, VaultPlace
from leaseway.wire.file_stamp import FileStamp, file_stamp


class WorkerVault:
    """The secrets of a vault when it was last read; a `resolve.Vault`.

    Args:
        place: The vault, or None for an empty one.

    Attributes:
        error: Why the vault cannot be read; None if it can, or if there is none.
    """

    def __init__(self, place: VaultPlace | None) -> None:
        self.error: VaultError | None = None
        self._place = place
        self._secrets: Mapping[str, str] = {}
        self._read_at: tuple[FileStamp, ...] = ()

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        """The stamps of the vault and its key, read from the file system."""
        if self._place is None:
            return ()
        paths = [self._place.path]
        if self._place.passphrase is None:
            paths.append(self._place.key_file)
        return tuple(map(file_stamp, paths))

    def get(self, name: str) -> str | None:
        """Return a secret, or None if there is none of that name.

        Raises:
            VaultError: The vault cannot be read.
        """
        if self.error is not None:
            raise VaultError(str(self.error))
        return self._secrets.get(name)

    def refresh(self) -> None:
        """Read the vault again if it has changed. Blocks for about 0.1 s."""
        stamps = self.stamps  # before reading, so that a change meanwhile is read later
        if self._place is None or stamps == self._read_at:
            return
        try:
            entries = read_vault(self._place)
            self._secrets = {name: entry.value for name, entry in entries.items()}
            self.error = None
        except VaultError as error:
            self.error = error
        self._read_at = stamps


def sink_settings(environment: Mapping[str, str], vault: WorkerVault) -> SinkSettings:
    """Return the settings of the audit's sink, whose secrets are where those of servers are."""
    files: list[str] = []  # a secret is in none
    resolver = Resolver(environment, environment, vault, {}, files.append)

    def read_secret(name: str) -> str:
        vault.refresh()  # it may have been replaced since the last time
        try:
            return resolver.read(Value("secret", name))
        except MissingReference as missing:
            command = f", with: {missing.command}" if missing.command else ""
            raise SecretMissing(f"{missing}{command}") from None

    return SinkSettings(environment, read_secret)
