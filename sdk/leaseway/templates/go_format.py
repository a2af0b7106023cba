"""Formatting of values like Go's `fmt`: the verbs, flags, widths and errors of `printf`.

Values are those of JSON: None, booleans, integers (Go's `int`), floats (`float64`), strings, lists
(`[]interface {}`) and mappings (`map[string]interface {}`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

_MAX_WIDTH: Final = 1_000_000
_FIXED_FROM: Final = -4
_FIXED_TO: Final = 6
"""Range of exponents that `%v` prints as fixed-point numbers."""
_NO_VALUE: Final = "<nil>"
_FLAGS: Final = "#0+- "
_ESCAPES: Final = {
    7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v", 92: "\\\\",
}  # fmt: skip
_DELETE: Final = 0x7F
_ASCII: Final = 0x80
_BMP: Final = 0x10000
_MAX_RUNE: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


class Unprintable(Exception):
    """A value that Go's verb can print but this module cannot; the message names them."""


def type_name(value: Any) -> str:
    """Return Go's name of a value's type."""
    match value:
        case None:
            return _NO_VALUE
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case Mapping():
            return "map[string]interface {}"
        case _:
            return "[]interface {}"


def to_text(value: Any) -> str:
    """Format a value like `%v`."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return float_text(value)
        case None:
            return _NO_VALUE
        case Mapping():
            return "map[" + " ".join(f"{k}:{to_text(value[k])}" for k in sorted(value)) + "]"
        case _:
            return "[" + " ".join(map(to_text, value)) + "]"


def print_all(values: Sequence[Any]) -> str:
    """Format values like `print`: with a space between two values if neither is a string."""
    parts: list[str] = []
    for number, value in enumerate(values):
        if number and not isinstance(value, str) and not isinstance(values[number - 1], str):
            parts.append(" ")
        parts.append(to_text(value))
    return "".join(parts)


def print_format(text: str, values: Sequence[Any]) -> str:
    return _Printer(text, values).result()


def float_text(value: float, verb: str = "g", precision: int = -1) -> str:
    """Format a finite float like `strconv`; precision -1 means the fewest exact digits."""
    if precision >= 0 and verb in "eEfF":
        return f"{value:.{precision}{verb}}"
    if precision >= 0:
        return _general(value, precision, upper=verb == "G")
    sign, digits, exponent = _shortest(value)
    prefix = "-" if sign else ""
    if verb in "fF":
        return prefix + _fixed(digits, exponent)
    if verb in "eE" or not _FIXED_FROM <= exponent < _FIXED_TO:
        return prefix + _scientific(digits, exponent, "E" if verb in "EG" else "e")
    return prefix + _fixed(digits, exponent)


def quoted(text: str, *, ascii_only: bool = False) -> str:
    """Return a text in double quotes with Go's escapes."""
    return '"' + "".join(_escaped(char, '"', ascii_only) for char in text) + '"'


def _escaped(char: str, quote: str, ascii_only: bool) -> str:
    code = ord(char)
    if char == quote:
        return "\\" + char
    if code in _ESCAPES:
        return _ESCAPES[code]
    if char.isprintable() and (code < _ASCII or not ascii_only):
        return char
    if code < ord(" ") or code == _DELETE:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < _BMP else f"\\U{code:08x}"


def _shortest(value: float) -> tuple[int, str, int]:
    """Return sign, the fewest digits that identify this float, and their exponent."""
    sign, digits, shift = Decimal(repr(value)).as_tuple()
    assert isinstance(shift, int)
    text = "".join(map(str, digits)).rstrip("0") or "0"
    dropped = len(digits) - len(text) if text != "0" else 0
    exponent = len(text) - 1 + shift + dropped if text != "0" else 0
    return sign, text, exponent


def _fixed(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return f"{whole}.{rest}" if rest else whole


def _scientific(digits: str, exponent: int, letter: str) -> str:
    mantissa = digits[0] + (f".{digits[1:]}" if digits[1:] else "")
    return f"{mantissa}{letter}{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _general(value: float, precision: int, *, upper: bool) -> str:
    precision = precision or 1
    text = f"{value:.{precision - 1}e}"
    mantissa, _, exponent = text.partition("e")
    digits = mantissa.replace(".", "").lstrip("-").rstrip("0") or "0"
    power = int(exponent)
    sign = "-" if mantissa.startswith("-") else ""
    # If all significant digits are before the point, Go allows as many digits as there are.
    limit = precision
    if limit > len(digits) and len(digits) >= power + 1:
        limit = len(digits)
    if not _FIXED_FROM <= power < limit:
        return sign + _scientific(digits, power, "E" if upper else "e")
    return sign + _fixed(digits, power)


@dataclass
class _Flags:
    sharp: bool = False
    zero: bool = False
    plus: bool = False
    minus: bool = False
    space: bool = False
    sharp_v: bool = False
    width: int | None = None
    precision: int | None = None


class _Printer:
    """One call of `printf`."""

    def __init__(self, text: str, values: Sequence[Any]) -> None:
        self._text = text
        self._values = values
        self._at = 0
        self._next = 0
        self._reordered = False
        self._good = True
        self._flags = _Flags()

    def result(self) -> str:
        parts: list[str] = []
        while True:
            percent = self._text.find("%", self._at)
            if percent < 0:
                parts.append(self._text[self._at :])
                break
            parts.append(self._text[self._at : percent])
            self._at = percent + 1
            parts.append(self._verb())
        if not self._reordered and self._next < len(self._values):
            self._flags = _Flags()
            extra = (
                _NO_VALUE if value is None else f"{type_name(value)}={to_text(value)}"
                for value in self._values[self._next :]
            )
            parts.append(f"%!(EXTRA {', '.join(extra)})")
        return "".join(parts)

    def _verb(self) -> str:
        text, flags = self._text, _Flags()
        self._flags, self._good = flags, True
        while self._at < len(text) and text[self._at] in _FLAGS:
            match text[self._at]:
                case "#":
                    flags.sharp = True
                case "0":
                    flags.zero = True
                case "+":
                    flags.plus = True
                case "-":
                    flags.minus = True
                case _:
                    flags.space = True
            self._at += 1
        indexed = self._index()
        error, indexed = self._width(flags, indexed)
        precision_error, indexed = self._precision(flags, indexed)
        error += precision_error
        if not indexed:
            self._index()
        if self._at >= len(text):
            return error + "%!(NOVERB)"
        verb = text[self._at]
        self._at += 1
        return error + self._print(verb)

    def _print(self, verb: str) -> str:
        if verb == "%":
            return "%"
        if not self._good:
            return f"%!{verb}(BADINDEX)"
        if self._next >= len(self._values):
            return f"%!{verb}(MISSING)"
        if verb == "v":
            self._flags.sharp_v, self._flags.sharp, self._flags.plus = (
                self._flags.sharp, False, False,
            )  # fmt: skip
        value = self._values[self._next]
        self._next += 1
        return self._format(value, verb)

    # Numbers before the verb.

    def _index(self) -> bool:
        if self._text[self._at : self._at + 1] != "[":
            return False
        self._reordered = True
        end = self._text.find("]", self._at)
        if end < 0:
            self._good = False
            self._at += 1
            return False
        digits = self._text[self._at + 1 : end]
        self._at = end + 1
        is_number = digits.isascii() and digits.isdecimal() and len(digits) <= len("1000000")
        if is_number and 0 < int(digits) <= len(self._values):
            self._next = int(digits) - 1
            return True
        self._good = False
        return is_number

    def _digits(self) -> int | None:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in "0123456789":
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            return None
        if len(digits) > len("10000000") or int(digits) > _MAX_WIDTH * 10:
            self._at = len(self._text)
            return None
        return int(digits)

    def _star(self) -> int | None:
        self._at += 1
        if self._next >= len(self._values):
            return None
        value = self._values[self._next]
        self._next += 1
        if type(value) is not int or abs(value) > _MAX_WIDTH:
            return None
        return value

    def _width(self, flags: _Flags, indexed: bool) -> tuple[str, bool]:
        if self._text[self._at : self._at + 1] != "*":
            flags.width = self._digits()
            if indexed and flags.width is not None:
                self._good = False
            return "", indexed
        flags.width = self._star()
        if flags.width is None:
            return "%!(BADWIDTH)", False
        if flags.width < 0:
            flags.width, flags.minus, flags.zero = -flags.width, True, False
        return "", False

    def _precision(self, flags: _Flags, indexed: bool) -> tuple[str, bool]:
        if self._text[self._at : self._at + 1] != "." or self._at + 1 >= len(self._text):
            return "", indexed
        self._at += 1
        if indexed:
            self._good = False
        indexed = self._index()
        if self._text[self._at : self._at + 1] != "*":
            flags.precision = self._digits() or 0
            return "", indexed
        flags.precision = self._star()
        if flags.precision is None or flags.precision < 0:
            flags.precision = None
            return "%!(BADPREC)", False
        return "", False

    # Values.

    def _format(self, value: Any, verb: str) -> str:
        if value is None:
            return self._pad(_NO_VALUE) if verb in "vT" else f"%!{verb}({_NO_VALUE})"
        if verb == "T":
            return self._pad(self._cut(type_name(value)))
        if verb == "p" and not isinstance(value, bool | int | float | str):
            raise Unprintable("printf does not support %p: JSON values have no address")
        return self._value(value, verb)

    def _value(self, value: Any, verb: str) -> str:
        match value:
            case None:
                return "interface {}(nil)" if self._flags.sharp_v else _NO_VALUE
            case bool():
                text = "true" if value else "false"
                return self._pad(text) if verb in "tv" else self._bad(verb, value)
            case int():
                return self._int(value, verb)
            case float():
                return self._float(value, verb)
            case str():
                return self._str(value, verb)
            case Mapping():
                keys = sorted(value)
                pairs = [f"{self._value(k, verb)}:{self._value(value[k], verb)}" for k in keys]
                if self._flags.sharp_v:
                    return f"{type_name(value)}{{{', '.join(pairs)}}}"
                return f"map[{' '.join(pairs)}]"
            case _:
                items = [self._value(item, verb) for item in value]
                if self._flags.sharp_v:
                    return f"{type_name(value)}{{{', '.join(items)}}}"
                return f"[{' '.join(items)}]"

    def _bad(self, verb: str, value: Any) -> str:
        return f"%!{verb}({type_name(value)}={self._value(value, 'v')})"

    def _pad(self, text: str, *, zeros: bool = True) -> str:
        flags = self._flags
        width = flags.width or 0
        if flags.minus:
            return text.ljust(width)
        return text.rjust(width, "0" if flags.zero and zeros else " ")

    def _cut(self, text: str) -> str:
        return text if self._flags.precision is None else text[: self._flags.precision]

    def _str(self, value: str, verb: str) -> str:
        flags = self._flags
        if verb in "sv" and not flags.sharp_v:
            return self._pad(self._cut(value))
        if verb in "qv":
            cut = self._cut(value)
            if (flags.sharp or flags.sharp_v) and verb == "q" and _can_backquote(cut):
                return self._pad(f"`{cut}`")
            return self._pad(quoted(cut, ascii_only=flags.plus))
        if verb in "xX":
            return self._hex(value.encode("utf-8", "replace"), verb)
        return self._bad(verb, value)

    def _hex(self, data: bytes, verb: str) -> str:
        flags = self._flags
        if flags.precision is not None:
            data = data[: flags.precision]
        prefix = f"0{verb}" if flags.sharp else ""
        pairs = [f"{byte:02{verb}}" for byte in data]
        if flags.space:
            text = " ".join(prefix + pair for pair in pairs)
        else:
            text = prefix + "".join(pairs) if pairs else ""
        return self._pad(text)

    def _int(self, value: int, verb: str) -> str:
        flags = self._flags
        if verb in "vdboOxX":
            return self._digits_of(value, verb)
        is_rune = 0 <= value <= _MAX_RUNE and value not in _SURROGATES
        rune = chr(value) if is_rune else "\ufffd"
        if verb == "c":
            return self._pad(rune)
        if verb == "q":
            return self._pad(f"'{_escaped(rune, chr(39), flags.plus)}'")
        if verb == "U":
            text = f"U+{value % 2**64:0{max(4, flags.precision or 0)}X}"
            if flags.sharp and is_rune and rune.isprintable():
                text += f" '{rune}'"
            return self._pad(text, zeros=False)
        return self._bad(verb, value)

    def _digits_of(self, value: int, verb: str) -> str:
        flags = self._flags
        base = {"v": "d", "O": "o"}.get(verb, verb)
        digits = f"{abs(value):{base}}"
        sign = "-" if value < 0 else "+" if flags.plus else " " if flags.space else ""
        if flags.precision is not None:
            if flags.precision == 0 and value == 0:
                return " " * (flags.width or 0)
            digits = digits.rjust(flags.precision, "0")
        elif flags.zero and not flags.minus and flags.width is not None:
            digits = digits.rjust(flags.width - len(sign), "0")
        if flags.sharp:
            if base == "o":
                digits = digits if digits.startswith("0") else "0" + digits
            else:
                digits = {"b": "0b", "x": "0x", "X": "0X"}.get(base, "") + digits
        if verb == "O":
            digits = "0o" + digits
        return self._pad(sign + digits, zeros=False)

    def _float(self, value: float, verb: str) -> str:
        flags = self._flags
        if verb in "bxX":
            raise Unprintable(f"printf does not support %{verb} for floats")
        if verb not in "vgGeEfF":
            return self._bad(verb, value)
        shape = {"v": "g", "F": "f"}.get(verb, verb)
        precision = flags.precision
        if precision is None:
            precision = 6 if shape in "eEf" else -1
        text = float_text(value, shape, precision)
        sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("+", text)
        if sign == "+" and flags.space and not flags.plus:
            sign = " "
        if flags.sharp:
            digits = _with_point(digits, shape, precision)
        if flags.plus or sign != "+":
            if flags.zero and not flags.minus and (flags.width or 0) > len(digits) + 1:
                return sign + digits.rjust((flags.width or 0) - 1, "0")
            return self._pad(sign + digits)
        return self._pad(digits)


def _can_backquote(text: str) -> bool:
    return "`" not in text and all(
        char == "\t" or (char >= " " and char not in "\x7f\ufeff") for char in text
    )


def _with_point(number: str, shape: str, precision: int) -> str:
    """Add the point, and for %g the zeros, that the flag `#` requires."""
    digits = (6 if precision == -1 else precision) if shape in "gG" else 0
    letter = next((char for char in number if char in "eE"), "")
    mantissa, _, exponent = number.partition(letter) if letter else (number, "", "")
    significant = mantissa.replace(".", "").lstrip("0")
    missing = digits - len(significant)
    if "." not in mantissa:
        missing -= mantissa == "0"
        mantissa += "."
    return mantissa + "0" * max(0, missing) + letter + exponent
