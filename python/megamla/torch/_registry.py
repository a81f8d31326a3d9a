"""``torch.ops.megamla``: operators as PyTorch's dispatcher, its compiler and its graphs know them.

Every function of ``megamla.ops`` that has an ``out`` is an operator of the same name and arguments. Its schema says
which tensors it writes, it returns nothing, and so its stand-in for tensors without memory has nothing to compute.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, TypeVar

import torch
from torch import library

from .. import ops

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The compiler hands over tensors with the strides that the program gave them.
_TAGS = (torch.Tag.needs_exact_strides,)
# Annotations of megamla.ops as types of a schema; an int may be a size that the compiler knows by name only.
_TYPES = {"Tensor": "Tensor", "Output": "Tensor", "str": "str", "int": "SymInt", "float": "float", "bool": "bool"}


def schema_of(function: Callable[..., Any]) -> str:
    """The schema of an operator that calls ``function`` and returns nothing: "(Tensor x, ...) -> ()"."""
    arguments: list[str] = []
    aliases = iter("abcdefgh")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        name = parameter.annotation
        optional = name.startswith("Optional[")
        name = name[len("Optional[") : -1] if optional else name
        written = f"({next(aliases)}!)" if name == "Output" else ""
        argument = f"{_TYPES[name]}{written}{'?' if optional else ''} {parameter.name}"
        if parameter.default is not inspect.Parameter.empty:
            default = parameter.default
            argument += f'="{default}"' if isinstance(default, str) else f"={default}"
        arguments.append(argument)
    return f"({', '.join(arguments)}) -> ()"


# What wants to see operators: a compiler, it and others as modes, vmap and its like, the profiler.
_Tensor, _compiling, _modes, _function_modes, _transforms, _profiler = (
    torch.Tensor,
    torch.compiler.is_compiling,
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._functorch.peek_interpreter_stack,
    torch._C._autograd._profiler_enabled,
)


def direct(first: Any) -> bool:
    """Whether a call with this tensor may go to the library past PyTorch's dispatcher, which takes longer to sort two
    dozen arguments than the library to check them."""
    if _compiling() or type(first) is not _Tensor:
        return False
    return not (first.is_meta or _modes() or _function_modes() or _transforms() or _profiler())


_Packet = torch._ops.OpOverloadPacket


def _make_direct(name: str, call: Callable[..., Any]) -> None:
    """Calls of ``torch.ops.megamla.<name>`` become calls of ``call``. The operator's overload ``.default`` goes through
    the dispatcher as ever."""
    kind = type(name, (_Packet,), {"__call__": staticmethod(call)})
    getattr(torch.ops.megamla, name).__class__ = kind


def register_op(function: Callable[..., Any]) -> None:
    """An operator that writes what ``function`` annotates as Output."""

    def run(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    def run_without_memory(*args: Any, **kwargs: Any) -> None:
        pass

    name = f"megamla::{function.__name__}"
    library.define(name, schema_of(function), tags=_TAGS)
    library.impl(name, "CompositeExplicitAutograd", run)
    library.register_fake(name, run_without_memory)
    packet = getattr(torch.ops.megamla, function.__name__)

    def call(*args: Any, **kwargs: Any) -> None:
        if args and direct(args[0]):
            function(*args, **kwargs)
        else:
            _Packet.__call__(packet, *args, **kwargs)

    _make_direct(function.__name__, call)


def composite(*written: str, schema: str = "") -> Callable[[_Function], _Function]:
    """Makes a function that calls operators an operator, too: the compiler looks into it. ``written``: its arguments
    that it writes; ``schema``: where the annotations do not say it."""

    def register(function: _Function) -> _Function:
        text = schema or library.infer_schema(function, mutates_args=written)
        name = f"megamla::{function.__name__}"
        library.define(name, text)
        library.impl(name, "CompositeImplicitAutograd", function)
        # What looks on sees the operators that the function calls, as it would through the dispatcher.
        _make_direct(function.__name__, function)
        return function

    return register


for _name in ops.__all__:
    if "out" in inspect.signature(getattr(ops, _name)).parameters:
        register_op(getattr(ops, _name))
