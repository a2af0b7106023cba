"""Session ids that only fronts with the same key can open."""

from __future__ import annotations

import pytest

from leaseway.front.sessions.sealing import (
    InvalidSessionId,
    SealedSession,
    Sealer,
)

SESSION = SealedSession("mcp-1", "acme", "files", "2025-11-25", {"roots": {}}, 1000.0)


def test_a_front_with_the_same_key_opens_a_sealed_id() -> None:
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
def test_another_key_another_purpose_and_an_expired_id_are_rejected(
    secret: str | None, purpose: str, now: float
) -> None:
    sealed = Sealer("secret", "session").seal(SESSION)
    with pytest.raises(InvalidSessionId):
        Sealer(secret, purpose).open(sealed, now)


@pytest.mark.parametrize("text", ["", "abc", "§", "A" * 5000, "=" * 40])
def test_text_that_was_never_sealed_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSessionId):
        Sealer("secret", "session").open(text, 0.0)
