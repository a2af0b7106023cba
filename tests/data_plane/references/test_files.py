"""Files that references name: what is opened decides, not how it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaseway.data_plane.references import files
from leaseway.data_plane.references.files import UnreadableFile, protect, read_file

ROOT_LINK = "root"  # the root of the file system in a process's folder in /proc


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "home"
    (home / ".leaseway").mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    known = set(files._own_paths)
    yield home
    files._own_paths.clear()
    files._own_paths.update(known)


def refusal(path: Path | str, *within: str) -> str:
    with pytest.raises(UnreadableFile) as error:
        read_file(str(path), within)
    return str(error.value)


@pytest.fixture
def granted(tmp_path: Path) -> Path:
    """The folder of acme, beside that of beta."""
    for tenant in ("acme", "beta"):
        (tmp_path / tenant).mkdir()
        (tmp_path / tenant / "token").write_text(tenant)
    return tmp_path / "acme"


@pytest.mark.parametrize(
    "path",
    ["/proc/self/environ", "/proc/self/cmdline", f"/proc/self/{ROOT_LINK}/proc/self/environ"],
)
def test_what_the_kernel_makes_is_refused(path: str) -> None:
    assert "made by the kernel" in refusal(path)


def test_a_link_to_what_the_kernel_makes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/self/environ")
    assert "made by the kernel" in refusal(tmp_path / "link")


def test_devices_and_folders_are_refused(tmp_path: Path) -> None:
    for path in ("/dev/zero", tmp_path):
        assert "neither a file nor a pipe" in refusal(path)


@pytest.mark.parametrize("kind", ["path", "link", "hard link"])
def test_leaseways_own_files_are_refused_by_any_name(tmp_path: Path, home: Path, kind: str) -> None:
    keys = tmp_path / "keys.json"
    protect([keys])
    for own in (home / ".leaseway" / "seal.key", keys):
        own.write_text("kept")
        name = tmp_path / f"other-{own.name}"
        match kind:
            case "path":
                name = own
            case "link":
                name.symlink_to(own)
            case _:
                os.link(own, name)
        assert "Leaseway's own" in refusal(name)


def test_a_link_out_of_a_granted_folder_is_refused(granted: Path) -> None:
    (granted / "link").symlink_to(granted.parent / "beta" / "token")
    (granted / "folder").symlink_to(granted.parent / "beta")
    for name in ("link", "folder/token"):
        assert "is not granted" in refusal(granted / name, f"{granted}/*")
    assert "is not granted" in refusal(granted / "link", str(granted / "link"))
    assert read_file(str(granted / "token"), (f"{granted}/*",)) == "acme"


def test_links_within_a_granted_folder_and_to_it_are_followed(granted: Path) -> None:
    """As Kubernetes mounts a secret, below a folder that is a link like /var/run."""
    (granted / "..2026").mkdir()
    (granted / "..2026" / "key").write_text("mounted")
    (granted / "..data").symlink_to("..2026")
    (granted / "key").symlink_to("..data/key")
    mount = granted.parent / "mount"
    mount.symlink_to(granted)
    for pattern in (f"{mount}/*", f"{mount}/k*y", str(mount / "key")):
        if pattern.endswith("k*y"):  # the file behind the links is ..2026/key
            assert "is not granted" in refusal(mount / "key", pattern)
        else:
            assert read_file(str(mount / "key"), (pattern,)) == "mounted"


def test_an_empty_file_is_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert read_file(str(tmp_path / "empty")) == ""
