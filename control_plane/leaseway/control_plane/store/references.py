"""Where the connection string of a database is: never on a command line, which others can see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from leaseway.control_plane.store.port import StoreUnavailable

_MAX_DSN: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class DsnReference:
    """A variable or a file with a connection string.

    Attributes:
        name: The variable's name, or the file's path.
    """

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def read(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the connection string, from a file as it is now.

        Raises:
            StoreUnavailable: It is missing, empty or too long.
        """
        if self.kind == "env":
            text = environment.get(self.name, "")
        else:
            try:
                with Path(self.name).open(encoding="utf-8") as file:
                    text = file.read(_MAX_DSN + 1).strip()
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not UTF-8"
                raise StoreUnavailable(
                    f"The connection string of the store in {self} cannot be read: {why}."
                ) from None
        if not text or len(text) > _MAX_DSN:
            raise StoreUnavailable(
                f"The connection string of the store in {self} is missing, or longer than"
                f" {_MAX_DSN} characters."
            )
        return text


def parse_reference(text: str) -> DsnReference:
    """Return the reference that a text names.

    Raises:
        ValueError: It is none; the message does not repeat it, as it may be a password.
    """
    kind, _, name = text.partition(":")
    if name and kind == "file":
        return DsnReference("file", name)
    if kind == "env" and name.isidentifier():
        return DsnReference("env", name)
    raise ValueError(
        "Write env:NAME or file:PATH, where the connection string is: a command line can be read by"
        " others."
    )
