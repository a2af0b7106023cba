"""Which artifacts a worker has, whose they are, and which have to go. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from leaseway.wire import bounds


@dataclass(frozen=True, slots=True)
class Artifact:
    """An image or a sound that a worker keeps.

    Attributes:
        ref: Its reference, made by this worker.
        tenant: Whose call returned it.
        session: The session of that call. A call without one has its tenant as its only owner:
            whoever of it names no session either and has the reference, which nobody can guess or
            list, reads the artifact.
        mime_type: In lower case, without parameters.
        byte_length: How many bytes it has.
        stored_at: When, on the worker's monotonic clock.
    """

    ref: str
    tenant: str
    session: str
    mime_type: str
    byte_length: int
    stored_at: float


@dataclass(frozen=True, slots=True)
class Retention:
    """What may be kept.

    Attributes:
        age: Seconds that an artifact is kept.
        space: Bytes of all artifacts together.
        count: How many artifacts.
    """

    age: float = bounds.ARTIFACT_AGE
    space: int = bounds.ARTIFACT_SPACE
    count: int = bounds.MAX_ARTIFACTS


class ArtifactIndex:
    """The artifacts of one run of a worker, the oldest first.

    What one method costs does not grow with how many there are.
    """

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._by_ref: OrderedDict[str, Artifact] = OrderedDict()
        self._space = 0
        self._of_tenant: dict[str, OrderedDict[str, Artifact]] = {}
        self._space_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_ref)

    @property
    def space(self) -> int:
        return self._space

    @property
    def space_of_tenants(self) -> Mapping[str, int]:
        """Bytes that are kept of each tenant that has any."""
        return self._space_of

    def find(self, ref: str, tenant: str, session: str, now: float) -> Artifact | None:
        """Return an artifact of a tenant's session; None where there is none that is theirs."""
        artifact = self._by_ref.get(ref)
        if artifact is None or (artifact.tenant, artifact.session) != (tenant, session):
            return None
        return artifact if self.remaining(artifact, now) > 0 else None

    def remaining(self, artifact: Artifact, now: float) -> float:
        """Return for how many more seconds an artifact is kept, unless it has to make room."""
        return artifact.stored_at + self._retention.age - now

    def next_expiry(self) -> float | None:
        """Return when the oldest artifact is too old, or None where there is none."""
        oldest = next(iter(self._by_ref.values()), None)
        return oldest.stored_at + self._retention.age if oldest is not None else None

    def add(self, artifact: Artifact, tenant_space: int | None = None) -> list[Artifact]:
        """Add the newest artifact; return those that had to make room, the oldest first.

        Args:
            artifact: The newest.
            tenant_space: The most bytes of its tenant; its own oldest make room first.
        """
        tenant = artifact.tenant
        self._by_ref[artifact.ref] = artifact
        self._of_tenant.setdefault(tenant, OrderedDict())[artifact.ref] = artifact
        self._space += artifact.byte_length
        self._space_of[tenant] += artifact.byte_length
        gone = []
        while tenant_space is not None and self._space_of[tenant] > tenant_space:
            gone.append(self._drop(next(iter(self._of_tenant[tenant].values()))))
        limit = self._retention
        gone.extend(
            self._drop_while(
                lambda _oldest: len(self._by_ref) > limit.count or self._space > limit.space
            )
        )
        return gone

    def expire(self, now: float) -> list[Artifact]:
        return list(self._drop_while(lambda oldest: self.remaining(oldest, now) <= 0))

    def _drop_while(self, is_due: Callable[[Artifact], bool]) -> Iterator[Artifact]:
        while self._by_ref:
            oldest = next(iter(self._by_ref.values()))
            if not is_due(oldest):
                return
            yield self._drop(oldest)

    def _drop(self, artifact: Artifact) -> Artifact:
        del self._by_ref[artifact.ref]
        self._space -= artifact.byte_length
        tenant = artifact.tenant
        own = self._of_tenant[tenant]
        del own[artifact.ref]
        self._space_of[tenant] -= artifact.byte_length
        if not own:
            del self._of_tenant[tenant], self._space_of[tenant]
        return artifact
