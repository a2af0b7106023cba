"""The index of artifacts: owners, age, size and number."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from leaseway.data_plane.core.artifacts.index import (
    ArtifactIndex,
    ArtifactLimits,
    ArtifactReader,
    StoredArtifact,
)


def artifact(number: int, at: float = 0.0, size: int = 10, session: str = "s") -> StoredArtifact:
    return StoredArtifact(
        ref=f"artifacts/{number}",
        tenant="acme",
        session=session,
        mime_type="image/png",
        byte_length=size,
        stored_at=at,
    )


def names(artifacts: list[StoredArtifact]) -> list[str]:
    return [artifact.ref.removeprefix("artifacts/") for artifact in artifacts]


def test_only_the_owner_finds_an_artifact() -> None:
    index = ArtifactIndex(ArtifactLimits())
    index.add(artifact(1))
    assert index.find("artifacts/1", ArtifactReader("acme", "s"), 1) == artifact(1)
    for tenant, session in [("acme", "t"), ("acme", ""), ("default", "s"), ("", "s")]:
        assert index.find("artifacts/1", ArtifactReader(tenant, session), 1) is None
    assert index.find("artifacts/2", ArtifactReader("acme", "s"), 1) is None


def test_an_artifact_of_a_user_is_found_for_him_only() -> None:
    index = ArtifactIndex(ArtifactLimits())
    index.add(replace(artifact(1), subject="anna"))
    found = {
        subject: index.find("artifacts/1", ArtifactReader("acme", "s", subject), 1) is not None
        for subject in ("anna", "bob", "")
    }
    assert found == {"anna": True, "bob": False, "": False}


def test_the_oldest_are_evicted_for_the_newest() -> None:
    index = ArtifactIndex(ArtifactLimits(max_bytes=30))
    assert [index.add(artifact(number)) for number in range(3)] == [[], [], []]
    assert names(index.add(artifact(3, size=15))) == ["0", "1"]
    assert index.total_bytes == 25


def test_the_number_of_artifacts_is_limited() -> None:
    index = ArtifactIndex(ArtifactLimits(max_count=2))
    gone = [name for number in range(5) for name in names(index.add(artifact(number)))]
    assert gone == ["0", "1", "2"]
    assert len(index) == 2


def test_an_expired_artifact_is_not_found_and_is_removed() -> None:
    index = ArtifactIndex(ArtifactLimits(max_age=10))
    for number in range(4):
        index.add(artifact(number, at=number))
    assert index.next_expiry() == 10
    assert index.find("artifacts/0", ArtifactReader("acme", "s"), 10) is None
    assert names(index.expire(11.5)) == ["0", "1"]
    assert index.next_expiry() == 12
    assert index.remaining(artifact(3, at=3), 11.5) == 1.5


def test_an_empty_index_expires_nothing() -> None:
    index = ArtifactIndex(ArtifactLimits())
    assert index.next_expiry() is None
    assert index.expire(1e9) == []


@pytest.mark.parametrize("count", [10_000, 40_000])
def test_adding_an_artifact_takes_constant_time(count: int) -> None:
    index = ArtifactIndex(ArtifactLimits(max_count=count))
    for number in range(count):
        index.add(artifact(number))
    begun = time.process_time()
    for number in range(count, 2 * count):
        assert len(index.add(artifact(number))) == 1
    took = time.process_time() - begun
    assert took / count < 100e-6  # an index that scanned would need a hundred times as long


def test_a_tenant_beyond_its_limit_evicts_its_own_artifacts() -> None:
    index = ArtifactIndex(ArtifactLimits())
    index.add(replace(artifact(0), tenant="rival"))
    assert not index.add(artifact(1, size=10), 20)
    assert not index.add(artifact(2, size=10), 20)
    assert names(index.add(artifact(3, size=10), 20)) == ["1"]
    assert names(index.add(artifact(4, size=21), 20)) == ["2", "3", "4"]
    assert len(index) == 1
