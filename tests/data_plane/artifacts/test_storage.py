"""Storage of artifacts: the folder and its in-memory twin behave alike."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leaseway.data_plane.artifacts.storage import ArtifactStorage, DirectoryStorage, MemoryStorage

REF = "artifacts/mcp/shots/page/x.png"


@pytest.fixture(params=["folder", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStorage]:
    made = DirectoryStorage(tmp_path) if request.param == "folder" else MemoryStorage()
    yield made
    made.close()


def test_a_written_artifact_can_be_read(storage: ArtifactStorage) -> None:
    assert storage.write(REF, iter([b"ab", b"", b"cd"])) == 4
    with storage.open(REF) as file:
        file.seek(1)
        assert file.read(2) == b"bc"


def test_a_removed_artifact_stays_readable_while_open(
    storage: ArtifactStorage,
) -> None:
    storage.write(REF, [b"abcd"])
    with storage.open(REF) as file:
        storage.remove([REF, "artifacts/mcp/never/was/there.png"])
        assert file.read() == b"abcd"
    with pytest.raises(FileNotFoundError):
        storage.open(REF)


def failing() -> Iterator[bytes]:
    yield b"ab"
    raise ValueError("not base64")


def test_half_an_artifact_is_none(storage: ArtifactStorage) -> None:
    with pytest.raises(ValueError, match="not base64"):
        storage.write(REF, failing())
    with pytest.raises(FileNotFoundError):
        storage.open(REF)
    assert storage.write(REF, [b"ab"]) == 2


def test_only_this_user_may_look_into_folders_and_files(tmp_path: Path) -> None:
    os.umask(before := os.umask(0))
    try:
        os.umask(0)
        storage = DirectoryStorage(tmp_path / "new")
        storage.write(REF, [b"ab"])
    finally:
        os.umask(before)
    for path in [storage.folder, *storage.folder.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    storage.close()


def test_closing_the_storage_removes_everything(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    storage.write(REF, [b"ab"])
    storage.close()
    storage.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="stopping"):
        storage.write(REF, [b"ab"])
    assert list(tmp_path.iterdir()) == []


def test_closing_the_storage_interrupts_writes_first(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    begun, go_on = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield b"ab"
        begun.set()
        assert go_on.wait(60)
        yield b"cd"

    outcome: list[BaseException] = []

    def write() -> None:
        try:
            storage.write(REF, parts())
        except OSError as error:
            outcome.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(60)
    closer = threading.Thread(target=storage.close)
    closer.start()
    while not storage._closed:
        pass
    assert storage.folder.exists()
    go_on.set()
    writer.join(60)
    closer.join(60)
    assert "stopping" in str(outcome[0])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_removed_by_another_worker_before_locking_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def swept_once(**how: Any) -> str:
        made.append(mkdtemp(**how))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_once)
    storage = DirectoryStorage(tmp_path)
    assert [str(storage.folder)] == made[1:]
    storage.close()


def test_folders_of_killed_workers_are_removed_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / "leaseway-artifacts-left"
    (left / "artifacts").mkdir(parents=True)
    (left / "artifacts" / "x.png").write_bytes(b"x")
    other = tmp_path / "somebody-elses"
    other.mkdir()
    running = DirectoryStorage(tmp_path)
    running.write(REF, [b"ab"])
    second = DirectoryStorage(tmp_path)
    assert set(tmp_path.iterdir()) == {running.folder, second.folder, other}
    with running.open(REF) as file:
        assert file.read() == b"ab"
    running.close()
    second.close()


def test_a_link_among_the_folders_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").write_text("x")
    base = tmp_path / "base"
    base.mkdir()
    (base / "leaseway-artifacts-link").symlink_to(target)
    DirectoryStorage(base).close()
    assert (target / "file").exists()


def test_a_folder_that_cannot_be_created_is_reported_with_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match=r"Artifacts cannot be kept in .*--artifacts"):
        DirectoryStorage(tmp_path / "file")
