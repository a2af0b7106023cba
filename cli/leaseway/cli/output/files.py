"""`--output`: write the bytes of a result to files, never over an existing one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from leaseway.cli.errors import CliFailure
from leaseway.cli.options.common import Command
from leaseway.cli.options.groups import grouped_options
from leaseway.cli.output.tables import say

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME: Final = 100
_MAX_NUMBER: Final = 10_000
"""Numbers tried to find a free file name."""


@dataclass(frozen=True)
class Piece:
    """Bytes to write to a file.

    Attributes:
        name: The file's name, used if `--output` names a folder.
        mime_type: The declared MIME type; may be empty.
    """

    content: bytes
    name: str
    mime_type: str = ""


@dataclass(frozen=True)
class Output:
    """The target that `--output` names.

    Attributes:
        path: A file, or an existing folder; None for stdout.
        force: Whether an existing file may be replaced.
    """

    path: Path | None
    force: bool

    @property
    def is_folder(self) -> bool:
        return self.path is not None and self.path.is_dir()

    def check(self) -> None:
        """Check that the target can be written, before the command makes a request.

        Raises:
            click.UsageError: The file exists and may not be replaced.
            CliFailure: The folder does not exist, or is not writable.
        """
        if self.path is None:
            return
        folder = self.path if self.is_folder else self.path.parent
        if not folder.is_dir():
            raise CliFailure(f"{self.path} can't be written: No such file or directory.")
        if not os.access(folder, os.W_OK):
            raise CliFailure(f"{self.path} can't be written: Permission denied.")
        if self.path.is_file() and not self.force:
            raise _exists_error(self.path)

    def save(self, pieces: Sequence[Piece]) -> None:
        """Write pieces, and report each on stderr.

        The first is written to the named file, the others to new files beside it. In a folder each
        becomes a new file.

        Raises:
            click.UsageError: The file exists now.
            CliFailure: A file can't be written, or there are several pieces for stdout.
        """
        if self.path is None:
            _to_stdout(pieces)
        elif self.is_folder:
            for piece in pieces:
                _save_new(self.path / piece.name, piece)
        else:
            first, *rest = pieces
            try:
                _save(self.path, first, replace=self.force)
            except FileExistsError:
                raise _exists_error(self.path) from None
            for piece in rest:
                _save_new(self.path.with_suffix(Path(piece.name).suffix), piece)


def _to_stdout(pieces: Sequence[Piece]) -> None:
    if len(pieces) != 1:
        raise CliFailure(
            f"There are {len(pieces)} images, sounds and files, but stdout can take only one; name "
            "a folder with --output."
        )
    click.echo(pieces[0].content, nl=False)


def _save_new(path: Path, piece: Piece) -> None:
    """Write to a new file: at the path, or if it exists, at the path with the first free number."""
    for number in range(1, _MAX_NUMBER):
        beside = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        with suppress(FileExistsError):
            _save(beside, piece, replace=False)
            return
    raise CliFailure(
        f"{path} can't be written: this name and {_MAX_NUMBER - 2} numbered ones exist."
    )


def _save(path: Path, piece: Piece, *, replace: bool) -> None:
    # An existing path that is not a regular file, such as /dev/null, is opened as it is.
    is_new = not replace and not (path.exists() and not path.is_file())
    try:
        with path.open("xb" if is_new else "wb") as file:
            _write(file, piece.content, path if is_new else None)
    except FileExistsError:
        raise
    except OSError as error:
        raise CliFailure(f"{path} can't be written: {error.strerror}.") from None
    kind = f" ({piece.mime_type})" if piece.mime_type else ""
    say(f"leaseway: Wrote {path}: {len(piece.content)} bytes{kind}.", err=True)


def _write(file: Any, content: bytes, created: Path | None) -> None:
    try:
        file.write(content)
        file.flush()
    except OSError:
        # Leave no incomplete file behind.
        if created is not None:
            created.unlink(missing_ok=True)
        raise


def _exists_error(path: Path) -> click.UsageError:
    return click.UsageError(f"{path} already exists; --force replaces it.")


def file_name(name: str, ending: str = "") -> str:
    """Return a safe file name, from a name that a server or user chose.

    Args:
        name: The chosen name.
        ending: Appended after a dot, unless empty.
    """
    safe = _UNSAFE.sub("_", name).strip("._-")[-_MAX_NAME:] or "content"
    return f"{safe}.{ending}" if ending else safe


def output_options(what: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--output` and `--force`, as the argument `output`.

    Args:
        what: The content to write, for the help.
    """
    paths = "a new file, a folder (for several files), or - for stdout"
    options = {
        "word": click.option(
            "--output", type=click.Path(), metavar="PATH", help=f"Write {what} to PATH: {paths}."
        ),
        "force": click.option("--force", is_flag=True, help="Let --output replace a file."),
    }
    return grouped_options("output", _parse_output, options)


def _parse_output(word: str | None, force: bool) -> Output | None:
    if word is None:
        if force:
            raise click.UsageError("--force needs --output.")
        return None
    if not word:
        raise click.UsageError("--output needs a path, or - for stdout.")
    output = Output(None if word == "-" else Path(word), force)
    if word.endswith(("/", os.sep)) and not output.is_folder:
        raise click.UsageError(f"There is no folder {word}; create it first.")
    output.check()
    return output


def stdout_or_fail() -> Output:
    """Return stdout as the output.

    Raises:
        click.UsageError: Stdout is a terminal.
    """
    if sys.stdout.isatty():
        raise click.UsageError("Stdout is a terminal; name a file for the bytes with --output.")
    return Output(None, force=False)
