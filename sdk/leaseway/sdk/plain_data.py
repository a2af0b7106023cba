"""Results as plain data, for `json`, pydantic, FastAPI and stores of agent frameworks.

pydantic is imported only if it asks a class for its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any


class _PydanticSerializer:
    """What pydantic looks for in a value of a type that nothing declares, such as in an `Any`.

    FastAPI writes the result of a route that is annotated with `Any` or a dict of these like that.
    """

    def __get__(self, _value: object, kind: Any) -> Any:
        try:
            return _serializer_of(kind)
        except ImportError as error:  # whoever looks at all members of an object
            raise AttributeError(str(error)) from None


@cache
def _serializer_of(kind: Any) -> Any:
    from pydantic_core import SchemaSerializer

    return SchemaSerializer(kind.__get_pydantic_core_schema__(kind, None))


class PlainData:
    """An object that can be returned and stored as a dict of JSON values.

    `dict(value)` and `json.dumps(value, default=dict)` work too, and so does a pydantic field or a
    FastAPI route of its class or of `Any`.
    """

    __slots__ = ()
    __pydantic_serializer__ = _PydanticSerializer()

    def to_dict(self) -> dict[str, Any]:
        """Return the value as a dict of JSON values."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the members of `to_dict`, as models of pydantic do."""
        return iter(self.to_dict().items())

    @classmethod
    def _validate(cls, value: Any) -> Any:
        """Return a value of this class for a pydantic field; raises ValueError."""
        if isinstance(value, cls):
            return value
        raise ValueError(f"The value must be a {cls.__name__}; it is {type(value).__name__}.")

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        return plain_schema(cls._validate, cls.to_dict)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "object", "title": cls.__name__}


def plain_schema(validate: Any, serialize: Any) -> Any:
    """Return pydantic's schema of a class.

    Args:
        validate: Returns an instance for a value; raises ValueError.
        serialize: Returns the plain data of an instance.
    """
    from pydantic_core import core_schema

    serialization = core_schema.plain_serializer_function_ser_schema(serialize)
    return core_schema.no_info_plain_validator_function(validate, serialization=serialization)
