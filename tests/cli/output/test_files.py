"""`--output` and `leaseway artifact`, with a fake client."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import Result
from tests.cli.fakes import FakeClient, install_client

from leaseway.cli.output.files import file_name
from leaseway.sdk import ArtifactLost, ToolResult
from leaseway.sdk.calls.prompt_results import ResourceResult

Run = Callable[..., Result]

RED, SOUND = b"\x89PNG red", b"RIFF sound"
REF = "artifacts/mcp/w/shot/20260102T030405000Z-5cffcd76-8f68-80a7-af02-4997c105f950.png"


def _inline(kind: str, mime_type: str, content: bytes) -> dict[str, Any]:
    return {"type": kind, "mimeType": mime_type, "data": base64.b64encode(content).decode()}


PICTURE = _inline("image", "image/png", RED)
KEPT = {"type": "image", "mimeType": "image/png", "byteLength": len(RED), "artifact": REF}
TEXT = {"type": "text", "text": "Look:"}


class _Artifact:
    mime_type = "image/png"

    async def _read(self) -> bytes:
        return RED

    def __await__(self) -> Any:
        return self._read().__await__()


class _Client(FakeClient):
    """Returns fixed responses, and records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.content: list[dict[str, Any]] = [TEXT, PICTURE]
        self.contents: list[dict[str, Any]] = []
        self.is_error = False

    def session(self, key: str) -> Self:
        self.asked.append(("session", key))
        return self

    async def call_tool(self, name: str, _arguments: Any, **options: Any) -> ToolResult:
        self.asked.append((name, options["inline_media"]))
        return ToolResult(json.dumps({"content": self.content}).encode(), self.is_error)

    def read_artifact(self, ref: str, timeout: float | None = None) -> _Artifact:
        self.asked.append(("read", ref, timeout))
        if ref != REF:
            raise ArtifactLost("There is no such artifact.")
        return _Artifact()

    async def read_resource(self, uri: str, **_rest: Any) -> ResourceResult:
        self.asked.append((uri,))
        return ResourceResult(json.dumps({"contents": self.contents}).encode())


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    return install_client(monkeypatch, _Client())


def test_an_image_is_written_to_a_file_and_text_to_stdout(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    file = tmp_path / "shot.png"
    done = run("call", "w:shot", "--output", str(file))
    assert (done.exit_code, done.stdout) == (0, "Look:\n")
    assert file.read_bytes() == RED
    assert f"Wrote {file}: {len(RED)} bytes (image/png)." in done.stderr


def test_artifacts_of_a_call_in_a_session_are_read(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.content = [KEPT]
    file = tmp_path / "a.png"
    assert run("call", "shot", "--output", str(file), "--session", "s1").exit_code == 0
    assert file.read_bytes() == RED
    assert client.asked == [("session", "s1"), ("shot", False), ("read", REF, None)]


def test_an_artifact_of_another_user_is_read_for_him(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    options = ("--session", "s1", "--user", "anna", "--output", str(tmp_path / "a.png"))
    assert run("artifact", REF, *options).exit_code == 0
    assert (client.user, client.asked[-1]) == ("anna", ("read", REF, None))


def test_json_of_a_call_without_a_session_has_media_in_place(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    done = run("call", "shot", "--json", "--output", str(tmp_path / "a.png"))
    assert json.loads(done.stdout) == {"content": [TEXT, PICTURE]}
    assert client.asked[0] == ("shot", True)
    assert (tmp_path / "a.png").read_bytes() == RED


def test_media_and_embedded_files_become_new_files_in_a_folder(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    blob = base64.b64encode(b"zip").decode()
    embedded = {"type": "resource", "resource": {"uri": "x://h/..%2F/a b.zip", "blob": blob}}
    client.content = [PICTURE, PICTURE, _inline("audio", "audio/wav", SOUND), embedded]
    for _ in range(2):
        assert run("call", "w:shot", "--output", str(tmp_path)).exit_code == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        **{f"w_shot{number}.png": RED for number in ("", "-2", "-3", "-4")},
        **{f"w_shot{number}.wav": SOUND for number in ("", "-2")},
        **{f"a_b{number}.zip": b"zip" for number in ("", "-2")},
    }


def test_further_media_are_written_beside_the_file(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.content = [PICTURE, PICTURE, _inline("audio", "audio/wav", SOUND)]
    assert run("call", "shot", "--output", str(tmp_path / "a.png")).exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a-2.png", "a.png", "a.wav"]


def test_an_existing_file_is_rejected_before_the_call_without_force(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"precious")
    done = run("call", "shot", "--output", str(file))
    assert done.exit_code == 2
    assert done.stderr == f"leaseway: {file} already exists; --force replaces it.\n"
    assert (client.asked, file.read_bytes()) == ([], b"precious")
    assert run("call", "shot", "--output", str(file), "--force").exit_code == 0
    assert file.read_bytes() == RED


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["--output", "no/a.png"], 1, "can't be written: No such file or directory."),
        (["--output", "no/"], 2, "There is no folder no/"),
        (["--output", ""], 2, "--output needs a path"),
        (["--force"], 2, "--force needs --output"),
        (["--output", "-", "--json"], 2, "both write to stdout"),
    ],
)
def test_an_unusable_output_is_rejected_before_the_call(
    run: Run,
    client: _Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("call", "shot", *words)
    assert done.exit_code == status
    assert why in done.stderr
    assert client.asked == []


def test_stdout_takes_the_bytes_of_one_and_the_text_goes_aside(run: Run, client: _Client) -> None:
    done = run("call", "shot", "--output", "-")
    assert (done.exit_code, done.stdout_bytes) == (0, RED)
    assert done.stderr.startswith("Look:\n")
    client.content = [PICTURE, PICTURE]
    done = run("call", "shot", "--output", "-")
    assert (done.exit_code, done.stdout_bytes) == (1, b"")
    assert "There are 2 images" in done.stderr


def test_a_result_without_media_is_a_failure_only_with_output(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.content = [TEXT, {"type": "image", "mimeType": "image/png", "data": "no base64!"}]
    assert run("call", "shot").exit_code == 0
    done = run("call", "shot", "--output", str(tmp_path))
    assert (done.exit_code, done.stdout) == (1, "Look:\n")
    assert "The result has no image, sound or file; nothing was written." in done.stderr
    assert list(tmp_path.iterdir()) == []
    client.is_error = True
    assert run("call", "shot", "--output", str(tmp_path)).stderr.endswith(
        "The tool returned an error.\n"
    )


def test_a_call_in_a_session_says_how_to_get_its_artifacts(run: Run, client: _Client) -> None:
    client.content = [KEPT, {"type": "resource_link", "uri": "x://a\x1bb", "name": "n"}]
    picture, link = run("call", "shot", "--session", "my job").stderr.splitlines()
    assert picture.endswith(f"; leaseway artifact {REF} --session 'my job' prints it]")
    assert link == "[resource_link n x://a b; leaseway resource 'x://a b' reads it]"
    of_anna, _ = run("call", "shot", "--session", "s1", "--user", "anna").stderr.splitlines()
    assert of_anna.endswith(f"; leaseway artifact {REF} --session s1 --user anna prints it]")


def test_an_artifact_is_written_to_a_file_a_folder_or_a_pipe(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    words = ("artifact", REF, "--session", "s1")
    assert run(*words).stdout_bytes == RED
    assert run(*words, "--output", "-").stdout_bytes == RED
    assert run(*words, "--output", str(tmp_path / "a.png"), "--timeout", "3").exit_code == 0
    assert run(*words, "--output", str(tmp_path)).exit_code == 0
    assert {file.name for file in tmp_path.iterdir()} == {"a.png", REF.rpartition("/")[2]}
    assert ("read", REF, 3.0) in client.asked


def test_an_artifact_needs_its_session(run: Run, client: _Client) -> None:
    done = run("artifact", REF)
    assert done.exit_code == 2
    assert "--session" in done.stderr


def test_a_lost_artifact_writes_no_file(run: Run, client: _Client, tmp_path: Path) -> None:
    done = run("artifact", "gone", "--session", "s1", "--output", str(tmp_path / "a.png"))
    assert (done.exit_code, done.stderr) == (1, "leaseway: There is no such artifact.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_resource_does_not_replace_a_file_without_force(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x://h/notes.md", "text": "é"}]
    words = ("resource", "x://h/notes.md", "--output", str(tmp_path / "a"))
    assert run(*words).exit_code == 0
    assert run(*words).exit_code == 2
    assert run(*words, "--force").exit_code == 0
    assert run(*words[:3], "-").stdout_bytes == "é".encode()


def test_each_part_of_a_resource_becomes_a_file_in_a_folder(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x://h/a.md", "text": "a"}, {"uri": "x://h/b.bin", "blob": "AP8K"}]
    assert run("resource", "x://h/", "--output", str(tmp_path)).exit_code == 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "a.md": b"a",
        "b.bin": b"\x00\xff\n",
    }
    client.contents.append({"uri": "x://h/c"})
    done = run("resource", "x://h/", "--output", str(tmp_path))
    assert done.exit_code == 1
    assert "is neither text nor base64" in done.stderr


def test_a_full_disk_is_an_error_message(run: Run, client: _Client) -> None:
    done = run("call", "shot", "--output", "/dev/full")
    assert done.exit_code == 1
    assert done.stderr.endswith("leaseway: /dev/full can't be written: No space left on device.\n")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("w:shot", "w_shot"),
        ("../../etc/passwd", "etc_passwd"),
        (".hidden", "hidden"),
        ("ä", "content"),
        ("x" * 300, "x" * 100),
    ],
)
def test_file_names_from_servers_are_sanitized(name: str, safe: str) -> None:
    assert file_name(name) == safe
    assert file_name(name, "png") == f"{safe}.png"
