"""Operators called past PyTorch's dispatcher: only where nobody looks on, and with the same results and refusals."""

import numpy as np
import pytest
import torch
from mega_calls import decode_arguments
from problem import Problem, mega
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Calls:
    """The names of the operators that a mode saw."""

    def __init__(self):
        super().__init__()
        self.names = []


class Functions(Calls, TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class Operators(Calls, TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


def norm(device="cpu"):
    x, weight = torch.randn((3, 64), device=device), torch.ones(64, dtype=torch.bfloat16, device=device)
    return x, weight, torch.zeros_like(x, dtype=torch.bfloat16)


def test_the_same_result_on_both_ways(device):
    x, weight, out = norm(device)
    other = torch.zeros_like(out)
    assert mega.rms_norm(x, weight, out=out) is None
    assert mega.rms_norm.default(x, weight, out=other) is None
    assert torch.equal(out, other) and out.any()
    assert mega.rms_norm(weight=weight, out=other.zero_(), x=x) is None
    assert torch.equal(out, other)


@pytest.mark.parametrize("kind", [Functions, Operators])
def test_modes_see_the_operators(kind):
    p = Problem(8, "cpu", record=528, extra=288)
    x, weight, out = norm()
    with kind() as mode:
        mega.rms_norm(x, weight, out=out)
        mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p))
    assert any("rms_norm" in name for name in mode.names), mode.names
    assert any("decode" in name for name in mode.names), mode.names


def test_the_profiler_sees_the_operators():
    x, weight, out = norm()
    with torch.profiler.profile() as profile:
        mega.rms_norm(x, weight, out=out)
    assert "megamla::rms_norm" in {event.name for event in profile.events()}


def test_vmap_is_refused():
    x, weight, out = norm()
    with pytest.raises(RuntimeError, match="(?i)vmap|batch"):
        torch.vmap(lambda row, to: mega.rms_norm(row[None], weight, out=to[None]))(x, out)
    assert not out.any()


NOT_TENSORS = {
    "a number": ("window_lens", 3.0, TypeError, "window_lens: expected a numpy array or a DLPack tensor, got float"),
    "a list": ("attn_sink", [0.0] * 8, TypeError, "attn_sink: expected a numpy array or a DLPack tensor, got list"),
    "nothing": ("window", None, TypeError, "window: expected a numpy array or a DLPack tensor, got NoneType"),
    "read-only memory": ("lse", np.broadcast_to(np.float32(0), (5, 8)), ValueError, "lse: expected memory that may be"),
}


@pytest.mark.parametrize("case", NOT_TENSORS)
def test_what_is_no_tensor_is_named(case):
    name, value, error, message = NOT_TENSORS[case]
    p = Problem(8, "cpu")
    out = torch.zeros_like(p.q)
    arguments = dict(window=p.kv, window_slots=p.indices, out=out, output="bf16") | {name: value}
    with pytest.raises(error, match=f"^decode_attention: {message}"):
        mega.decode_attention(p.q, **arguments)
    assert not out.any()


def test_statistics_of_one_token_a_request(device):
    p = Problem(8, device)
    out, plain, column = torch.zeros_like(p.q), *(torch.zeros(shape, device=device) for shape in [(5, 8), (5, 8, 1)])
    for lse in (plain, column):
        mega.decode_attention(p.q, p.kv, p.indices, out=out, output="bf16", lse=lse)
    assert torch.equal(plain, column[:, :, 0]) and plain.any()
