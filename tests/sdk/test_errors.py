from __future__ import annotations

import pickle
import re

import pytest

from leaseway.sdk import errors
from leaseway.sdk.errors import LeaseError, LeasewayError, Violation, error_from_fault
from leaseway.wire.errors import Fault, Reason


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_has_a_class_of_its_own(reason: Reason) -> None:
    error = error_from_fault(Fault(reason, "What happened.", "yes", {"k": "v"}, 1.5))
    assert error.reason is reason
    assert type(error) not in (LeasewayError, LeaseError)
    assert (error.message, str(error)) == ("What happened.", "What happened.")
    assert (error.started, error.retry_after, error.metadata) == ("yes", 1.5, {"k": "v"})


def test_the_tree_at_the_top_of_the_module_draws_every_class() -> None:
    drawn = set(re.findall(r"[├└] (\w+)", errors.__doc__ or ""))
    classes = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type)
        and issubclass(one, errors.LeasewayError)
        and one is not errors.LeasewayError
    }
    assert drawn == classes


def test_a_timeout_can_be_caught_as_pythons_own() -> None:
    with pytest.raises(TimeoutError):
        raise error_from_fault(Fault(Reason.DEADLINE_EXCEEDED, "Late."))


def test_a_lost_lease_is_named() -> None:
    error = error_from_fault(Fault(Reason.LEASE_LOST, "Gone.", metadata={"lease": "abc-1"}))
    assert isinstance(error, LeaseError)
    assert error.lease_id == "abc-1"


def test_violations_say_field_and_what_is_wrong() -> None:
    fault = Fault(Reason.INVALID_ARGUMENTS, "No.", violations=(("a.b", "is not a number"),))
    error = error_from_fault(fault)
    assert isinstance(error, errors.InvalidArguments)
    assert error.violations == [Violation("a.b", "is not a number")]


def test_the_text_of_rejected_arguments_names_the_first_violations() -> None:
    wrong = tuple((f"f{i}", "is missing.") for i in range(7))
    text = str(error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong[:1])))
    assert text == "No. f0: is missing."
    text = str(error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong)))
    assert text.startswith("No. f0: is missing; f1: is missing; ")
    assert text.endswith("f4: is missing; and 2 more.")
    assert str(errors.InvalidArguments("No.")) == "No."


def test_what_breaks_the_arguments_as_a_whole_is_said_of_them() -> None:
    wrong = (("$", "Additional properties are not allowed."), ("$.n", "is missing."))
    error = error_from_fault(Fault(Reason.INVALID_ARGUMENTS, "No.", violations=wrong))
    assert str(error) == ("No. arguments: Additional properties are not allowed; $.n: is missing.")
    assert isinstance(error, errors.InvalidArguments)
    assert error.violations[0].field == "$"


def test_what_the_message_says_already_is_not_said_again() -> None:
    fault = Fault(Reason.INVALID_ARGUMENTS, "Too deep.", violations=(("$", "Too deep."),))
    assert str(error_from_fault(fault)) == "Too deep."


def test_a_server_error_has_its_code_and_data() -> None:
    metadata = {"code": "-32042", "data": '{"url": "x"}'}
    error = error_from_fault(Fault(Reason.SERVER_ERROR, "No.", "yes", metadata))
    assert isinstance(error, errors.ServerError)
    assert (error.code, error.data) == (-32042, {"url": "x"})


@pytest.mark.parametrize(("code", "data"), [("", ""), ("x", "not json")])
def test_a_server_error_without_proper_details_still_reads(code: str, data: str) -> None:
    error = errors.ServerError("No.", metadata={"code": code, "data": data})
    assert error.code is None
    assert error.data == (data or None)


def test_a_lost_server_has_its_exit_status_and_last_words() -> None:
    metadata = {"exit_status": "-9", "stderr": "a\nb"}
    error = error_from_fault(Fault(Reason.SERVER_LOST, "Died.", "unknown", metadata))
    assert isinstance(error, errors.ServerLost)
    assert (error.exit_status, error.stderr) == (-9, "a\nb")


def test_a_question_that_nobody_answers_is_named() -> None:
    metadata = {"method": "elicitation/create"}
    error = error_from_fault(Fault(Reason.INPUT_REQUIRED, "Pass it.", metadata=metadata))
    assert isinstance(error, errors.InputRequired)
    assert error.method == "elicitation/create"


def test_a_confirmation_has_an_id() -> None:
    error = errors.ConfirmationRequired("Ask.", metadata={"confirmation_id": "c1"})
    assert error.confirmation_id == "c1"


@pytest.mark.parametrize("reason", [Reason.INVALID_ARGUMENTS, Reason.DEADLINE_EXCEEDED])
def test_an_error_survives_the_way_through_a_task_queue(reason: Reason) -> None:
    fault = Fault(reason, "No.", "unknown", {"server": "s"}, 2.0, (("f", "m"),))
    error = error_from_fault(fault)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
