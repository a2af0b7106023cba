"""The chain of hashes that makes a removed or changed line show, and its check. Pure.

A line is a JSON object. What is written at once is sealed at once: the last member of the last line
is `hash`, SHA-256 of the hash before it and of all bytes since that one's line, up to there. Files
begin with an `opened` record that repeats the hash before them, so that what is left can be checked
after older files were taken to an archive. A run that ended in order ends with a `closed` record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

START: Final = "0" * 64
"""What stands before the first line of a run."""

_HASH: Final = b',"hash":"'
_TAIL: Final = len(_HASH) + 64 + len(b'"}\n')
_MOST_FAULTS: Final = 100
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Chain:
    """The end of a chain that grows.

    Attributes:
        seq: The number of the last line; 0 before the first.
        last: Its hash.
    """

    __slots__ = ("last", "seq")

    def __init__(self, seq: int = 0, last: str = START) -> None:
        self.seq = seq
        self.last = last

    def seal(self, bodies: Iterable[bytes]) -> bytes:
        """Return the next lines, which are to be written at once.

        Args:
            bodies: JSON objects with at least one member, each on one line.
        """
        lines = [b'{"seq":%d,%b' % (seq, body[1:]) for seq, body in enumerate(bodies, self.seq + 1)]
        if not lines:
            return b""
        content = b"\n".join(lines)[:-1]
        self.seq += len(lines)
        self.last = hashlib.sha256(self.last.encode() + content).hexdigest()
        return b'%b%b%b"}\n' % (content, _HASH, self.last.encode())


def _is_sealed(line: bytes, record: dict[str, Any]) -> bool:
    seal = record.get("hash")
    return isinstance(seal, str) and line[-_TAIL:] == b'%b%b"}\n' % (_HASH, seal.encode())


@dataclass(frozen=True)
class FoundFault:
    """What is wrong at one place."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


@dataclass
class Verdict:
    """What the check of one run's files has found.

    Attributes:
        records: Lines that were checked.
        faults: What is wrong, the first hundred.
        remarks: What is no fault by itself, and worth knowing.
    """

    records: int = 0
    faults: list[FoundFault] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def verify_run(files: Iterable[tuple[str, Iterable[bytes]]]) -> Verdict:
    """Check the files of one run of a worker, in their order.

    Args:
        files: Names, and lines with their line ends.
    """
    check = _Check(Verdict())
    for name, lines in files:
        check.open(name)
        for line in lines:
            check.take(line)
    check.end()
    return check.verdict


class _Check:
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self._chain: Chain | None = None
        self._file = ""
        self._line = 0
        self._torn = ""
        self._closed = False
        self._unsealed = b""
        self._first_unsealed = 0

    def open(self, name: str) -> None:
        self._fail_torn()
        self._fail_unsealed()
        self._file, self._line = name, 0

    def take(self, line: bytes) -> None:
        self._fail_torn()
        self._line += 1
        if self._closed:
            self._fault("A line follows the record that closed this run.")
        if not line.endswith(b"\n"):
            self._torn = "The line has no end."  # fine as the last one of a run that was killed
            return
        record = self._parsed(line)
        if record is None:
            self._fault("This is no line of an audit: it was changed.")
            self._chain, self._unsealed = None, b""
            return
        self.verdict.records += 1
        if self._chain is None:
            self._start(record)
        chain = self._chain
        assert chain is not None
        seq = record["seq"]
        if seq != chain.seq + 1:
            missing = seq - chain.seq - 1
            self._fault(
                f"{missing} records before this one are missing."
                if missing > 0
                else f"The record has number {seq}, after number {chain.seq}."
            )
        chain.seq = seq
        self._closed = record.get("event") == "closed"
        if not self._unsealed:
            self._first_unsealed = self._line
        if _is_sealed(line, record):
            self._check_seal(chain, line[:-_TAIL], record)
        else:
            self._unsealed += line

    def _check_seal(self, chain: Chain, body: bytes, record: dict[str, Any]) -> None:
        content, self._unsealed = self._unsealed + body, b""
        if hashlib.sha256(chain.last.encode() + content).hexdigest() != record["hash"]:
            since = self._first_unsealed
            self._fault(
                "This record, or the one before it, was changed or removed."
                if since == self._line
                else f"One of the records from line {since} to this one, or the one before them, "
                "was changed or removed."
            )
        elif self._line == 1 and record.get("prev", chain.last) != chain.last:
            self._fault("The file does not go on where the one before it ends.")
        chain.last = record["hash"]

    def end(self) -> None:
        if not self._torn:
            self._fail_unsealed()
        if self._torn:
            self.verdict.remarks.append(
                f"{self._file} ends in the middle of a line: the worker was killed there."
            )
        elif not self._closed and self.verdict.records:
            self.verdict.remarks.append(
                f"{self._file} has no closing record: its worker runs, was killed, or lines at the "
                "end were removed."
            )

    def _start(self, record: dict[str, Any]) -> None:
        prev = record.get("prev")
        if record.get("event") == "opened" and isinstance(prev, str):
            self._chain = Chain(record["seq"] - 1, prev)
            if record["seq"] > 1 and self.verdict.records == 1:
                self.verdict.remarks.append(
                    f"{self._file} begins with record {record['seq']}: older files are elsewhere."
                )
        else:
            self._chain = Chain(0 if self.verdict.records == 1 else record["seq"] - 1)
            if self.verdict.records == 1:
                self._fault("The file does not begin with an opening record.")

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            record = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return record if type(record.get("seq")) is int else None

    def _fail_torn(self) -> None:
        if self._torn:
            self._fault(self._torn)
            self._torn = ""
            self._chain = None

    def _fail_unsealed(self) -> None:
        if self._unsealed:
            self._fault(
                f"The records from line {self._first_unsealed} on have no hash behind them."
            )
            self._unsealed = b""

    def _fault(self, what: str) -> None:
        if len(self.verdict.faults) < _MOST_FAULTS:
            self.verdict.faults.append(FoundFault(self._file, self._line, what))
