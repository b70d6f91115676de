"""Errors of Tape that are also a `grpc.RpcError`, and a `ValueError` where an argument is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import grpc

from tape.errors import RpcFailed, TapeError

P = ParamSpec("P")
T = TypeVar("T")


class _Code(str):
    """The code of an error, `"TAPE-1001"`; called, its status in gRPC."""

    __slots__ = ("status",)
    status: grpc.StatusCode

    def __call__(self) -> grpc.StatusCode:
        return self.status


def _code_of(error: TapeError) -> _Code:
    name = error.grpc_status if isinstance(error, RpcFailed) else error.status
    code = _Code(error.code)
    code.status = getattr(grpc.StatusCode, name, grpc.StatusCode.UNKNOWN)
    return code


_twins: dict[type[TapeError], type[TapeError]] = {}


def _twin_of(kind: type[TapeError]) -> type[TapeError]:
    """The class with `grpc.RpcError` among its bases."""
    if (known := _twins.get(kind)) is not None:
        return known
    bases: tuple[type, ...] = (kind, grpc.RpcError)
    if kind.status == "INVALID_ARGUMENT" and not issubclass(kind, ValueError):
        bases += (ValueError,)
    methods: dict[str, Any] = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "details": lambda self: str(self),
        "trailing_metadata": lambda self: (("tape-error-code", str(self.code)),),
        "debug_error_string": lambda self: f"{self.code}: {self}",
    }
    return _twins.setdefault(kind, type(kind.__name__, bases, methods))


def as_rpc_error(error: TapeError) -> TapeError:
    """The same error as a `grpc.RpcError` too: `code()` is its `grpc.StatusCode`, `details()` its message."""
    if type(error) in _twins.values():
        return error
    kind = _twin_of(type(error))
    twin = kind.__new__(kind)
    twin.args = error.args
    twin.__dict__ |= error.__dict__
    twin.__dict__["code"] = _code_of(error)
    return twin


@contextmanager
def rpc_errors() -> Iterator[None]:
    """Errors of Tape that are raised inside become RPC errors."""
    try:
        yield
    except TapeError as error:
        twin = as_rpc_error(error)
        if twin is error:
            raise
        raise twin.with_traceback(error.__traceback__) from error.__cause__


def raising_rpc_errors(fn: Callable[P, T]) -> Callable[P, T]:
    """The function, raising RPC errors."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with rpc_errors():
            return fn(*args, **kwargs)

    return call
