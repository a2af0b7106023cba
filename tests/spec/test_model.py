"""Which changes of a spec change which hash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leaseway.spec.model import ServerSpec, Transform, VariantKey
from leaseway.spec.name_filters import NameFilter

SPEC = ServerSpec(
    VariantKey("time"),
    "stdio",
    command="serve",
    tools=NameFilter(("a*",)),
    transforms=(Transform("prefix", "time_"),),
)


def test_a_spec_without_filters_of_prompts_and_resources_has_the_hash_it_had_before_them() -> None:
    assert SPEC.exposure_hash == "382f0e1100adcfc8a0cb84453bdfe47e"


@pytest.mark.parametrize("key", ["tools", "prompts", "resources"])
def test_a_filter_is_of_the_exposure_alone(key: str) -> None:
    changed = replace(SPEC, **{key: NameFilter((), ("b*",))})  # type: ignore[arg-type]
    assert changed.launch_hash == SPEC.launch_hash
    assert changed.exposure_hash != SPEC.exposure_hash


def test_the_same_filter_of_prompts_and_of_resources_are_two_exposures() -> None:
    rules = NameFilter(("a*",))
    prompts, resources = replace(SPEC, prompts=rules), replace(SPEC, resources=rules)
    assert prompts.exposure_hash != resources.exposure_hash
