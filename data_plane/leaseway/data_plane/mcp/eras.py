"""Which servers must be greeted with `initialize`, as learned from their starts. Pure."""

from __future__ import annotations

from typing import Final

from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS
from leaseway.wire.sharing.newest import Newest

LEGACY_GREETING: Final = HANDSHAKE_VERSIONS[-1]
"""The newest version whose connections begin with `initialize`."""

_MAX_SERVERS: Final = 4096


class KnownEras:
    """The eras that servers were found to have, by launch hash; the newest 4,096.

    A server whose toolset is recorded has its version there. This covers starts before that, and
    those that failed: a legacy server that hangs after `server/discover`, or exits and has no time
    left for another start, is only found out by its next start.
    """

    def __init__(self) -> None:
        self._versions: Newest[str, str] = Newest(_MAX_SERVERS)

    def recall(self, launch_hash: str) -> str:
        """Return the version to greet a server with; empty if unknown."""
        return self._versions.get(launch_hash, "")

    def note_success(self, launch_hash: str, version: str) -> None:
        """Record the version that a server has negotiated."""
        self._versions[launch_hash] = version

    def note_failure(self, launch_hash: str, greeted_in_vain: bool) -> None:
        """Record a failed start.

        Args:
            launch_hash: The server's.
            greeted_in_vain: Whether it was greeted with `server/discover` and answered nothing, or
                no time was left after that. The next start begins with `initialize` then;
                otherwise nothing is known any more.
        """
        self._versions.pop(launch_hash, None)
        if greeted_in_vain:
            self.note_success(launch_hash, LEGACY_GREETING)
