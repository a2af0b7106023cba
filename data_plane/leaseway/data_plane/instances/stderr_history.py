"""What ended instances wrote to stderr, kept for whoever asks why (DESIGN §12, `logs SERVER`)."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from leaseway.data_plane.core.ports import InstancePort
from leaseway.spec.model import VariantKey
from leaseway.wire.secrets.redaction import redact

_KEPT_PER_SERVER: Final = 4
_MOST_SERVERS: Final = 1024


@dataclass(frozen=True)
class KeptLog:
    """The last stderr lines of one instance, and `running` or how it ended."""

    instance_id: str
    lines: tuple[str, ...]
    state: str
    pid: int = 0


class StderrHistory:
    """The logs of the last four ended instances of each of at most 1,024 variants."""

    def __init__(self) -> None:
        self._kept: OrderedDict[VariantKey, deque[KeptLog]] = OrderedDict()

    def keep(self, key: VariantKey, instance: InstancePort, how: str) -> None:
        """Keep what an instance wrote, if anything."""
        lines = tuple(instance.stderr.lines())
        if not lines:
            return
        ended = self._kept.setdefault(key, deque(maxlen=_KEPT_PER_SERVER))
        ended.append(KeptLog(instance.id, lines, redact(how)))
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST_SERVERS:
            self._kept.popitem(last=False)

    def read(self, key: VariantKey) -> tuple[KeptLog, ...]:
        """Return what is kept of a variant, the oldest first."""
        return tuple(self._kept.get(key, ()))
