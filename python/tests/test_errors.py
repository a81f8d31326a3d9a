"""What is refused: how, with which message, and that nothing has been written by then."""

import numpy as np
import pytest

import megamla
from megamla import ops


def arguments():
    return dict(x=np.ones((2, 64), np.float32), weight=np.zeros(64, np.uint16), out=np.full((2, 64), 9, np.uint16))


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(x=[1.0]), TypeError, "rms_norm: x: expected a numpy array or a DLPack tensor, got list"),
        (dict(x=None), TypeError, "rms_norm: x: expected a numpy array or a DLPack tensor, got NoneType"),
        (dict(x=np.float32(1)), TypeError, "rms_norm: x: expected a numpy array or a DLPack tensor, got float32"),
        (dict(x=np.ones((2, 64))), TypeError, "rms_norm: x: expected BF16 or F32, got F64"),
        (dict(x=np.ones((2, 64), np.float16)), TypeError, "rms_norm: x: expected BF16 or F32, got float16"),
        (dict(weight=np.zeros(63, np.uint16)), ValueError, r"rms_norm: weight: expected BF16 \[64\], got BF16 \[63\]"),
        (dict(x=np.ones((2, 128), np.float32)[:, ::2]), ValueError, "rms_norm: x: expected "),
        (dict(x=np.ones((2, 64), np.float32)[::-1]), ValueError, "rms_norm: x: expected "),
        (dict(x=np.ones((1, 1, 1, 2, 64), np.float32)), ValueError, "rms_norm: x: expected at most 4 dimensions, got 5"),
        (dict(eps=-1.0), ValueError, "rms_norm: eps: expected "),
        (dict(eps=float("nan")), ValueError, "rms_norm: eps: expected "),
        (dict(num_threads=-1), ValueError, "num_threads"),
        (dict(device="tpu"), ValueError, "rms_norm: device: expected one of 'auto', 'reference', 'cpu', 'cuda', got 'tpu'"),
    ],
)
def test_refused_before_anything_is_written(change, error, message):
    call = {**arguments(), **change}
    with pytest.raises(error, match=message):
        ops.rms_norm(**call)
    assert (call["out"] == 9).all()


def test_read_only_arrays_are_inputs_but_no_outputs():
    call = arguments()
    expected = ops.rms_norm(**call).copy()
    for name in ("x", "weight"):
        call[name].flags.writeable = False
    call["out"] = np.zeros_like(expected)
    np.testing.assert_array_equal(ops.rms_norm(**call), expected)
    call["out"].flags.writeable = False
    with pytest.raises(ValueError, match="rms_norm: y: expected memory that may be written"):
        ops.rms_norm(**call)


def test_overlap_is_refused():
    pool = np.zeros(300, np.uint16)
    with pytest.raises(ValueError, match="rms_norm: y: expected "):
        ops.rms_norm(pool[:128].reshape(2, 64), np.zeros(64, np.uint16), out=pool[64:192].reshape(2, 64))


def attention(**changes):
    call = dict(q=np.zeros((1, 8, 512), np.uint16), window=np.zeros((1, 16, 528), np.uint8),
                window_slots=np.zeros((1, 16), np.int32), out=np.full((1, 8, 512), 9, np.uint16), output="bf16")
    call.update(changes)
    return call


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(q=np.zeros((1, 7, 512), np.uint16)), ValueError, "decode_attention: q"),
        (dict(q=np.zeros((1, 8, 512), np.float32)), TypeError, "decode_attention: q: expected BF16, got F32"),
        (dict(window=np.zeros((1, 16, 500), np.uint8)), ValueError,
         r"decode_attention: window: expected bytes \[pages, page_size, 528, 288 or 584\], got \[1, 16, 500\]"),
        (dict(window=np.zeros((2, 32, 528), np.uint8)[:, ::2]), ValueError, "decode_attention: window: "),
        (dict(window=np.zeros((1, 16, 288), np.uint8)), ValueError, "decode_attention: window"),
        (dict(compressed=np.zeros((1, 16, 288), np.uint8)), ValueError, "decode_attention: compressed_slots"),
        (dict(out_scale=np.zeros((1, 1, 32), np.int32)), ValueError, "decode_attention: out_scale"),
        (dict(output="fp8_pair", out=np.zeros((1, 1, 4096), np.uint8)), ValueError, "decode_attention: out_scale"),
        (dict(cos_sin=np.zeros((4, 64), np.float32)), ValueError, "decode_attention: positions: expected "),
        (dict(output="fp16"), ValueError, "decode_attention: output: expected one of 'fp8_pair', 'bf16', 'f32'"),
        (dict(window_layout="rows"), ValueError, "decode_attention: window_layout: expected one of"),
        (dict(live_heads=3), ValueError, "decode_attention: live_heads"),
    ],
)
def test_attention_refuses(change, error, message):
    call = attention(**change)
    before = call["out"].copy()
    with pytest.raises(error, match=message):
        ops.decode_attention(**call)
    np.testing.assert_array_equal(call["out"], before)


def test_cuda_needs_tensors_on_a_gpu():
    with pytest.raises((ValueError, NotImplementedError), match="rms_norm"):
        ops.rms_norm(**arguments(), device="cuda")


def test_no_tokens_are_no_error():
    call = attention(q=np.zeros((0, 8, 512), np.uint16), window_slots=np.zeros((0, 16), np.int32),
                     out=np.zeros((0, 8, 512), np.uint16))
    assert ops.decode_attention(**call) is call["out"]


def test_workspace_size_names_the_ops_that_have_one():
    with pytest.raises(ValueError, match="expected decode_attention, .* got rms_norm"):
        ops.workspace_size("rms_norm", tokens=1)


def test_version_is_the_packages():
    import importlib.metadata

    assert megamla.__version__ == importlib.metadata.version("megamla")
