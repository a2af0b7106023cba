"""A lease as its holder sees it."""

from __future__ import annotations

from datetime import UTC, datetime

from leaseway.sdk.lease_book import Held

__all__ = ["Lease"]


class Lease:
    """A session's own MCP client for one server, kept alive by the SDK until it is released."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        self._held = held

    @property
    def id(self) -> str:
        """Names the lease for good."""
        return self._held.lease_id

    @property
    def server_id(self) -> str:
        """The server that the leased client is connected to."""
        return self._held.server_id

    @property
    def session(self) -> str:
        """The session that holds it."""
        return self._held.session

    @property
    def worker(self) -> str:
        """The id of the worker that holds the client."""
        return self._held.worker.id

    @property
    def ttl(self) -> float:
        """The time to live in seconds that the worker granted."""
        return self._held.ttl

    @property
    def expires_at(self) -> datetime:
        """When it ends unless it is renewed, in UTC by this machine's clock; renewals move it."""
        return datetime.fromtimestamp(self._held.expires_wall, UTC)

    @property
    def reminder(self) -> str:
        """What to tell a model that now holds this lease."""
        return self._held.reminder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lease) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Lease({self.id!r}, server_id={self.server_id!r}, worker={self.worker!r})"
