"""Which kinds of other packages can be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from leaseway.spec.kinds import packages
from leaseway.spec.model import Part


@dataclass(frozen=True)
class Entry:
    name: str
    value: str
    part: type[Part]
    dist: None = None

    def load(self) -> type[Part]:
        return self.part


def kind(name: str, schemes: Callable[[], Any]) -> type[Part]:
    @dataclass(frozen=True)
    class Foreign(Part):
        transports = (name,)
        worker = "nowhere"

        @classmethod
        def schemes(cls, transport: str) -> Any:
            return schemes()

    return Foreign


def raising() -> Any:
    raise KeyError("of the package")


@pytest.mark.parametrize(
    ("schemes", "fault"), [(raising, "schemes() raised KeyError"), (list, "no tuple of texts")]
)
def test_a_kind_whose_schemes_cannot_be_used_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch, schemes: Callable[[], Any], fault: str
) -> None:
    parts = {"broken": kind("broken", schemes), "good": kind("good", lambda: ("ftp",))}
    entries = [Entry(name, name, part) for name, part in parts.items()]
    monkeypatch.setattr(packages, "entry_points", lambda **_: entries)
    loaded = packages.load_kinds(())
    assert list(loaded.parts) == ["good"]
    assert fault in loaded.faults["broken"]
