"""The content that a restarted control plane lacks is asked of one worker each."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Mapping

from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.control_plane.core.workers.content_requests import (
    MAX_ASKED,
    Content,
    ContentRequests,
)
from leaseway.spec.model import VariantKey

A, B = VariantKey("a"), VariantKey("b")


def held(*keys: VariantKey, launch: str = "L") -> dict[VariantKey, Hashes]:
    return {key: Hashes(launch, "E", "T") for key in keys}


def unknown(_key: VariantKey, _hashes: Hashes) -> bool:
    return False


def content(*keys: VariantKey) -> list[Content]:
    return [(key, "L") for key in keys]


def joined(
    workers: Mapping[str, Mapping[VariantKey, Hashes]], now: float = 0.0
) -> tuple[ContentRequests, dict[str, tuple[VariantKey, ...]]]:
    """Return requests after these workers have joined, and what each was asked for."""
    requests = ContentRequests()
    asked: dict[str, tuple[VariantKey, ...]] = {}
    for worker_id, what in workers.items():
        requests.join(worker_id, what, unknown, now)
        asked |= dict(requests.assign(now))
    return requests, asked


def test_a_thousand_workers_with_ten_thousand_servers_are_asked_for_each_once() -> None:
    everything = held(*(VariantKey(f"s{number:05}") for number in range(10_000)))
    requests = ContentRequests()
    asked: Counter[VariantKey] = Counter()
    batches: Counter[str] = Counter()
    questions: list[tuple[str, tuple[VariantKey, ...]]] = []
    for number in range(1_000):
        requests.join(f"w{number:03}", everything, unknown, number / 1_000)
        questions += requests.assign(number / 1_000)
        if number % 10 == 9:  # answers arrive while others still join
            for worker_id, keys in questions:
                assert len(keys) <= MAX_ASKED
                asked.update(keys)
                batches[worker_id] += 1
                requests.receive(worker_id, content(*keys), number / 1_000)
            questions = requests.assign(number / 1_000)
    assert asked == dict.fromkeys(everything, 1)
    assert not requests.is_waiting
    assert sum(batches.values()) <= 10_000 / MAX_ASKED + 10


def test_another_worker_is_asked_for_what_one_does_not_send() -> None:
    requests, asked = joined({"w1": held(A, B), "w2": held(A, B)})
    assert asked == {"w1": (A, B)}
    requests.receive("w1", content(A), 1.0)
    assert requests.assign(1.0) == [("w2", (B,))]
    requests.receive("w2", content(B), 2.0)
    assert (requests.is_waiting, requests.next_deadline()) == (False, None)


def test_another_worker_is_asked_when_the_asked_one_leaves() -> None:
    requests, _ = joined({"w1": held(A), "w2": held(A)})
    requests.leave("w1")
    assert requests.assign(1.0) == [("w2", (A,))]
    requests.leave("w2")
    assert not requests.is_waiting, "nobody has it any more"


def test_a_worker_that_joins_later_is_asked_for_what_nobody_sent() -> None:
    requests, _ = joined({"w1": held(A)})
    requests.receive("w1", (), 1.0)
    assert requests.assign(1.0) == []
    assert requests.is_waiting
    requests.join("w2", held(A), unknown, 2.0)
    assert requests.assign(2.0) == [("w2", (A,))]


def test_a_slow_worker_is_passed_over_and_its_late_answer_is_used() -> None:
    requests, _ = joined({"w1": held(A), "w2": held(A)})
    assert requests.next_deadline() == 3.0
    requests.expire(2.9)
    assert requests.assign(2.9) == []
    requests.expire(3.0)
    assert requests.assign(3.0) == [("w2", (A,))]
    requests.receive("w1", content(A), 3.5)
    assert not requests.is_waiting


def test_a_worker_is_not_slow_while_the_control_plane_hears_from_others() -> None:
    requests, _ = joined({"w1": held(A), "w2": held(A)})
    for second in range(1, 10):
        requests.join(f"w{second + 2}", held(A), unknown, float(second))
        requests.expire(float(second))
        assert requests.assign(float(second)) == []


def test_a_worker_is_slow_when_one_that_was_asked_later_has_answered() -> None:
    requests, _ = joined({"w1": held(A), "w2": held(A)})
    requests.join("w3", held(B), unknown, 3.0)
    assert requests.assign(3.0) == [("w3", (B,))]
    requests.receive("w3", content(B), 3.1)
    requests.expire(3.1)
    assert requests.assign(3.1) == [("w2", (A,))]


def test_the_wait_ends_with_the_names_of_the_silent_workers() -> None:
    requests, _ = joined({"w1": held(A, B)})
    assert requests.expire(14.9) == {}
    assert requests.expire(15.0) == {"w1": [A, B]}
    assert not requests.is_waiting
    requests.join("w2", held(A), unknown, 16.0)
    assert requests.assign(16.0) == [("w2", (A,))]
    assert not requests.is_waiting, "silent workers delay the configuration only once"


def test_the_wait_is_longer_while_content_arrives_but_has_an_end() -> None:
    keys = [VariantKey(f"s{number:03}") for number in range(MAX_ASKED * 40)]
    requests, asked = joined({"w1": held(*keys)})
    for second in range(2, 60, 2):
        (batch,) = asked.values()
        requests.receive("w1", content(*batch), float(second))
        assert requests.expire(float(second)) == {}
        asked = dict(requests.assign(float(second)))
    assert requests.is_waiting
    assert "w1" in requests.expire(60.0)


def test_content_is_expected_for_a_second_after_the_question_and_after_each_answer() -> None:
    requests, _ = joined({"w1": held(A, B)}, now=2.9)
    assert requests.is_arriving(3.0), "the control plane settles: it must not probe what it asked"
    assert not requests.is_arriving(3.9)
    requests.receive("w1", content(A), 4.0)
    assert requests.is_arriving(4.9)
    assert not requests.is_arriving(5.0)


def test_workers_with_different_launches_of_a_server_are_asked_for_both() -> None:
    requests, asked = joined({"w1": held(A), "w2": held(A, launch="M")})
    assert asked == {"w1": (A,), "w2": (A,)}
    requests.receive("w1", content(A), 1.0)
    assert requests.awaits_of("w2")
    assert not requests.awaits_of("w1")


def test_what_is_known_is_not_asked_for() -> None:
    requests = ContentRequests()
    assert not requests.join("w1", held(A), lambda key, _hashes: key == A, 0.0)
    assert requests.assign(0.0) == []


def test_a_worker_that_left_before_it_answered_is_asked_again() -> None:
    holds = held(A)
    requests, _ = joined({"w1": holds})
    requests.leave("w1")
    assert not requests.is_waiting
    assert requests.join("w1", holds, unknown, 1.0)
    assert requests.assign(1.0) == [("w1", (A,))]


class _Held(dict[VariantKey, Hashes]):
    """Hashes that a test can see go."""


def test_what_workers_held_before_they_joined_again_is_not_kept() -> None:
    requests = ContentRequests()
    seen: list[weakref.ref[_Held]] = []
    for number in range(200):
        holds = _Held(held(A, launch=f"L{number}"))
        seen.append(weakref.ref(holds))
        requests.join("w", holds, lambda _key, _hashes: True, float(number))
    gc.collect()
    assert sum(reference() is not None for reference in seen) < 100
