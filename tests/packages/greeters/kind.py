"""What an entry of a greeter says; both planes import it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from leaseway.spec.keys import Choice, Flag, Key, OwnReader, Text, setting
from leaseway.spec.model import Part
from leaseway.spec.references import Value


@dataclass(frozen=True)
class GreeterPart(Part):
    """A greeter.

    Attributes:
        language: The language that it speaks.
        ending: What a greeting ends with.
        owner: Who is greeted beside the caller; may be empty.
        shy: Whether it greets nobody but its caller.
    """

    transports: ClassVar[tuple[str, ...]] = ("greeter",)
    worker: ClassVar[str] = "greeters.worker"
    readers: ClassVar[str] = "greeters.readers"

    language: str = setting(
        "en", Key(Choice(("en", "de")), "The language that it speaks.", required=True)
    )
    owner: str = setting("", Key(Text(100), "Who is greeted, too."))
    ending: str = setting("", Key(OwnReader(), "What a greeting ends with, such as `!`."))
    shy: bool = setting(False, Key(Flag(), "Whether it greets nobody but its caller."))

    @property
    def values(self) -> Mapping[str, Value]:
        return {"owner": Value("literal", self.owner)} if self.owner else {}

    def faults(self) -> Iterable[str]:
        if self.owner == "nobody":
            raise ZeroDivisionError
        if self.shy and self.owner:
            yield "'owner' is greeted by no greeter that is 'shy'; remove one of the two."
