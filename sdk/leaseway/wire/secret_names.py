"""Which names of variables and headers look like those of credentials. Pure."""

from __future__ import annotations

import re
from typing import Final

_SECRET: Final = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|AUTHORIZATION|COOKIE)S?(_|-|$)"
    r"|(API|ACCESS|PRIVATE|SECRET)[_-]?KEY"
    r"|(^|_|-)KEYS?$"
    r"|(^|_)PAT$"
    r"|(^|_|-)PASS(_|-|$)"
    r"|_PWD$",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Say whether a variable's or header's name looks like that of a credential."""
    return _SECRET.search(name) is not None
