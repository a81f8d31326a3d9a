"""Ops on dense rows, against numpy in double precision."""

import numpy as np
import pytest

from megamla import ops
from megamla.numbers import from_bf16, from_e4m3, from_e8m0, to_bf16

DEVICES = ["reference", "cpu"]


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_rms_norm_is_its_formula(device):
    rng = np.random.default_rng(1)
    x, weight = floats(rng, 5, 1536), to_bf16(floats(rng, 1536))
    out = np.empty((5, 1536), np.uint16)
    assert ops.rms_norm(x, weight, out=out, eps=1e-6, device=device) is out
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * from_bf16(weight)
    np.testing.assert_allclose(from_bf16(out), exact, rtol=2**-8)


def test_strides_are_respected_and_nothing_else_is_written():
    rng = np.random.default_rng(2)
    x, weight = floats(rng, 4, 512), to_bf16(floats(rng, 512))
    dense = ops.rms_norm(x, weight, out=np.empty((4, 512), np.uint16))
    wide_in = np.full((4, 700), 7, np.float32)
    wide_in[:, 100:612] = x
    wide_out = np.full((8, 600), 0xABCD, np.uint16)
    ops.rms_norm(wide_in[:, 100:612], weight, out=wide_out[::2, :512])
    np.testing.assert_array_equal(wide_out[::2, :512], dense)
    assert (wide_out[1::2] == 0xABCD).all() and (wide_out[:, 512:] == 0xABCD).all()


def test_rope_table_is_cosines_and_sines():
    out, inv_freq = np.empty((100, 64), np.float32), np.empty(32)
    ops.rope_table(out=out, theta=10000.0, inv_freq=inv_freq)
    np.testing.assert_allclose(inv_freq, 10000.0 ** (-np.arange(32) / 32), rtol=1e-14)
    angles = np.arange(100)[:, None] * inv_freq
    exact = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    np.testing.assert_allclose(out, exact, atol=1e-7)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_bf16(device):
    rng = np.random.default_rng(3)
    x, weight = to_bf16(floats(rng, 3, 64)), to_bf16(floats(rng, 96, 64))
    out = np.empty((3, 96), np.float32)
    ops.block_scaled_linear(x, weight, out=out, weight_kind="bf16", output="f32", device=device)
    exact = from_bf16(x).astype(np.float64) @ from_bf16(weight).T
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)


def test_linear_with_block_scales():
    rng = np.random.default_rng(4)
    x = to_bf16(floats(rng, 5, 128))
    weight = rng.integers(0, 0x7E, (64, 128)).astype(np.uint8)
    scale = rng.integers(120, 126, (2, 4)).astype(np.uint8)
    out = np.empty((5, 64), np.float32)
    ops.block_scaled_linear(x, weight, weight_scale=scale, out=out, output="f32")
    wide = from_e4m3(weight).astype(np.float64) * np.kron(from_e8m0(scale), np.ones((32, 32)))
    np.testing.assert_allclose(out, from_bf16(x) @ wide.T, rtol=1e-4, atol=1e-2)


def test_mxfp8_cast_has_the_values_back():
    x = floats(np.random.default_rng(5), 3, 128)
    out, scale = np.empty((3, 128), np.uint8), np.empty(128 * 4, np.uint8)
    ops.output_cast(x, out=out, out_scale=scale, target="mxfp8")
    # F8_128x4: row r < 32, column c of a tile lies at byte 16 r + c.
    factors = from_e8m0(scale.reshape(32, 4, 4)[:3, 0])
    back = from_e4m3(out) * np.repeat(factors, 32, axis=1)
    groups = np.abs(x).reshape(3, 4, 32).max(axis=2)
    assert (np.abs(back - x) <= np.repeat(groups, 32, axis=1) / 16).all()


def test_permute_q_is_the_chunked_order():
    x = np.arange(2 * 8 * 512, dtype=np.int32).reshape(2, 8, 512)
    out = np.empty_like(x)
    ops.permute_weights(x, out=out, kind="q")
    expected = x.reshape(2, 8, 32, 16).transpose(0, 2, 1, 3).reshape(2, 8, 512)
    np.testing.assert_array_equal(out, expected)
