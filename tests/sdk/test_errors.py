from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable

import pytest

from leaseway import sdk
from leaseway.sdk import errors
from leaseway.sdk.errors import LeaseError, LeasewayError, Violation, error_from_fault
from leaseway.wire.errors import Fault, Reason


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_has_its_own_class(reason: Reason) -> None:
    error = error_from_fault(
        Fault(
            reason=reason,
            message="What happened.",
            started="yes",
            metadata={"k": "v"},
            retry_delay=1.5,
        )
    )
    assert error.reason is reason
    assert type(error) not in (LeasewayError, LeaseError)
    assert (error.message, str(error)) == ("What happened.", "What happened.")
    assert (error.started, error.retry_after, error.metadata) == ("yes", 1.5, {"k": "v"})


def drawn() -> set[str]:
    return set(re.findall(r"[├└] (\w+)", errors.__doc__ or ""))


def test_the_tree_in_the_module_docstring_shows_every_class() -> None:
    classes = {
        name
        for name, variable in vars(errors).items()
        if isinstance(variable, type)
        and issubclass(variable, errors.LeasewayError)
        and variable is not errors.LeasewayError
    }
    assert drawn() == classes


def test_each_class_is_public() -> None:
    assert drawn() <= set(sdk.__all__)


def test_deadline_exceeded_is_a_timeout_error() -> None:
    with pytest.raises(TimeoutError):
        raise error_from_fault(Fault(Reason.DEADLINE_EXCEEDED, "Late."))


@pytest.mark.parametrize(
    ("reason", "metadata", "expected"),
    [
        (Reason.LEASE_LOST, {"lease": "abc-1"}, {"lease_id": "abc-1"}),
        (
            Reason.SERVER_ERROR,
            {"code": "-32042", "data": '{"url": "x"}'},
            {"code": -32042, "data": {"url": "x"}},
        ),
        (Reason.SERVER_ERROR, {"code": "", "data": ""}, {"code": None, "data": None}),
        (
            Reason.SERVER_ERROR,
            {"code": "x", "data": "not json"},
            {"code": None, "data": "not json"},
        ),
        (
            Reason.SERVER_LOST,
            {"exit_status": "-9", "stderr": "a\nb"},
            {"exit_status": -9, "stderr": "a\nb"},
        ),
        (Reason.LOGIN_REQUIRED, {"server": "tracker"}, {"server": "tracker"}),
        (
            Reason.AUTHORIZATION_FAILED,
            {"oauth_error": "invalid_client"},
            {"oauth_error": "invalid_client"},
        ),
        (Reason.INPUT_REQUIRED, {"method": "roots/list"}, {"method": "roots/list"}),
        (
            Reason.CONFIRMATION_REQUIRED,
            {"confirmation_id": "c1", "may_approve": "yes"},
            {"confirmation_id": "c1", "may_approve": True},
        ),
    ],
)
def test_errors_have_properties_for_their_metadata(
    reason: Reason, metadata: dict[str, str], expected: dict[str, object]
) -> None:
    error = error_from_fault(Fault(reason, "No.", "yes", metadata))
    assert {name: getattr(error, name) for name in expected} == expected


def test_the_text_of_rejected_arguments_names_the_first_violations() -> None:
    wrong = tuple((f"f{i}", "is missing.") for i in range(7))
    text = str(error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong[:1])))
    assert text == "No. f0: is missing."
    text = str(error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong)))
    assert text.startswith("No. f0: is missing; f1: is missing; ")
    assert text.endswith("f4: is missing; and 2 more.")
    assert str(errors.InvalidArguments("No.")) == "No."


def test_a_violation_of_the_whole_object_is_shown_as_one_of_the_arguments() -> None:
    wrong = (("$", "Additional properties are not allowed."), ("$.n", "is missing."))
    error = error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong))
    assert str(error) == "No. arguments: Additional properties are not allowed; $.n: is missing."
    assert isinstance(error, errors.InvalidArguments)
    assert error.violations == [Violation(*violation) for violation in wrong]


def test_a_violation_that_the_message_contains_is_not_repeated() -> None:
    fault = Fault(Reason.INVALID_ARGUMENTS, "Too deep.", violations=(("$", "Too deep."),))
    assert str(error_from_fault(fault)) == "Too deep."


@pytest.mark.parametrize("reason", [Reason.INVALID_ARGUMENTS, Reason.DEADLINE_EXCEEDED])
def test_errors_can_be_pickled(reason: Reason) -> None:
    fault = Fault(
        reason=reason,
        message="No.",
        started="unknown",
        metadata={"server": "s"},
        retry_delay=2.0,
        violations=(("f", "m"),),
    )
    error = error_from_fault(fault)
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error)
    assert vars(other) == vars(error)


class OfAUser(errors.ServerError):
    def __init__(self, attempt: int) -> None:
        super().__init__(f"Attempt {attempt} failed.", metadata={"advice": "Wait."})
        self.attempt = attempt


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
@pytest.mark.parametrize("error", [OfAUser(3), errors.DeadlineExceeded("Late.", started="yes")])
def test_copies_of_errors_keep_what_was_added_to_them(
    error: LeasewayError, again: Callable[[LeasewayError], LeasewayError]
) -> None:
    error.add_note("Seen twice.")
    other = again(error)
    assert type(other) is type(error)
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
    assert "Seen twice." in other.__notes__
