"""Updates of the desired state; its registry version never decreases."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.desired_state import (
    Changes,
    DesiredState,
    HeldVariant,
    Update,
    apply,
    working_folder,
)
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey


def variant(
    server_id: str, launch: str = "l", exposure: str = "e", tenant: str = ""
) -> HeldVariant:
    spec = server_spec(VariantKey(server_id, tenant), "stdio", command="x")
    return HeldVariant(
        spec=spec,
        launch_hash=launch,
        exposure_hash=exposure,
        toolset_hash="t",
        toolset=CompiledToolset(),
    )


def keys(variants: tuple[HeldVariant, ...]) -> list[str]:
    return [str(variant.key) for variant in variants]


def test_changes_tell_new_launch_from_new_exposure_from_the_same() -> None:
    desired_state, changes = apply(
        DesiredState(), Update(1, 5, (variant("a"), variant("b"), variant("c")))
    )
    assert keys(changes.launched) == ["a", "b", "c"]
    _, changes = apply(
        desired_state,
        Update(1, 6, (variant("a"), variant("b", "l2"), variant("c", exposure="e2"))),
    )
    assert changes.removed == ()
    assert keys(changes.launched) == ["b"]
    assert keys(changes.exposed) == ["c"]


def test_removals_of_unknown_variants_are_ignored() -> None:
    desired_state, _ = apply(DesiredState(), Update(1, 5, (variant("a"),)))
    desired_state, changes = apply(
        desired_state,
        Update(1, 6, removals=(VariantKey("a"), VariantKey("a"), VariantKey("ghost"))),
    )
    assert keys(changes.removed) == ["a"]
    assert not desired_state.variants


def test_an_upsert_wins_over_a_removal_of_the_same_delta() -> None:
    desired_state, _ = apply(DesiredState(), Update(1, 5, (variant("a"),)))
    desired_state, changes = apply(desired_state, Update(1, 6, (variant("a"),), (VariantKey("a"),)))
    assert changes == Changes()
    assert VariantKey("a") in desired_state.variants


def test_a_tenant_gets_its_own_variant_or_the_common_one() -> None:
    own, common = variant("a", tenant="acme"), variant("a")
    desired_state, _ = apply(
        DesiredState(), Update(1, 5, (own, common, variant("b", tenant="acme")))
    )
    assert desired_state.find("a", "acme") is own
    assert desired_state.find("a", "other") is common
    assert desired_state.find("b", "other") is None
    assert [each_variant.key.server_id for each_variant in desired_state.visible_to("acme")] == [
        "a",
        "b",
    ]
    assert list(desired_state.visible_to("other")) == [common]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99))))
def test_versions_and_epochs_never_fall(deltas: list[tuple[int, int]]) -> None:
    desired_state = DesiredState()
    for epoch, version in deltas:
        before = desired_state
        desired_state, _ = apply(desired_state, Update(epoch, version))
        assert desired_state.registry_version == max(before.registry_version, version)
        assert desired_state.epoch == max(before.epoch, epoch)


def test_a_worker_whose_folder_was_deleted_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = server_spec(VariantKey("files"), "stdio", command="true")
    gone = tmp_path / "release-1"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert working_folder(spec) == str(gone)
    gone.rmdir()
    assert working_folder(spec) == ""
