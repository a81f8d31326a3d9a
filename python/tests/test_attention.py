"""Caches and attention: numpy inserts, gathers and attends; both devices have to agree with it."""

import numpy as np
import pytest

from megamla import ops
from megamla.numbers import from_bf16, from_e4m3, from_e8m0, to_bf16

RECORDS = {
    "fp8_528": (528, "planar"),
    "fp8_528 interleaved": (528, "interleaved"),
    "nvfp4_288": (288, "planar"),
    "fp8_584": (584, "planar"),
}


class Step:
    """Five tokens over a window of 96 rows in pages of 32, with a RoPE table."""

    def __init__(self, heads=8, tokens=5, seed=0):
        rng = np.random.default_rng(seed)
        self.heads, self.tokens = heads, tokens
        self.rope = ops.rope_table(out=np.empty((256, 64), np.float32), theta=10000.0)
        self.window = np.zeros((3, 32, 528), np.uint8)
        latent = to_bf16(rng.standard_normal((96, 512)))
        ops.kv_insert(latent, np.arange(96), positions=np.arange(96), cos_sin=self.rope, out=self.window)
        self.q = to_bf16(rng.standard_normal((tokens, heads, 512)))
        self.positions = np.arange(96, 96 + tokens)
        self.slots = rng.permuted(np.tile(np.arange(96, dtype=np.int32), (tokens, 1)), axis=1)[:, :64].copy()
        self.slots[0, 3:20] = -1
        self.slots[1, 5] = 10**6
        self.lens = np.array([64, 64, 10, 0, 33][:tokens], np.int32)
        self.sink = rng.standard_normal(heads).astype(np.float32)

    def decode(self, **changes):
        arguments = dict(q=self.q, window=self.window, window_slots=self.slots, window_lens=self.lens,
                         positions=self.positions, cos_sin=self.rope, attn_sink=self.sink)
        arguments.update(changes)
        return ops.decode_attention(**arguments)

    def rows(self):
        """The window's rows in bf16, as kv_gather reads them."""
        out = np.zeros((1, 96, 512), np.uint16)
        ops.kv_gather(self.window, np.array([96], np.int32), np.arange(3, dtype=np.int32)[None], out=out)
        return out[0]

    def expected(self):
        """(values before the cast, lse) in double precision."""
        kv = from_bf16(self.rows()).astype(np.float64)
        out = np.zeros((self.tokens, self.heads, 512))
        lse = np.full((self.tokens, self.heads), np.inf)
        for t in range(self.tokens):
            q = self.rotate(from_bf16(self.q[t]).astype(np.float64), t, 1)
            # The rotated query is rounded to bf16 before the products.
            slots = [s for s in self.slots[t, : self.lens[t]] if 0 <= s < 96]
            if not slots:
                continue
            logits = from_bf16(to_bf16(q)).astype(np.float64) @ kv[slots].T * 512**-0.5
            weights = np.exp(logits)
            lse[t] = np.log(weights.sum(axis=1))
            out[t] = weights @ kv[slots] / (weights.sum(axis=1) + np.exp(self.sink))[:, None]
            out[t] = self.rotate(out[t], t, -1)
        return out, lse

    def rotate(self, rows, t, sign):
        cos, sin = self.rope[self.positions[t], :32], sign * self.rope[self.positions[t], 32:]
        even, odd = rows[:, 448::2], rows[:, 449::2]
        turned = rows.copy()
        turned[:, 448::2], turned[:, 449::2] = even * cos - odd * sin, odd * cos + even * sin
        return turned


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("heads", [8, 64])
def test_decode_is_the_formula(device, heads):
    step = Step(heads)
    out = np.empty((5, heads, 512), np.float32)
    lse = np.empty((5, heads), np.float32)
    step.decode(out=out, output="f32", lse=lse, device=device)
    expected, expected_lse = step.expected()
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-3, atol=1e-3)
    error = np.linalg.norm(out - expected, axis=-1)
    assert (error <= 1e-2 * np.linalg.norm(expected, axis=-1)).all()
    assert (out[3] == 0).all() and np.isposinf(lse[3]).all()


def test_output_pair_and_guard_rows():
    step = Step(heads=16)
    values = np.empty((5, 16, 512), np.float32)
    step.decode(out=values, output="f32")
    data, scale = ops.alloc_output_pair(12, 2)
    data[:], scale[:] = 0xEE, -1
    step.decode(out=data[:5], out_scale=scale[:5])
    assert (data[5:] == 0xEE).all() and (scale[8:] == -1).all()
    # Chunk 8 c + h holds dims 32 c .. 32 c + 31 of a group's head h; a word, four chunks' scales.
    factors = from_e8m0(np.ascontiguousarray(scale[:5]).view(np.uint8).reshape(5, 2, 16, 8, 1))
    chunks = from_e4m3(data[:5]).reshape(5, 2, 16, 8, 32) * factors
    back = chunks.transpose(0, 1, 3, 2, 4).reshape(5, 16, 512)
    assert (np.abs(back - values) <= np.abs(values) / 15 + np.abs(values).max() / 500).all()
    assert (back[3] == 0).all() and np.abs(back[0]).max() > 0


def test_bits_do_not_depend_on_threads_or_strides():
    step = Step(heads=16)
    one, two = np.empty((5, 16, 512), np.uint16), np.empty((5, 16, 512), np.uint16)
    step.decode(out=one, output="bf16", num_threads=1)
    wide = np.zeros((5, 24, 512), np.uint16)
    wide[:, 4:20] = step.q
    step.decode(out=two, output="bf16", num_threads=2, q=wide[:, 4:20])
    np.testing.assert_array_equal(one, two)


def test_tokens_may_be_two_dimensions_that_merge():
    step = Step(heads=16, tokens=4)
    flat, lse = np.empty((4, 16, 512), np.uint16), np.empty((4, 16), np.float32)
    step.decode(out=flat, lse=lse, output="bf16")
    out, out_lse = np.zeros((2, 4, 16, 512), np.uint16)[:, :2], np.empty((2, 2, 16), np.float32)
    arguments = dict(q=step.q.reshape(2, 2, 16, 512), window_slots=step.slots.reshape(2, 2, 64), lse=out_lse, output="bf16")
    with pytest.raises(ValueError, match="out: expected strides of the first two dimensions that merge, got 32768 and 8192"):
        step.decode(out=out, **arguments)
    assert not out.any()
    out = np.empty((2, 2, 16, 512), np.uint16)
    step.decode(out=out, **arguments)
    np.testing.assert_array_equal(out.reshape(4, 16, 512), flat)
    np.testing.assert_array_equal(out_lse.reshape(4, 16), lse)


def test_bytes_of_a_cache_may_be_signed_and_in_one_page():
    step = Step()
    out = step.decode(out=np.empty((5, 8, 512), np.uint16), output="bf16")
    same = step.decode(out=np.empty((5, 8, 512), np.uint16), output="bf16", window=step.window.view(np.int8))
    np.testing.assert_array_equal(out, same)
    first = np.where(step.slots < 32, step.slots, -1).astype(np.int32)
    one = np.lib.stride_tricks.as_strided(step.window, (1, 32, 528), (7, 528, 1))  # a stride that is never taken
    np.testing.assert_array_equal(
        step.decode(out=np.empty_like(out), output="bf16", window=one),
        step.decode(out=np.empty_like(out), output="bf16", window_slots=first))


def test_prefill_is_decode_over_gathered_rows():
    step = Step()
    decoded = step.decode(out=np.empty((5, 8, 512), np.float32), output="f32", device="reference")
    indices = np.where(step.slots < 96, step.slots, -1).astype(np.int32)
    largest = np.empty((5, 8), np.float32)
    out = ops.prefill_attention(
        step.q, step.rows(), indices, topk_length=step.lens, positions=step.positions, cos_sin=step.rope,
        attn_sink=step.sink, out=np.empty((5, 8, 512), np.float32), output="f32", max_logits=largest, device="reference")
    np.testing.assert_allclose(out, decoded, rtol=1e-5, atol=1e-6)
    assert np.isneginf(largest[3]).all() and np.isfinite(largest[[0, 1, 2, 4]]).all()


def test_compressed_keys_join_the_window():
    step = Step()
    both = step.decode(
        out=np.empty((5, 8, 512), np.float32), output="f32", window_slots=step.slots[:, :32].copy(),
        window_lens=np.full(5, 32, np.int32), compressed=step.window, compressed_slots=step.slots[:, 32:].copy())
    one = step.decode(out=np.empty((5, 8, 512), np.float32), output="f32", window_lens=None)
    np.testing.assert_allclose(both, one, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", RECORDS)
def test_insert_then_gather(name):
    record, layout = RECORDS[name]
    latent = np.random.default_rng(6).standard_normal((40, 512)).astype(np.float32)
    pool = np.full((4, 40 * record), 0xEE, np.uint8)  # a pool: 16 of its rows are this cache's
    cache = np.lib.stride_tricks.as_strided(pool, (4, 16, record), (pool.strides[0], record, 1))
    slots = np.arange(40) + 8
    slots[5] = -1
    skipped = np.full(1, -7)
    ops.kv_insert(to_bf16(latent), slots, out=cache, layout=layout, skipped_rows=skipped)
    assert skipped[0] == 0 and (pool[:, 16 * record :] == 0xEE).all()
    out = np.full((1, 48, 512), 0x4242, np.uint16)
    table = np.arange(4, dtype=np.int32)[None]
    ops.kv_gather(cache, np.array([48], np.int32), table, out=out, layout=layout, gather_lens=np.array([40], np.int32))
    back = from_bf16(out[0, :40])
    kept = np.arange(40) != 5
    step = np.abs(latent).max() / (4 if record == 288 else 16)
    assert np.abs(back[kept] - latent[kept]).max() <= step
    assert (out[0, 40:] == 0x4242).all()


def test_flashmla_cache_shape_is_taken():
    latent = to_bf16(np.random.default_rng(7).standard_normal((3, 512)))
    three, four = np.zeros((1, 64, 584), np.uint8), np.zeros((1, 64, 1, 584), np.uint8)
    ops.kv_insert(latent, np.arange(3), out=three)
    ops.kv_insert(latent, np.arange(3), out=four)
    assert three.any() and (three == four[:, :, 0]).all()


def test_page_layout_scores():
    latent = to_bf16(np.random.default_rng(8).standard_normal((64, 512)))
    for layout in ("planar", "interleaved"):
        cache = np.zeros((1, 64, 528), np.uint8)
        ops.kv_insert(latent, np.arange(64), out=cache, layout=layout)
        assert ops.page_layout_scores(cache).likely == layout


def test_compressor_of_ratio_1_is_rms_norm():
    rng = np.random.default_rng(9)
    kv, weight = rng.standard_normal((4, 512)).astype(np.float32), to_bf16(rng.standard_normal(512))
    out, written = np.empty((4, 512), np.uint16), np.zeros(4, bool)
    ops.kv_compress(kv, weight, out=out, compress_ratio=1, written=written)
    norm = ops.rms_norm(kv, weight, out=np.empty((4, 512), np.uint16))
    np.testing.assert_allclose(from_bf16(out), from_bf16(norm), rtol=2**-7)
    assert written.all()


def test_caller_owned_workspace():
    step = Step()
    size = ops.workspace_size("decode_attention", tokens=5, heads=8, window_width=64, num_threads=1)
    out = step.decode(out=np.empty((5, 8, 512), np.uint16), output="bf16", num_threads=1)
    same = step.decode(out=np.empty((5, 8, 512), np.uint16), output="bf16", num_threads=1,
                       workspace=ops.alloc_workspace(size))
    np.testing.assert_array_equal(out, same)
    with pytest.raises(ValueError, match="workspace"):
        step.decode(out=out, output="bf16", num_threads=1, workspace=ops.alloc_workspace(256))
