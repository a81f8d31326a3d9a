"""The shared object of this package, and what every op's arguments go through on the way to it."""

from __future__ import annotations

import pathlib
from itertools import repeat
from typing import Any, Callable, Mapping, Optional

import numpy as np
import tvm_ffi

#: A numpy array, or any object with ``__dlpack__`` (PyTorch, CuPy, JAX, ...). Never copied.
Tensor = Any
#: A Tensor that the op writes; one that is read before it is written, too.
Output = Any

_FOLDER = pathlib.Path(__file__).resolve().parent
_library = tvm_ffi.load_module(str(_FOLDER / "lib" / "libmegamla_python.so"))

DEVICES: Mapping[str, int] = {"auto": 0, "reference": 1, "cpu": 2, "cuda": 3}
PAGE_LAYOUTS: Mapping[str, int] = {"planar": 0, "interleaved": 1}


def library() -> Any:
    return _library


def choice(op: str, name: str, value: str, choices: Mapping[str, int]) -> int:
    """The C ABI's number of a named choice."""
    try:
        return choices[value]
    except (KeyError, TypeError):
        names = ", ".join(repr(c) for c in choices)
        raise ValueError(f"{op}: {name}: expected one of {names}, got {value!r}") from None


class _Readable:
    """A read-only array's memory, offered as numpy's DLPack refuses to. For arguments that no op writes."""

    def __init__(self, array: np.ndarray) -> None:
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array  # keeps the memory alive


# Types whose objects go to the library as they are, noted when the first of them has been looked at.
_plain_types: set[type] = set()


def read(op: str, name: str, value: Tensor) -> Any:
    """A tensor that the op reads."""
    if type(value) in _plain_types:
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return np.asarray(_Readable(value))
    return _tensor(op, name, value)


def write(op: str, name: str, value: Output) -> Any:
    """A tensor that the op writes."""
    if type(value) in _plain_types:
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        raise ValueError(f"{op}: {name}: expected memory that may be written, got a read-only array")
    return _tensor(op, name, value)


def read_optional(op: str, name: str, value: Optional[Tensor]) -> Any:
    return value if value is None or type(value) in _plain_types else read(op, name, value)


def write_optional(op: str, name: str, value: Optional[Output]) -> Any:
    return value if value is None or type(value) in _plain_types else write(op, name, value)


#: Raised for arguments that are not what a function of the library takes, before anything is written.
NOT_TAKEN = (TypeError, BufferError)


def taking(op: str, tensors: str) -> Callable[..., None]:
    """The library's function of an op of many arguments. ``tensors``: each argument's name, then ! if it is written,
    then ? if it may be None; a - for what is no tensor.

    After a tensor of a framework the others are taken for tensors, too: to look at each costs as much as the call. What
    the library does not take is looked at afterwards, for the message.
    """
    function = getattr(_library, op)
    specs = tensors.split()

    def call(*arguments: Any) -> None:
        if type(arguments[0]) in _plain_types:
            try:
                function(*arguments)
                return
            except NOT_TAKEN:
                pass
        function(*map(_looked_at, repeat(op), specs, arguments))

    return call


def _looked_at(op: str, spec: str, value: Any) -> Any:
    if spec == "-" or (value is None and spec.endswith("?")):
        return value
    return (write if "!" in spec else read)(op, spec.rstrip("!?"), value)


def _tensor(op: str, name: str, value: Any) -> Any:
    # A numpy scalar has __dlpack__ too, but not the caller's memory.
    if not hasattr(value, "__dlpack__") or isinstance(value, np.generic):
        raise TypeError(f"{op}: {name}: expected a numpy array or a DLPack tensor, got {type(value).__name__}")
    if not isinstance(value, np.ndarray):
        _plain_types.add(type(value))
    return value
