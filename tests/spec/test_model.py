"""Launch and exposure hashes of a spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import Transform, VariantKey
from leaseway.spec.name_filters import NameFilter

SPEC = server_spec(
    VariantKey("time"),
    "stdio",
    command="serve",
    tools=NameFilter(("a*",)),
    transforms=(Transform("prefix", "time_"),),
)


@pytest.mark.parametrize("key", ["tools", "prompts", "resources"])
def test_a_filter_changes_the_exposure_hash_only(key: str) -> None:
    changed = replace(SPEC, **{key: NameFilter((), ("b*",))})  # type: ignore[arg-type]
    assert changed.launch_hash == SPEC.launch_hash
    assert changed.exposure_hash != SPEC.exposure_hash


def test_filters_of_prompts_and_resources_have_different_hashes() -> None:
    rules = NameFilter(("a*",))
    prompts, resources = replace(SPEC, prompts=rules), replace(SPEC, resources=rules)
    assert prompts.exposure_hash != resources.exposure_hash
