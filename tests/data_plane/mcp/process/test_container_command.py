"""What an engine's client is told for a server that is an image."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.mcp.process.container_command import (
    client_environment,
    removal,
    run_command,
)
from leaseway.data_plane.mcp.process.containers import Containers, is_gone, process_identity
from leaseway.data_plane.mcp.process.exit_status import describe_container
from leaseway.data_plane.mcp.process.stderr import significant_line
from leaseway.spec.images import image_fault
from leaseway.spec.model import Limits, Sandbox, ServerSpec, VariantKey
from leaseway.wire.errors import Fault

_OPEN = (Limits(), Sandbox())


def made(
    *command: str,
    variables: dict[str, str] | None = None,
    limits: Limits = _OPEN[0],
    sandbox: Sandbox = _OPEN[1],
    folder: str = "",
) -> list[str]:
    words = command or ("",)
    found = run_command(
        "docker", "name", "owner", "image:1", words, variables or {}, limits, sandbox, folder
    )
    return list(found)


def test_what_is_run_stands_behind_the_image() -> None:
    words = made("python", "-m", "server", "--rm")

    assert words[-4:] == ["image:1", "-m", "server", "--rm"]
    assert words[words.index("--entrypoint") + 1] == "python"
    assert "--entrypoint" not in made("", "argument")
    assert "--workdir /srv" in " ".join(made(folder="/srv"))


def test_values_of_variables_are_not_in_the_command() -> None:
    words = made(variables={"TOKEN": "hidden-value", "MODE": "x"})

    assert "hidden-value" not in " ".join(words)
    assert [words[i + 1] for i, word in enumerate(words) if word == "--env"] == ["MODE", "TOKEN"]


def test_a_variable_that_the_client_needs_itself_goes_by_the_command() -> None:
    assert "PATH=/opt/bin" in made(variables={"PATH": "/opt/bin"})
    given = {"PATH": "/bin", "CONTAINERS_CONF": "/c", "DOCKER_HOST": "h", "XDG_RUNTIME_DIR": "/r"}
    assert client_environment({**given, "SECRET_KEY": "x", "CONTAINERSHIP": "y"}) == given


async def test_no_variable_of_a_container_decides_what_its_client_loads_on_the_worker(
    tmp_path: Path,
) -> None:
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    spec = ServerSpec(VariantKey("x"), "stdio", image="image:1")
    odd = {"LD_PRELOAD": "/srv/x.so", "LD_AUDIT": "/srv/y.so", "HOME": "/srv", "GODEBUG": "x=1"}
    prepared = Containers({"PATH": str(tmp_path)}, "token").prepare(
        spec, ResolvedValues(image="image:1", env={**odd, "MODE": "x"})
    )
    assert dict(prepared.environment) == {"MODE": "x", "PATH": str(tmp_path)}
    for name, value in odd.items():
        assert f"{name}={value}" in prepared.command
    hidden = ResolvedValues(image="image:1", env=odd, secrets=frozenset({"/srv/x.so"}))
    with pytest.raises(Fault, match="takes LD_PRELOAD for its own"):
        Containers({"PATH": str(tmp_path)}, "token").prepare(spec, hidden)


def test_limits_are_the_engines() -> None:
    limits = Limits(memory_bytes=1 << 20, cpu_cores=1.5, open_files=64, processes=10)

    words = " ".join(made(limits=limits))

    assert "--memory 1048576 --memory-swap 1048576 --cpus 1.5 --pids-limit 10" in words
    assert "--ulimit nofile=64:64" in words


def test_a_sandbox_has_no_network_and_writes_where_it_may() -> None:
    words = " ".join(made(sandbox=Sandbox(enabled=True, writable_paths=("/data",))))

    assert "--read-only" in words
    assert "--network none" in words
    assert "--mount type=bind,source=/data,target=/data" in words
    assert "--network" not in " ".join(made(sandbox=Sandbox(enabled=True, network=True)))


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30))
def test_any_writable_path_stays_one_field_of_its_mount(name: str) -> None:
    words = made(sandbox=Sandbox(enabled=True, writable_paths=(f"/{name}",)))

    (fields,) = csv.reader([words[words.index("--mount") + 1]])
    assert fields == ["type=bind", f"source=/{name}", f"target=/{name}"]


@given(st.text(max_size=40))
def test_no_image_is_taken_for_an_option(name: str) -> None:
    if image_fault(name) is None:
        assert not name.startswith("-")
        assert not any(character.isspace() for character in name)


def test_images_may_have_a_registry_a_tag_and_a_digest() -> None:
    for name in ("server", "registry:5000/team/server:1.2", f"a/b@sha256:{'0' * 64}"):
        assert image_fault(name) is None
    assert image_fault("--privileged") is not None


def test_removal_takes_whatever_state_a_container_is_in() -> None:
    assert removal("podman", "a", "b") == ("podman", "rm", "--force", "--volumes", "a", "b")


def test_a_process_that_runs_is_not_gone_and_its_number_alone_does_not_tell() -> None:
    boot, space, pid, started = process_identity(os.getpid()).split(":")

    assert not is_gone(f"{boot}:{space}:{pid}:{started}:token")
    assert is_gone(f"{boot}:{space}:{pid}:{int(started) - 1}:token")
    assert not is_gone(f"another-boot:{space}:{pid}:1:token")
    assert not is_gone("nonsense")


def test_the_engines_own_failures_are_told_from_the_servers() -> None:
    assert "engine could not run x:1" in describe_container(125, "x:1", None)
    assert describe_container(3, "x:1", None) == "exited with status 3"
    assert "limits.memory is 64 MiB" in describe_container(137, "x:1", 64 << 20)


def test_a_hint_at_help_is_not_what_was_written_last() -> None:
    assert significant_line("docker: no such image.\nSee 'docker run --help'.\n") == (
        "docker: no such image."
    )
    assert significant_line("a\n\nRun 'docker run --help' for more information") == "a"
    assert significant_line("See 'x --help'.") == "See 'x --help'."
