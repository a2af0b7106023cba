"""One rule for session keys, tenants and agents."""

from __future__ import annotations

import pytest

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import check_caller_names


@pytest.mark.parametrize("name", ["", "a", "a b", "München/42:ü", "x" * 256])
def test_names_that_people_give_pass(name: str) -> None:
    check_caller_names(session=name, tenant=name, agent=name)


@pytest.mark.parametrize("name", ["x" * 257, "a\nb", "a\tb", "a\x00", "a\x7f", "a\x85", "a\u2028b"])
@pytest.mark.parametrize("which", ["session", "tenant", "agent"])
def test_names_that_break_the_rule_are_refused_and_not_repeated(which: str, name: str) -> None:
    given = {which: name}
    with pytest.raises(Fault) as caught:
        check_caller_names(**given)
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert which in caught.value.message
    assert "at most 256 characters" in caught.value.message
    assert name not in caught.value.message
