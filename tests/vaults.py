"""Vaults that open at once."""

from __future__ import annotations

from typing import Final

QUICK_SCRYPT: Final = {"length": 32, "n": 2**4, "r": 8, "p": 1}
"""Instead of `leaseway.vault.file._SCRYPT`, which takes a tenth of a second a vault on purpose."""
