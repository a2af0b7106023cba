"""Fixtures for tests of tokens and logins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.data_plane.oauth.guarded import Guarded

from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    guarded = Guarded()
    server = await guarded.start()
    try:
        yield guarded
    finally:
        if hasattr(guarded, "closed"):
            guarded.closed.set()
        await server.close()


@pytest.fixture
def place(tmp_path: Path) -> VaultPlace:
    return VaultPlace(tmp_path / "vault", tmp_path / "key")


@pytest.fixture
def store(place: VaultPlace) -> LoginStore:
    return LoginStore(place)
