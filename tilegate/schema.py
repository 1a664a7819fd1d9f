"""Plain data to typed, frozen dataclasses, with one-line errors. Knows nothing of the house."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from tilegate.errors import UserError, nearest

T = TypeVar("T")
NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false"}


@dataclasses.dataclass(frozen=True)
class Least:
    """Annotates a number that may not be below `value`."""

    value: float


Count = Annotated[int, Least(0)]
Positive = Annotated[int, Least(1)]


def build(kind: type[T], value: Any, path: str) -> T:
    """`value` (mappings, lists, scalars) as an instance of the dataclass `kind`.

    `path` is the dotted key that errors name. Raises UserError for an unknown, missing or badly
    typed value and for a number below its `Least`.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{path}: {value!r} is not a group of keys")
    hints = _hints(typing.cast(Hashable, kind))
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            raise UserError(f"{join(path, key)}: unknown key; {nearest(str(key), fields)}")
    built = {}
    for name, field in fields.items():
        here = join(path, name)
        if name in value:
            built[name] = convert(hints[name], value[name], here)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{here}: missing; it has no default")
    return kind(**built)


def convert(kind: Any, value: Any, path: str) -> Any:
    """`value` as the annotated type `kind`; see `build`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _above(convert(args[0], value, path), args[1], path)
    if origin in (Union, types.UnionType):
        return _union(args, value, path)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            raise UserError(
                f"{path}: {value!r} is not valid; {nearest(str(value), map(str, args))}"
            )
        return value
    if origin is tuple:
        return _tuple(args, value, path)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise UserError(f"{path}: {value!r} is not a group of keys")
        return {str(k): convert(args[1], v, join(path, k)) for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type, kind), value, path)
    return _scalar(kind, value, path)


def join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


@functools.cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _union(args: tuple[Any, ...], value: Any, path: str) -> Any:
    """The first alternative of the value's own kind decides, so that its error is the error."""
    for arg in args:
        if _fits(arg, value):
            return None if value is None else convert(arg, value, path)
    wanted = " or ".join(_describe(a) for a in args)
    raise UserError(f"{path}: {value!r} is not valid; it takes {wanted}")


def _fits(kind: Any, value: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _fits(args[0], value)
    if origin is Literal:
        return value in args
    if origin is tuple:
        return isinstance(value, list | tuple)
    if dataclasses.is_dataclass(kind):
        return isinstance(value, Mapping)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _tuple(args: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{path}: {value!r} is not a list; write [{value}]")
    if len(args) == 2 and args[1] is Ellipsis:
        kinds: tuple[Any, ...] = (args[0],) * len(value)
    elif len(args) == len(value):
        kinds = args
    else:
        raise UserError(f"{path}: {list(value)!r} has {len(value)} values; it takes {len(args)}")
    return tuple(
        convert(k, v, f"{path}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True))
    )


def _scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not right or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"{path}: {value!r} is not {_describe(kind)}")
    return value


def _above(value: Any, least: Least, path: str) -> Any:
    if value < least.value:
        raise UserError(f"{path}: {value} is impossible; the least is {least.value}")
    return value


def _describe(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is type(None):
        return "null"
    if origin is Annotated:
        return _describe(args[0])
    if origin is Literal:
        return " or ".join(repr(a) for a in args)
    if origin is tuple:
        inner = _describe(args[0])
        return "a list" if args[-1] is Ellipsis else f"a list of {len(args)}, each {inner}"
    if dataclasses.is_dataclass(kind):
        return "a group of keys"
    return NAMES.get(kind, str(kind))
