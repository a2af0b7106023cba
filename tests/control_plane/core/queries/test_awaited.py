"""Which servers a caller waits for that asks for an unknown name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import coordinator, load, spec

from leaseway.control_plane.core.queries.awaited import find_awaited, may_result
from leaseway.spec.model import Transform, VariantKey

PREFIX, SUFFIX = Transform("prefix", "p_"), Transform("suffix", "_s")


@pytest.mark.parametrize(
    ("transforms", "name", "expected"),
    [
        ((), "echo", True),
        ((PREFIX,), "p_echo", True),
        ((PREFIX,), "echo", False),
        ((PREFIX,), "p_", False),
        ((PREFIX, SUFFIX), "p_echo_s", True),
        ((PREFIX, SUFFIX), "p_echo", False),
        ((PREFIX, SUFFIX), "p_echo_s_0123abcd", True),
        ((PREFIX, SUFFIX), "echo_s", False),
        ((SUFFIX, Transform("replace", "-", "_")), "echo-s", True),
        ((Transform("prefix", "p_", "q_"),), "p_", True),
        ((Transform("prefix", "p_", "q_"),), "q_echo", False),
    ],
)
def test_transforms_say_which_names_a_server_may_have(
    transforms: tuple[Transform, ...], name: str, expected: bool
) -> None:
    assert may_result(transforms, name) is expected


def test_a_caller_waits_for_the_servers_that_may_have_its_name() -> None:
    state = coordinator()
    load(state, *(spec(f"s{number:02}") for number in range(40)), spec("t", prefix="s07_"))
    both = [VariantKey("s07"), VariantKey("t")]
    assert find_awaited(state, "default", "s07_echo") == both
    assert find_awaited(state, "default", "s07_echo", "t") == both[1:]
    assert find_awaited(state, "default", "s07:echo") == both[:1]
    assert find_awaited(state, "default", "echo") == []


def test_nothing_is_known_of_a_name_that_many_may_have() -> None:
    state = coordinator()
    load(state, *(replace(spec(f"s{number:02}"), transforms=()) for number in range(40)))
    assert find_awaited(state, "default", "echo") == []
