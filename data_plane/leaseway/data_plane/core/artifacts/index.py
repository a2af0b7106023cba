"""The index of a worker's artifacts: owners, expiry, eviction. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from leaseway.data_plane.core.subjects import subject_name, user_of_subject
from leaseway.wire import bounds
from leaseway.wire.names import DEFAULT_TENANT


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An image or a sound that a worker keeps.

    Attributes:
        ref: Its reference, which cannot be guessed or listed.
        tenant: The tenant of the call that returned it.
        session: The session of that call. If it is empty, the whole tenant owns the artifact:
            requests without a session can read it.
        mime_type: In lower case, without parameters.
        subject: For whom its server acted. If it is empty, the artifact is no user's.
        stored_at: On the worker's monotonic clock.
    """

    ref: str
    tenant: str
    session: str
    mime_type: str
    byte_length: int
    stored_at: float
    subject: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactReader:
    """Whoever reads an artifact.

    Attributes:
        tenant: The tenant.
        session: The session, or empty for none.
        subject: The user for whom it is read, or who gave its token; empty for nobody.
    """

    tenant: str
    session: str = ""
    subject: str = ""

    @classmethod
    def of(cls, tenant: str, session: str, user: str, subject_token: str) -> ArtifactReader:
        """Return the reader of a request, whose subject is named like that of a call.

        Args:
            tenant: The tenant; empty for the default one.
            session: The session, or empty.
            user: The user, or empty.
            subject_token: The token of whoever reads, or empty.
        """
        subject = subject_name(user, subject_token) if subject_token else user_of_subject(user)
        return cls(tenant or DEFAULT_TENANT, session, subject)

    def owns(self, artifact: StoredArtifact) -> bool:
        """Return whether it is of this session, and of no other user."""
        return (artifact.tenant, artifact.session) == (
            self.tenant,
            self.session,
        ) and artifact.subject in ("", self.subject)


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """Limits for all artifacts of a worker.

    Attributes:
        max_age: Seconds that an artifact is kept.
        max_bytes: Bytes of all artifacts together.
        max_count: Number of artifacts.
    """

    max_age: float = bounds.ARTIFACT_AGE
    max_bytes: int = bounds.ARTIFACT_SPACE
    max_count: int = bounds.MAX_ARTIFACTS


class ArtifactIndex:
    """The artifacts of one run of a worker, oldest first. All methods take constant time.

    Attributes:
        total_bytes: Bytes of all artifacts.
        bytes_by_tenant: Bytes of each tenant that has artifacts.
    """

    def __init__(self, limits: ArtifactLimits) -> None:
        self._limits = limits
        self._by_ref: OrderedDict[str, StoredArtifact] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[str, StoredArtifact]] = {}
        self.total_bytes = 0
        self.bytes_by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_ref)

    def find(self, ref: str, reader: ArtifactReader, now: float) -> StoredArtifact | None:
        """Return an artifact that a reader owns, or None."""
        artifact = self._by_ref.get(ref)
        if artifact is None or not reader.owns(artifact):
            return None
        return artifact if self.remaining(artifact, now) > 0 else None

    def remaining(self, artifact: StoredArtifact, now: float) -> float:
        """Return for how many more seconds an artifact is kept, unless it is evicted."""
        return artifact.stored_at + self._limits.max_age - now

    def next_expiry(self) -> float | None:
        """Return when the oldest artifact expires, or None if there is none."""
        oldest = next(iter(self._by_ref.values()), None)
        return oldest.stored_at + self._limits.max_age if oldest is not None else None

    def add(
        self, artifact: StoredArtifact, tenant_limit: int | None = None
    ) -> list[StoredArtifact]:
        """Add the newest artifact; return the artifacts that were evicted, oldest first.

        Args:
            artifact: The newest artifact.
            tenant_limit: Maximum bytes of its tenant; beyond it, the tenant's oldest are evicted.
        """
        tenant, limits = artifact.tenant, self._limits
        self._by_ref[artifact.ref] = artifact
        self._by_tenant.setdefault(tenant, OrderedDict())[artifact.ref] = artifact
        self.total_bytes += artifact.byte_length
        self.bytes_by_tenant[tenant] += artifact.byte_length
        evicted = []
        while tenant_limit is not None and self.bytes_by_tenant[tenant] > tenant_limit:
            evicted.append(self._remove(next(iter(self._by_tenant[tenant].values()))))
        while len(self._by_ref) > limits.max_count or self.total_bytes > limits.max_bytes:
            evicted.append(self._remove(next(iter(self._by_ref.values()))))
        return evicted

    def expire(self, now: float) -> list[StoredArtifact]:
        """Remove and return the expired artifacts."""
        expired = []
        while (next_expiry := self.next_expiry()) is not None and next_expiry <= now:
            expired.append(self._remove(next(iter(self._by_ref.values()))))
        return expired

    def _remove(self, artifact: StoredArtifact) -> StoredArtifact:
        del self._by_ref[artifact.ref]
        self.total_bytes -= artifact.byte_length
        tenant = artifact.tenant
        of_tenant = self._by_tenant[tenant]
        del of_tenant[artifact.ref]
        self.bytes_by_tenant[tenant] -= artifact.byte_length
        if not of_tenant:
            del self._by_tenant[tenant], self.bytes_by_tenant[tenant]
        return artifact
