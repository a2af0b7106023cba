"""The child processes of `up`, with small programs instead of planes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.cli.commands.running import child_processes as children
from leaseway.cli.commands.running.child_processes import CONTROL_PLANE_ONLY, Child
from leaseway.cli.errors import CliFailure
from leaseway.wire.timing.backoff import Backoff

pytestmark = pytest.mark.usefixtures("leak_guard")

SERVES = "import signal; print('ready 127.0.0.1:1', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"
FAST = Backoff(initial=0.01, maximum=0.01)


def _child(script: str, *arguments: str, backoff: Backoff = FAST) -> Child:
    program = (sys.executable, "-c", script)
    return Child("worker", lambda: arguments, {}, program=program, backoff=backoff)


def _pid(child: Child) -> int:
    assert child.pid is not None
    return child.pid


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_child_is_started_when_it_has_printed_its_address() -> None:
    child = _child(SERVES)
    await child.start()
    assert child.address == "127.0.0.1:1"
    assert child.pid is not None
    await child.stop()
    assert child.pid is None


async def test_a_child_does_not_get_the_keys_of_other_planes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEASEWAY_SEAL_KEY", "the-seal-of-the-control-plane")
    monkeypatch.setenv("LEASEWAY_OTHER", "passed on")
    seen = tmp_path / "seen"
    script = (
        f"import os, pathlib; pathlib.Path({str(seen)!r}).write_text(str(os.environ)); {SERVES}"
    )
    program = (sys.executable, "-c", script)
    child = Child("worker", tuple, {}, withheld=CONTROL_PLANE_ONLY, program=program, backoff=FAST)
    await child.start()
    await child.stop()
    assert "the-seal-of-the-control-plane" not in seen.read_text()
    assert "passed on" in seen.read_text()


async def test_a_child_that_exits_at_once_is_an_error_with_its_exit_status() -> None:
    with pytest.raises(CliFailure, match="exit status 5") as caught:
        await _child("raise SystemExit(5)").start()
    assert caught.value.status == 1


async def test_a_child_that_does_not_print_its_pages_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "_READY_TIMEOUT", 0.5)
    child = _child(SERVES, "--metrics")
    async with asyncio.timeout(BOUND):
        with pytest.raises(CliFailure, match=r"did not start within 0\.5 s"):
            await child.start()
        await _until(lambda: child.pid is None)


async def test_a_restarted_child_that_hangs_is_restarted_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = (
        "import pathlib, signal, sys; p = pathlib.Path(sys.argv[1])\n"
        "n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        f"if n == 1: signal.pause()\n{SERVES}"
    )
    count = tmp_path / "count"
    child = _child(script, str(count))
    await child.start()
    monkeypatch.setattr(children, "_READY_TIMEOUT", 0.5)
    supervising = asyncio.create_task(child.supervise())
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await _until(lambda: len(count.read_text()) > 2)
    supervising.cancel()
    await asyncio.wait([supervising])
    await child.stop()


async def test_a_usage_error_at_the_start_keeps_its_exit_status() -> None:
    with pytest.raises(CliFailure) as caught:
        await _child("raise SystemExit(2)").start()
    assert caught.value.status == 2


async def test_a_killed_child_is_restarted_with_its_arguments() -> None:
    child = _child(f"import sys; assert sys.argv[1] == '--x'; {SERVES}", "--x")
    await child.start()
    first = child.pid
    assert first is not None
    supervising = asyncio.create_task(child.supervise())
    os.kill(first, signal.SIGKILL)

    await _until(lambda: child.pid not in (None, first))

    supervising.cancel()
    await asyncio.wait([supervising])
    await child.stop()


async def test_a_failed_restart_is_retried(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1])\n"
        "n = len(p.read_text()) if p.exists() else 0\n"
        "p.write_text('x' * (n + 1))\n"
        f"if n in (1, 2): raise SystemExit(1)\n{SERVES}"
    )
    child = _child(script, str(count))
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)

    await _until(lambda: count.read_text() == "xxxx" and child.pid is not None)

    supervising.cancel()
    await asyncio.wait([supervising])
    await child.stop()


async def test_a_usage_error_later_is_fatal() -> None:
    child = _child("print('ready x', flush=True); input(); raise SystemExit(2)")
    await child.start()
    assert child._process is not None
    assert child._process.stdin is not None
    child._process.stdin.write(b"\n")
    async with asyncio.timeout(BOUND):
        with pytest.raises(CliFailure) as caught:
            await child.supervise()
    assert caught.value.status == 2


async def test_a_child_that_ignores_sigterm_is_killed_after_its_bound() -> None:
    child = _child(STUBBORN)
    await child.start()
    async with asyncio.timeout(BOUND):
        await child.stop(timeout=0.2)
    assert child.pid is None


async def test_a_kill_ends_a_running_stop() -> None:
    child = _child(STUBBORN)
    await child.start()
    stopping = asyncio.create_task(child.stop(timeout=60))
    await asyncio.sleep(0)
    child.kill()
    async with asyncio.timeout(BOUND):
        await stopping
    assert child.pid is None


async def test_stop_is_idempotent() -> None:
    child = _child(SERVES)
    await child.stop()
    await child.start()
    await child.stop()
    await child.stop()


async def test_a_stop_ends_the_supervision() -> None:
    child = _child(SERVES)
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    await asyncio.sleep(0)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(child.stop(), supervising)
    assert child.pid is None


async def test_a_stop_during_the_backoff_prevents_the_restart(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = f"import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write('x')\n{SERVES}"
    child = _child(script, str(starts), backoff=Backoff(initial=3600, maximum=3600))
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    os.kill(_pid(child), signal.SIGKILL)
    await _until(lambda: child.pid is None)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(child.stop(), supervising)
    assert starts.read_text() == "x"


async def test_a_stop_while_a_child_is_spawned_leaves_no_process() -> None:
    starts = 0
    stops: list[asyncio.Task[None]] = []

    def arguments() -> list[str]:
        nonlocal starts
        starts += 1
        if starts > 1:  # asked for right before the spawn: the stop begins while it is under way
            stops.append(asyncio.create_task(child.stop()))
        return []

    child = Child("worker", arguments, {}, program=(sys.executable, "-c", SERVES), backoff=FAST)
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    os.kill(_pid(child), signal.SIGKILL)
    async with asyncio.timeout(BOUND):
        await supervising
        await stops[0]
    assert child.pid is None
    assert len(stops) == 1


async def test_a_stop_before_a_restarted_child_is_ready_stops_it(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = (
        "import pathlib, signal, sys; p = pathlib.Path(sys.argv[1])\n"
        "p.open('a').write('x')\n"
        f"if len(p.read_text()) == 2: signal.pause()\n{SERVES}"
    )
    child = _child(script, str(starts))
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    os.kill(_pid(child), signal.SIGKILL)
    await _until(lambda: starts.read_text() == "xx")
    async with asyncio.timeout(BOUND):
        await asyncio.gather(child.stop(), supervising)
    assert child.pid is None
    assert starts.read_text() == "xx"


async def test_a_child_has_a_process_group_of_its_own() -> None:
    child = _child(SERVES)
    await child.start()
    assert child.pid is not None
    assert os.getpgid(child.pid) == child.pid != os.getpgrp()
    await child.stop()


async def test_a_chatty_child_is_not_blocked_by_its_pipe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = _child("print('ready x', flush=True); print('y' * 1_000_000, flush=True); " + SERVES)
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    seen = 0

    async with asyncio.timeout(BOUND):
        while seen < 1_000_000:
            seen += len(capfd.readouterr().err)
            await asyncio.sleep(0.01)

    supervising.cancel()
    await asyncio.wait([supervising])
    await child.stop()


async def test_a_child_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program, away = tmp_path / "program", tmp_path / "away"
    program.write_text(f"#!{sys.executable}\n{SERVES}")
    program.chmod(0o755)
    child = Child("worker", tuple, {}, program=(str(program),), backoff=FAST)
    await child.start()
    supervising = asyncio.create_task(child.supervise())
    program.rename(away)
    os.kill(_pid(child), signal.SIGKILL)
    await _until(lambda: "The worker can't be started: " in caplog.text)
    away.rename(program)
    await _until(lambda: child.pid is not None)
    await child.stop()
    await supervising
