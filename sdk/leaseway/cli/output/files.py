"""`--output`: where the bytes that a command got are written, never over what is there."""

from __future__ import annotations

import functools
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
from leaseway.cli.output.tables import say

Command = Callable[..., Any]
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 100
_MOST_NAMES: Final = 10_000
"""How many files of one name are looked at for a free number."""


@dataclass(frozen=True)
class Piece:
    """Something to write.

    Attributes:
        content: Its bytes.
        name: What its file is called where only a folder was named.
        mime_type: What it is said to be; may be empty.
    """

    content: bytes
    name: str
    mime_type: str = ""


@dataclass(frozen=True)
class Output:
    """What `--output` named.

    Attributes:
        path: A file, or a folder that is there; None for stdout.
        force: Whether the file may be there already.
    """

    path: Path | None
    force: bool

    @property
    def takes_several(self) -> bool:
        """Whether it is a folder, which takes any number of files."""
        return self.path is not None and self.path.is_dir()

    def check(self) -> None:
        """Check that writing can work, before anything is asked for.

        Raises:
            click.UsageError: The file is there, and may not be replaced.
            CliFailure: There is no such folder, or it may not be written to.
        """
        if self.path is None:
            return
        folder = self.path if self.takes_several else self.path.parent
        if not folder.is_dir():
            raise CliFailure(f"{self.path} can't be written: No such file or directory.")
        if not os.access(folder, os.W_OK):
            raise CliFailure(f"{self.path} can't be written: Permission denied.")
        if self.path.is_file() and not self.force:
            raise _taken(self.path)

    def save(self, pieces: Sequence[Piece]) -> None:
        """Write pieces and say so on stderr.

        The first goes to the file that was named, each other one to a new file beside it; in a
        folder all of them are new files.

        Raises:
            click.UsageError: The file is there by now.
            CliFailure: It can't be written, or stdout was to take several.
        """
        if self.path is None:
            _to_stdout(pieces)
        elif self.takes_several:
            for piece in pieces:
                _save_new(self.path / piece.name, piece)
        else:
            first, *rest = pieces
            try:
                _save(self.path, first, replace=self.force)
            except FileExistsError:
                raise _taken(self.path) from None
            for piece in rest:
                _save_new(self.path.with_suffix(Path(piece.name).suffix), piece)


def _to_stdout(pieces: Sequence[Piece]) -> None:
    if len(pieces) != 1:
        raise CliFailure(
            f"There are {len(pieces)} images, sounds and files, and stdout takes one; name a "
            "folder with --output."
        )
    click.echo(pieces[0].content, nl=False)


def _save_new(path: Path, piece: Piece) -> None:
    """Write to a path, or the first one beside it with a number that is free."""
    for number in range(1, _MOST_NAMES):
        beside = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        with suppress(FileExistsError):
            _save(beside, piece, replace=False)
            return
    raise CliFailure(f"{path} can't be written: it and {_MOST_NAMES - 2} names like it are taken.")


def _save(path: Path, piece: Piece, *, replace: bool) -> None:
    # What is there and no file, /dev/null for one, is written to as it is.
    anew = not replace and not (path.exists() and not path.is_file())
    try:
        with path.open("xb" if anew else "wb") as file:
            _write(file, piece.content, path if anew else None)
    except FileExistsError:
        raise
    except OSError as error:
        raise CliFailure(f"{path} can't be written: {error.strerror}.") from None
    kind = f" ({piece.mime_type})" if piece.mime_type else ""
    say(f"leaseway: {path} has {len(piece.content)} bytes{kind}.", err=True)


def _write(file: Any, content: bytes, made: Path | None) -> None:
    try:
        file.write(content)
        file.flush()
    except OSError:
        # Half a picture is worse than none.
        if made is not None:
            made.unlink(missing_ok=True)
        raise


def _taken(path: Path) -> click.UsageError:
    return click.UsageError(f"{path} is there already; --force replaces it.")


def file_name(name: str, ending: str = "") -> str:
    """Return a name that any file can have, made of one that others chose.

    Args:
        name: What it is to remind of.
        ending: Appended after a dot, unless empty.
    """
    safe = _UNSAFE.sub("_", name).strip("._-")[-_LONGEST:] or "content"
    return f"{safe}.{ending}" if ending else safe


def output_options(what: str) -> Callable[[Command], Command]:
    """Return what adds `--output` and `--force`, as the argument `output`.

    Args:
        what: What is written, for the help.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> Any:
            word, force = kwargs.pop("output"), kwargs.pop("force")
            if force and word is None:
                raise click.UsageError("--force is about --output, which is not given.")
            return command(output=_parsed(word, force), **kwargs)

        decorated: Command = wrapper
        for option in reversed(_options(what)):
            decorated = option(decorated)
        return decorated

    return decorate


def _options(what: str) -> tuple[Callable[[Command], Command], ...]:
    words = "a new file, a folder, which takes several, or - for stdout"
    return (
        click.option(
            "--output", type=click.Path(), metavar="PATH", help=f"Write {what} to PATH: {words}."
        ),
        click.option("--force", is_flag=True, help="Let --output replace a file."),
    )


def _parsed(word: str | None, force: bool) -> Output | None:
    if word is None:
        return None
    if not word:
        raise click.UsageError("--output needs a path, or - for stdout.")
    output = Output(None if word == "-" else Path(word), force)
    if word.endswith(("/", os.sep)) and not output.takes_several:
        raise click.UsageError(f"There is no folder {word}; make it first.")
    output.check()
    return output


def stdout_or_fail() -> Output:
    """Return stdout, where that is no terminal.

    Raises:
        click.UsageError: It is one, which bytes would harm.
    """
    if sys.stdout.isatty():
        raise click.UsageError("Bytes are not for a terminal; name a file with --output.")
    return Output(None, force=False)
