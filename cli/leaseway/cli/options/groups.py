"""Options that a command takes as one value, and the same options for a child process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from leaseway.cli.options.common import Command, with_options

Options = Mapping[str, Callable[[Command], Command]]
"""Options by what their value is called in the group, in the order of the help."""


def grouped_options(
    argument: str, build: Callable[..., Any], options: Options
) -> Callable[[Command], Command]:
    """Return a decorator that adds options and passes their values as one argument.

    Args:
        argument: The name of that argument.
        build: Returns its value, from the options' values by what they are called.
    """
    names = {name: str(_declared(option).name) for name, option in options.items()}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**kwargs: Any) -> Any:
            value = build(**{name: kwargs.pop(given) for name, given in names.items()})
            return command(**{argument: value}, **kwargs)

        return with_options(wrapper, list(options.values()))

    return decorate


def arguments_for(options: Options, values: object) -> list[str]:
    """Return the words with which a child process gets the same values of options.

    Options with their default are left out, unless a variable of the environment may set them.

    Args:
        values: Has a value for each, as an attribute.
    """
    words: list[str] = []
    for name, option in options.items():
        words += _words(_declared(option), getattr(values, name))
    return words


def variables_of(options: Options) -> frozenset[str]:
    """Return the variables of the environment that set options."""
    named = (_declared(option).envvar for option in options.values())
    return frozenset(name for name in named if isinstance(name, str))


def _declared(option: Callable[[Command], Command]) -> click.Option:
    def command() -> None:
        """Do nothing: click notes the options of a command at its function."""

    option(command)
    declared: click.Option = command.__click_params__[0]  # type: ignore[attr-defined]
    return declared


def _words(option: click.Option, value: Any) -> list[str]:
    if value is None or (option.envvar is None and _is_default(option, value)):
        return []
    if option.is_flag:
        return [(option.opts if value else option.secondary_opts)[0]]
    return [word for text in _texts(option, value) for word in (option.opts[0], text)]


def _is_default(option: click.Option, value: Any) -> bool:
    if value == option.default:
        return True
    if option.multiple and not isinstance(option.default, tuple):
        return not value  # it has none
    return _texts(option, value) == _texts(option, option.default)


def _texts(option: click.Option, value: Any) -> list[str]:
    """Return a value as words from which it is read again."""
    if option.multiple:
        return [str(part) for part in value]
    return [",".join(value) if isinstance(value, tuple) else str(value)]
