"""The hash chain of the audit, which reveals removed or changed lines, and its check. Pure.

A line is a JSON object. Lines of one write are sealed together: the last line ends with `hash`,
the SHA-256 of the previous hash and all bytes since its line. A file starts with an `opened` record
that repeats the previous hash, so that it can be checked without older files. A run that was not
killed ends with a `closed` record.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from leaseway.wire.audit_heads import NOTHING, AuditHead, Mark

START: Final = "0" * 64
"""The hash before the first line of a run."""

_HASH: Final = b',"hash":"'
_SEAL_SIZE: Final = len(_HASH) + 64 + len(b'"}\n')
_LINE: Final = b'{"seq":%d,%b}\n'
_UNSEALED: Final = slice(-len(b"}\n"))
_MAX_FAULTS: Final = 100
_NOT_IN_FILE_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]")
_SEALED_LINE: Final = re.compile(rb'\{"seq":(\d+),[^\n]*,"hash":"([0-9a-f]{64})"\}\n')
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def file_name(worker_id: str, incarnation: str, number: object) -> str:
    """Return the name of a run's file; files of a run are numbered from 1."""
    numbered = f"{number:06}" if isinstance(number, int) else "?"
    return f"{_NOT_IN_FILE_NAMES.sub('_', worker_id)[:128]}.{incarnation}.{numbered}.jsonl"


class HashChain:
    """The end of a growing chain.

    Attributes:
        seq: The number of the last line; 0 before the first.
        last: The last hash.
    """

    __slots__ = ("last", "seq")

    def __init__(self, seq: int = 0, last: str = START) -> None:
        self.seq = seq
        self.last = last

    def seal(self, bodies: Sequence[bytes]) -> bytes:
        """Return the next lines, to be written at once.

        Args:
            bodies: The members of JSON objects, at least one, without braces, each on one line.
        """
        if not bodies:
            return b""
        lines = (_LINE * len(bodies))[_UNSEALED]  # one template, so that each body is copied once
        content = lines % tuple(chain.from_iterable(enumerate(bodies, self.seq + 1)))
        digest = hashlib.sha256(self.last.encode())
        digest.update(content)
        self.seq += len(bodies)
        self.last = digest.hexdigest()
        return b"".join((content, _HASH, self.last.encode(), b'"}\n'))


def last_mark(content: bytes) -> Mark:
    """Return the last record in a part of a file that ends a write."""
    end = len(content)
    while end:
        start = content.rfind(b"\n", 0, end - 1) + 1
        match = _SEALED_LINE.fullmatch(content, start, end)
        if match is not None:
            return Mark(int(match[1]), match[2].decode())
        end = start
    return NOTHING


def _is_sealed(line: bytes, record: dict[str, Any]) -> bool:
    seal = record.get("hash")
    return isinstance(seal, str) and line[-_SEAL_SIZE:] == b'%b%b"}\n' % (_HASH, seal.encode())


@dataclass
class RunReport:
    """The result of checking one run's files.

    Attributes:
        records: Number of checked lines.
        faults: "FILE:LINE: PROBLEM", the first hundred.
        remarks: Facts that are no faults by themselves.
        last: The number of the last record that ends a write; 0 without one.
    """

    records: int = 0
    last: int = 0
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def verify_run(
    files: Iterable[tuple[str, Iterable[bytes]]], head: AuditHead | None = None
) -> RunReport:
    """Check the files of one run of a worker.

    Args:
        files: Names and lines, with line ends, in the order in which they were written.
        head: How far the run was, as its worker has told the control plane.
    """
    check = RunCheck(head)
    for name, lines in files:
        check.add_file(name, lines)
    return check.finish()


class RunCheck:
    """Checks the files of one run, one after the other.

    Args:
        head: How far the run was, as its worker has told the control plane.

    Attributes:
        report: What was found so far.
    """

    def __init__(self, head: AuditHead | None = None) -> None:
        told = (head.written, head.shipped) if head is not None else ()
        self._told = {mark.seq: mark.hash for mark in told if mark.seq}
        self.report = RunReport()
        self._chain: HashChain | None = None
        self._file = ""
        self._line = 0
        self._torn = False
        self._closed = False
        self._unsealed = b""
        self._first_unsealed = 0
        self._run: object = None

    def add_file(self, name: str, lines: Iterable[bytes]) -> None:
        """Check the next file, or the next part of a file, which begins after a whole write."""
        self._start_file(name)
        for line in lines:
            self._add_line(line)

    def _start_file(self, name: str) -> None:
        self._check_empty()
        self._check_torn()
        self._check_unsealed()
        self._file, self._line = name, 0

    def _add_line(self, line: bytes) -> None:
        self._check_torn()
        self._line += 1
        if self._closed:
            self._add_fault("A line follows the record that closed this run.")
        if not line.endswith(b"\n"):
            self._torn = True  # no fault in the last line of a killed run
            return
        record = _parse(line)
        if record is None:
            self._add_fault("This is no line of an audit: it was changed.")
            self._chain, self._unsealed = None, b""
            return
        self.report.records += 1
        self._check_name(record)
        if self._chain is None:
            self._start(record)
        chain = self._chain
        assert chain is not None
        seq = record["seq"]
        if seq != chain.seq + 1:
            missing = seq - chain.seq - 1
            self._add_fault(
                f"{missing} records before this one are missing."
                if missing > 0
                else f"The record has number {seq}, after number {chain.seq}."
            )
        chain.seq = seq
        if self._told.get(seq, record.get("hash")) != record.get("hash"):
            self._add_fault(
                "This is not the record that the worker has told the control plane: the run was "
                "rewritten."
            )
        self._closed = record.get("event") == "closed"
        if not self._unsealed:
            self._first_unsealed = self._line
        if _is_sealed(line, record):
            self._check_seal(chain, line[:-_SEAL_SIZE], record)
            self.report.last = max(self.report.last, seq)
        else:
            self._unsealed += line

    def _check_seal(self, chain: HashChain, body: bytes, record: dict[str, Any]) -> None:
        content, self._unsealed = self._unsealed + body, b""
        if hashlib.sha256(chain.last.encode() + content).hexdigest() != record["hash"]:
            since = self._first_unsealed
            self._add_fault(
                "This record, or the one before it, was changed or removed."
                if since == self._line
                else f"One of the records from line {since} to this one, or the one before them, "
                "was changed or removed."
            )
        elif self._line == 1 and record.get("prev", chain.last) != chain.last:
            self._add_fault("The file does not continue the one before it.")
        chain.last = record["hash"]

    def finish(self) -> RunReport:
        """Return what was found, after the last file."""
        self._check_empty()
        if self._torn:
            self.report.remarks.append(
                f"{self._file} ends in the middle of a line: the worker was killed there."
            )
            return self.report
        self._check_unsealed()
        if not self._closed and self.report.records:
            self.report.remarks.append(
                f"{self._file} has no closing record: its worker is running, was killed, or lines "
                "at the end were removed."
            )
        return self.report

    def _start(self, record: dict[str, Any]) -> None:
        prev = record.get("prev")
        if record.get("event") == "opened" and isinstance(prev, str):
            self._chain = HashChain(record["seq"] - 1, prev)
            if record["seq"] > 1 and self.report.records == 1:
                self.report.remarks.append(
                    f"{self._file} begins with record {record['seq']}: older files are elsewhere."
                )
        else:
            self._chain = HashChain(0 if self.report.records == 1 else record["seq"] - 1)
            if self.report.records == 1:
                self._add_fault("The file does not begin with an opening record.")

    def _check_empty(self) -> None:
        if self._file and not self._line:
            self._add_fault("The file is empty: its opening record was removed.")

    def _check_name(self, record: dict[str, Any]) -> None:
        """Check that a record belongs to the file that it stands in."""
        if self._line == 1 and record.get("event") == "opened":
            self._run = record.get("run")
            named = file_name(str(record.get("worker")), str(self._run), record.get("file"))
            if self._file.endswith(".jsonl") and self._run and named != Path(self._file).name:
                self._add_fault(f"This file was written as {named}: files were exchanged.")
        elif record.get("run", self._run) != self._run:
            self._add_fault("This record was written by another run of a worker.")

    def _check_torn(self) -> None:
        if self._torn:
            self._add_fault("The line has no end.")
            self._torn = False
            self._chain = None

    def _check_unsealed(self) -> None:
        if self._unsealed:
            self._add_fault(f"The records from line {self._first_unsealed} on have no hash.")
            self._unsealed = b""

    def _add_fault(self, message: str) -> None:
        if len(self.report.faults) < _MAX_FAULTS:
            self.report.faults.append(f"{self._file}:{self._line}: {message}")


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return record if type(record.get("seq")) is int else None
