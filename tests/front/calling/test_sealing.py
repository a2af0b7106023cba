"""Session ids that any front with the same key can open, and nobody else."""

from __future__ import annotations

import pytest

from leaseway.front.calling.sealing import BrokenSeal, SealedSession, Sealer, known_capabilities

SESSION = SealedSession("mcp-1", "acme", "files", "2025-11-25", {"roots": {}}, 1000.0)


def test_another_front_with_the_key_opens_what_one_has_sealed() -> None:
    sealed = Sealer("secret", "session").seal(SESSION)
    assert sealed.isascii()
    assert sealed.isprintable()
    assert "acme" not in sealed
    assert Sealer("secret", "session").open(sealed, 999.0) == SESSION


@pytest.mark.parametrize(
    ("secret", "purpose", "now"),
    [
        ("other", "session", 0.0),
        (None, "session", 0.0),
        ("secret", "handle", 0.0),
        ("secret", "session", 1000.0),
    ],
)
def test_a_seal_holds_against_other_keys_other_purposes_and_time(
    secret: str | None, purpose: str, now: float
) -> None:
    sealed = Sealer("secret", "session").seal(SESSION)
    with pytest.raises(BrokenSeal):
        Sealer(secret, purpose).open(sealed, now)


@pytest.mark.parametrize("text", ["", "abc", "§", "A" * 5000, "=" * 40])
def test_what_was_never_sealed_is_refused(text: str) -> None:
    with pytest.raises(BrokenSeal):
        Sealer("secret", "session").open(text, 0.0)


def test_an_id_keeps_only_what_servers_may_ask() -> None:
    said = {"elicitation": {"form": {"x": "y" * 9999}}, "roots": {}, "sampling": 7, "more": {}}
    assert known_capabilities(said) == {"elicitation": {"form": {}}, "roots": {}}
