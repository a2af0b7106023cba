"""The chain of hashes that makes a removed or changed line show, and its check. Pure.

A line is a JSON object whose last member is `hash`: SHA-256 of the hash before it and of the
line's own bytes up to there. Files begin with an `opened` record that repeats the hash before
them, so that what is left can be checked after older files were taken to an archive. A run that
ended in order ends with a `closed` record.
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

    def seal(self, body: bytes) -> bytes:
        """Return the next line.

        Args:
            body: A JSON object with at least one member, on one line.
        """
        return self.seal_all((body,))

    def seal_all(self, bodies: Iterable[bytes]) -> bytes:
        """Return the next lines; each body is as for `seal`."""
        seq, last = self.seq, self.last.encode()
        sha256, lines = hashlib.sha256, bytearray()
        for body in bodies:
            seq += 1
            sealed = b'{"seq":%d,%b' % (seq, body[1:-1])
            last = sha256(last + sealed).hexdigest().encode()
            lines += sealed
            lines += _HASH
            lines += last
            lines += b'"}\n'
        self.seq, self.last = seq, last.decode()
        return bytes(lines)


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

    def open(self, name: str) -> None:
        self._fail_torn()
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
            self._chain = None
            return
        self.verdict.records += 1
        if self._chain is None:
            self._start(record)
        chain = self._chain
        assert chain is not None
        seq, body = record["seq"], line[:-_TAIL]
        if seq != chain.seq + 1:
            missing = seq - chain.seq - 1
            self._fault(
                f"{missing} records before this one are missing."
                if missing > 0
                else f"The record has number {seq}, after number {chain.seq}."
            )
        expected = hashlib.sha256(chain.last.encode() + body).hexdigest()
        if expected != record["hash"]:
            self._fault("This record, or the one before it, was changed or removed.")
        elif self._line == 1 and record.get("prev", chain.last) != chain.last:
            self._fault("The file does not go on where the one before it ends.")
        self._chain = Chain(seq, record["hash"])
        self._closed = record.get("event") == "closed"

    def end(self) -> None:
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
        whole = line[-_TAIL : -_TAIL + len(_HASH)] == _HASH
        return record if whole and type(record.get("seq")) is int else None

    def _fail_torn(self) -> None:
        if self._torn:
            self._fault(self._torn)
            self._torn = ""
            self._chain = None

    def _fault(self, what: str) -> None:
        if len(self.verdict.faults) < _MOST_FAULTS:
            self.verdict.faults.append(FoundFault(self._file, self._line, what))
