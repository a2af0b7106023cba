"""Fixtures for tests of the vault."""

from __future__ import annotations

import pytest
from tests.vaults import QUICK_SCRYPT

from leaseway.vault import file


@pytest.fixture(autouse=True)
def quick_vaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open vaults at once; other processes must do so, too."""
    monkeypatch.setattr(file, "_SCRYPT", QUICK_SCRYPT)
