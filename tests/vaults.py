"""Vaults that open at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.vault import file

QUICK_SCRYPT: Final = {"length": 32, "n": 2**4, "r": 8, "p": 1}
"""Instead of `leaseway.vault.file._SCRYPT`, which takes a tenth of a second a vault on purpose."""
QUICK_VAULTS: Final = {"TEST_VAULTS": "quick"}
"""The variable with which forked planes and commands open vaults at once."""


def use_quick_vaults(environment: Mapping[str, str]) -> None:
    """Open vaults at once for the rest of this process if its environment says so."""
    if QUICK_VAULTS.items() <= environment.items():
        file._SCRYPT = QUICK_SCRYPT  # type: ignore[misc]
