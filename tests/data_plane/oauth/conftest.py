"""Fixtures for tests of tokens and logins."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.data_plane.oauth.authority import Providers, providers
from tests.data_plane.oauth.guarded import Guarded
from tests.vaults import QUICK_SCRYPT

from leaseway.vault import file
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


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[Providers]:
    """Serve the authorization servers of all tests of a module."""
    async with providers() as host:
        yield host


@pytest.fixture(autouse=True)
def quick_vaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open vaults at once; other processes must do so, too."""
    monkeypatch.setattr(file, "_SCRYPT", QUICK_SCRYPT)


@pytest.fixture
def place(tmp_path: Path) -> VaultPlace:
    return VaultPlace(tmp_path / "vault", tmp_path / "key")


@pytest.fixture
def store(place: VaultPlace) -> LoginStore:
    return LoginStore(place)
