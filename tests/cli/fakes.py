"""What clients that stand in for the SDK's have in common."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class FakeClient:
    """Can be entered and left; `closed` says that it was left."""

    closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True
