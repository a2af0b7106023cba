"""Commands of the container engine for servers that are images."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import BOUND

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.process import containers
from leaseway.data_plane.kinds.process.containers import (
    Container,
    Containers,
    Removals,
    client_environment,
    has_exited,
    process_identity,
    remove_command,
    run_command,
)
from leaseway.data_plane.mcp.failures import ENGINE_STATUS, describe_container
from leaseway.spec.kinds.confinement import Limits, Sandbox
from leaseway.spec.kinds.container import image_fault
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.wire.errors import Fault

_OPEN = (Limits(), Sandbox())


def command_for(
    *command: str,
    variables: dict[str, str] | None = None,
    limits: Limits = _OPEN[0],
    sandbox: Sandbox = _OPEN[1],
    cwd: str = "",
) -> list[str]:
    words = command or ("",)
    found = run_command(
        "docker", "name", "owner", "image:1", words, variables or {}, limits, sandbox, cwd
    )
    return list(found)


def test_arguments_follow_the_image() -> None:
    words = command_for("python", "-m", "server", "--rm")

    assert words[-4:] == ["image:1", "-m", "server", "--rm"]
    assert words[words.index("--entrypoint") + 1] == "python"
    assert "--entrypoint" not in command_for("", "argument")
    assert "--workdir /srv" in " ".join(command_for(cwd="/srv"))


def test_the_engine_keeps_no_log_of_the_results() -> None:
    words = command_for("python")

    assert words[words.index("--log-driver") + 1] == "none"
    assert words.index("--log-driver") < words.index("image:1")


def test_values_of_variables_are_not_in_the_command() -> None:
    words = command_for(variables={"TOKEN": "hidden-value", "MODE": "x"})

    assert "hidden-value" not in " ".join(words)
    assert [words[i + 1] for i, word in enumerate(words) if word == "--env"] == ["MODE", "TOKEN"]


def test_reserved_variables_are_passed_in_the_command() -> None:
    assert "PATH=/opt/bin" in command_for(variables={"PATH": "/opt/bin"})
    given = {"PATH": "/bin", "CONTAINERS_CONF": "/c", "DOCKER_HOST": "h", "XDG_RUNTIME_DIR": "/r"}
    assert client_environment({**given, "SECRET_KEY": "x", "CONTAINERSHIP": "y"}) == given


async def test_variables_of_a_container_do_not_control_its_client_on_the_worker(
    tmp_path: Path,
) -> None:
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    spec = server_spec(VariantKey("x"), "stdio", image="image:1")
    odd = {"LD_PRELOAD": "/srv/x.so", "LD_AUDIT": "/srv/y.so", "HOME": "/srv", "GODEBUG": "x=1"}
    prepared = Containers({"PATH": str(tmp_path)}, "token").prepare(
        spec, ResolvedValues(image="image:1", env={**odd, "MODE": "x"})
    )
    assert dict(prepared.environment) == {"MODE": "x", "PATH": str(tmp_path)}
    for name, value in odd.items():
        assert f"{name}={value}" in prepared.command
    hidden = ResolvedValues(image="image:1", env=odd, secrets=frozenset({"/srv/x.so"}))
    with pytest.raises(Fault, match="uses LD_PRELOAD itself"):
        Containers({"PATH": str(tmp_path)}, "token").prepare(spec, hidden)


def test_limits_are_options_of_the_engine() -> None:
    limits = Limits(memory_bytes=1 << 20, cpu_cores=1.5, open_files=64, processes=10)

    words = " ".join(command_for(limits=limits))

    assert "--memory 1048576 --memory-swap 1048576 --cpus 1.5 --pids-limit 10" in words
    assert "--ulimit nofile=64:64" in words


def test_a_sandbox_has_no_network_and_mounts_writable_paths() -> None:
    words = " ".join(command_for(sandbox=Sandbox(enabled=True, writable_paths=("/data",))))

    assert "--read-only" in words
    assert "--network none" in words
    assert "--mount type=bind,source=/data,target=/data" in words
    assert "--network" not in " ".join(command_for(sandbox=Sandbox(enabled=True, network=True)))


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30))
def test_a_writable_path_with_any_name_is_one_field_of_its_mount(name: str) -> None:
    words = command_for(sandbox=Sandbox(enabled=True, writable_paths=(f"/{name}",)))

    (fields,) = csv.reader([words[words.index("--mount") + 1]])
    assert fields == ["type=bind", f"source=/{name}", f"target=/{name}"]


@given(st.text(max_size=40))
def test_no_image_looks_like_an_option(name: str) -> None:
    if image_fault(name) is None:
        assert not name.startswith("-")
        assert not any(character.isspace() for character in name)


def test_images_may_have_a_registry_a_tag_and_a_digest() -> None:
    for name in ("server", "registry:5000/team/server:1.2", f"a/b@sha256:{'0' * 64}"):
        assert image_fault(name) is None
    assert image_fault("--privileged") is not None


def test_removal_works_in_any_state_of_a_container() -> None:
    assert remove_command("podman", "a", "b") == ("podman", "rm", "--force", "--volumes", "a", "b")


async def test_a_container_whose_engine_is_busy_is_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = tmp_path / "tries"
    busy = f"echo x >> {tries}; test $(wc -l < {tries}) -ge 3 || {{ echo busy >&2; exit 1; }}"
    container = Container(
        name="leaseway-x-1",
        image="image:1",
        command=(),
        environment={"PATH": os.environ["PATH"]},
        removal=("sh", "-c", busy),
        removals=Removals(interval=0.01),
    )
    await container.remove()
    assert "leaseway-x-1 can't be removed yet" in caplog.text
    retrying = container.removals._retrying
    assert retrying is not None
    async with asyncio.timeout(BOUND):
        await retrying
    assert tries.read_text() == "x\n" * 3


async def test_a_container_that_an_engine_could_not_run_is_removed_by_one_quiet_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tries = tmp_path / "tries"
    away = f"echo x >> {tries}; echo 'Cannot connect to the daemon' >&2; exit 1"
    container = Container(
        name="leaseway-x-1",
        image="image:1",
        command=(),
        environment={"PATH": os.environ["PATH"]},
        removal=("sh", "-c", away),
        removals=Removals(interval=0.01),
    )
    await container.remove(ENGINE_STATUS)
    assert (tries.read_text(), caplog.records) == ("x\n", [])
    assert container.removals._retrying is None


_ENGINE = """#!/bin/sh
echo "$@" >> "$ENGINE_CALLS"
case "$*" in ps*leaseway.instance=*) echo c0ffee ;; esac
"""


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an engine that lists one container and notes its commands."""
    program = tmp_path / "docker"
    program.write_text(_ENGINE.replace("$ENGINE_CALLS", str(tmp_path / "calls")))
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DOCKER_HOST": "there", "TOKEN": "s3cret"}


async def test_the_container_of_a_command_is_found_and_removed_by_its_label(
    tmp_path: Path, engine: dict[str, str]
) -> None:
    mine = Containers({}, "token")
    given = ("docker", "run", "-i", "--rm", "--name", "its-own", "image:1", "--label", "x")
    container = mine.adopt(given, engine)
    assert container is not None
    words = list(container.command)
    owner, instance = words[3], words[5]
    assert words[:2] + words[6:] == list(given)
    assert (words[2], owner) == ("--label", f"leaseway.owner={mine.owner}")
    assert (words[4], instance.partition("=")[0]) == ("--label", "leaseway.instance")
    (cleanup,) = mine.cleanups()
    client = {"PATH": engine["PATH"], "DOCKER_HOST": "there"}
    assert (cleanup["environment"], container.environment) == (client, client)
    await container.remove()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert f"ps --all --quiet --no-trunc --filter label={instance}" in calls
    assert "rm --force --volumes c0ffee" in calls


@pytest.mark.parametrize(
    ("command", "at"),
    [
        (("podman", "container", "run", "-i", "image"), 3),
        (("/usr/bin/nerdctl", "run", "image"), 2),
        (("docker", "exec", "-i", "mine", "server"), 0),
        (("docker", "--context", "x", "run", "image"), 0),
        (("docker", "compose", "run", "server"), 0),
        (("python", "run"), 0),
        (("docker",), 0),
    ],
)
def test_only_commands_that_run_a_container_get_labels(command: tuple[str, ...], at: int) -> None:
    assert containers._options_of_run(command) == at


async def test_an_engine_that_hangs_keeps_no_other_work_from_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "_ANSWER_TIMEOUT", BOUND)
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    container = Container(
        name="leaseway-x-1",
        image="image:1",
        command=(),
        environment={"PATH": os.environ["PATH"]},
        removal=("cat", str(answer)),
        removals=Removals(),
    )
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    removals = [asyncio.create_task(container.remove()) for _ in range(4)]
    writer = None
    try:
        async with asyncio.timeout(BOUND / 2):
            while writer is None:  # until the engine waits
                with contextlib.suppress(OSError):
                    writer = os.open(answer, os.O_WRONLY | os.O_NONBLOCK)
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(int) == 0
    finally:
        while not all(removal.done() for removal in removals):
            with contextlib.suppress(OSError):
                os.close(os.open(answer, os.O_WRONLY | os.O_NONBLOCK))
            if writer is not None:
                os.close(writer)
                writer = None
            await asyncio.sleep(0.01)


def test_a_running_owner_is_identified_by_more_than_its_pid() -> None:
    boot, space, pid, started = process_identity(os.getpid()).split(":")

    assert not has_exited(f"{boot}:{space}:{pid}:{started}:token")
    assert has_exited(f"{boot}:{space}:{pid}:{int(started) - 1}:token")
    assert not has_exited(f"another-boot:{space}:{pid}:1:token")
    assert not has_exited("nonsense")


def test_failures_of_the_engine_differ_from_the_servers() -> None:
    assert "engine could not run x:1" in describe_container(125, "x:1", None)
    assert describe_container(3, "x:1", None) == "exited with status 3"
    assert "limits.memory is 64 MiB" in describe_container(137, "x:1", 64 << 20)
