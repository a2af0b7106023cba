"""What each kind of server has a worker watch, and packages whose modules for workers fail."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from tests.specs import part

from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.kinds.watched import code_files, problem_finder
from leaseway.server.faults import RAISED
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import Part, ServerSpec, VariantKey
from leaseway.wire.errors import Fault, Reason

HALF = "def values_of(part, resolver): ...\ndef open_instance(spec, host, opening): ...\n"


def of_package(folder: Path, name: str, text: str) -> ServerSpec:
    """Return a server of a package's kind, whose module for workers has a text."""
    (folder / f"{name}.py").write_text(text)

    @dataclass(frozen=True)
    class Foreign(Part):
        transports: ClassVar[tuple[str, ...]] = ("foreign",)
        worker: ClassVar[str] = name
        has_code: ClassVar[bool] = True

    return ServerSpec(VariantKey("s"), "foreign", Foreign())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("half_that_raises", "1 / 0", "raised ZeroDivisionError: division by zero"),
        ("half_that_lacks", "def values_of(part, resolver): ...", "lacks open_instance"),
    ],
)
def test_a_server_whose_module_for_workers_fails_says_so_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    spec = of_package(tmp_path, name, text)
    with pytest.raises(Fault) as raised:
        resolve(spec, {})
    assert (raised.value.reason, raised.value.metadata["problem"]) == (
        Reason.SERVER_NOT_READY,
        "START_FAILED",
    )
    assert raised.value.message == (
        "The server s can't start: its kind foreign cannot be used on this worker: its module"
        f" {name} {said}."
    )
    assert code_files(spec.part, {}) == ()
    assert problem_finder(spec) is None


def test_the_files_and_problems_of_a_packages_kind_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    watching = (
        "def code_files(part, environment): return [environment['HERE']]\n"
        "def problem_in(line, server_id): return ('ODD', server_id + line) if line else None\n"
    )
    spec = of_package(tmp_path, "half_that_watches", HALF + watching)
    assert code_files(spec.part, {"HERE": "/a"}) == (Path("/a"),)
    find = problem_finder(spec)
    assert find is not None
    assert (find(""), find("x")) == (None, ("ODD", "sx"))


def test_a_packages_kind_that_raises_while_it_is_watched_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    raising = "def code_files(part, environment): 1 / 0\ndef problem_in(line, server_id): 1 / 0\n"
    spec = of_package(tmp_path, "half_that_fails", HALF + raising)
    find = problem_finder(spec)
    assert find is not None
    with caplog.at_level(logging.WARNING):
        assert (code_files(spec.part, {}), find("x")) == ((), None)
    assert "code_files of half_that_fails raised ZeroDivisionError." in caplog.messages
    assert "problem_in of half_that_fails raised ZeroDivisionError." in caplog.messages


def test_only_python_classes_say_in_their_stderr_that_a_call_raised() -> None:
    spec = server_spec(VariantKey("s"), "python", module="a", class_name="A")
    find = problem_finder(spec)
    assert find is not None
    assert find("all is well") is None
    message = (
        "A call raised: a.py, line 3: KeyError. Its caller got the error. See `leaseway logs s`"
        " for the traceback; this warning stays until the server's entry or code changes."
    )
    assert find(f"{RAISED}a.py, line 3: KeyError") == ("CALL_RAISED", message)
    assert [path.name for path in code_files(part(spec), {})] == ["__init__.py", "a.py"]
    command = server_spec(VariantKey("s"), "stdio", command="x")
    assert (code_files(command.part, {}), problem_finder(command)) == ((), None)
