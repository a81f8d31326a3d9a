"""Step one: FlashMLA's functions, against the reference."""

import pytest
import torch
from problem import SCALE, Problem, assert_bf16_close, assert_lse_close, mega

from megamla.torch import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata


def decode(p, **changes):
    """The call as engines make it: one query token a request."""
    arguments = dict(
        q=p.q.unsqueeze(1),
        k_cache=p.kv,
        block_table=None,
        cache_seqlens=None,
        head_dim_v=512,
        tile_scheduler_metadata=get_mla_metadata()[0],
        softmax_scale=SCALE,
        is_fp8_kvcache=True,
        indices=p.indices.unsqueeze(1),
        attn_sink=p.sink,
        extra_k_cache=p.extra_kv,
        extra_indices_in_kvcache=None if p.extra_kv is None else p.extra_indices.unsqueeze(1),
        topk_length=p.length,
        extra_topk_length=p.extra_length,
    )
    arguments.update(changes)
    return flash_mla_with_kvcache(**arguments)


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
def test_decode_over_two_caches(device, heads):
    p = Problem(heads, device)
    out, lse = decode(p)
    assert out.shape == (5, 1, heads, 512) and out.dtype == torch.bfloat16 and out.device.type == device
    assert lse.shape == (5, heads, 1) and lse.dtype == torch.float32
    expected, expected_lse = p.reference(rotated=True)
    assert_bf16_close(out[:, 0], expected)
    assert_lse_close(lse[:, :, 0], expected_lse)
    assert (out[2] == 0).all() and torch.isposinf(lse[2]).all()  # a row without keys


def test_decode_over_one_cache_without_lengths_or_sink(device):
    p = Problem(16, device, extra=None)
    out, lse = decode(p, attn_sink=None, topk_length=None, softmax_scale=None)
    expected, expected_lse = p.reference(rotated=True, window_lens=None, attn_sink=None)
    assert_bf16_close(out[:, 0], expected)
    assert_lse_close(lse[:, :, 0], expected_lse)


@pytest.mark.parametrize("record, extra", [(528, 528), (528, 288)])
def test_decode_over_the_newer_records(device, record, extra):
    p = Problem(64, device, record=record, extra=extra)
    assert_bf16_close(decode(p)[0][:, 0], p.reference(rotated=True)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_a_cache_is_bytes_of_any_dtype(device, dtype):
    p = Problem(8, device)
    out = decode(p, k_cache=p.kv.view(dtype), extra_k_cache=p.extra_kv.view(dtype))[0]
    assert torch.equal(out, decode(p)[0])


def test_a_cache_of_one_page(device):
    p = Problem(8, device, extra=None)
    one = p.kv[:1]
    inside = torch.where(p.indices < 32, p.indices, -1)
    assert torch.equal(decode(p, k_cache=one)[0], decode(p, indices=inside.unsqueeze(1))[0])


@pytest.mark.parametrize("sink", [float("-inf"), float("inf")])
def test_infinite_sinks(device, sink):
    p = Problem(8, device, extra=None)
    out, lse = decode(p, attn_sink=torch.full_like(p.sink, sink))
    bare, bare_lse = decode(p, attn_sink=None)
    assert torch.equal(out, bare if sink < 0 else torch.zeros_like(bare)) and torch.equal(lse, bare_lse)


def test_several_query_tokens_a_request(device):
    """Two requests of three tokens: lengths are the requests'."""
    p = Problem(16, device, tokens=6)
    lengths = torch.tensor([40, 7], dtype=torch.int32, device=device)
    out, lse = decode(
        p,
        q=p.q.view(2, 3, 16, 512),
        indices=p.indices.view(2, 3, -1),
        topk_length=lengths,
        extra_indices_in_kvcache=p.extra_indices.view(2, 3, -1),
        extra_topk_length=lengths + 9,
    )
    each = lengths.repeat_interleave(3)
    flat, flat_lse = decode(p, topk_length=each, extra_topk_length=each + 9)
    assert out.shape == (2, 3, 16, 512) and lse.shape == (2, 16, 3)
    assert torch.equal(out.flatten(0, 1), flat[:, 0]) and torch.equal(
        lse.transpose(1, 2).flatten(0, 1), flat_lse[:, :, 0]
    )
    # Tokens of a request far apart: the first two strides do not merge.
    wide = torch.zeros((2, 5, 16, 512), dtype=torch.bfloat16, device=device)
    wide[:, 1:4] = p.q.view(2, 3, 16, 512)
    again = decode(
        p,
        q=wide[:, 1:4],
        indices=p.indices.view(2, 3, -1),
        topk_length=lengths,
        extra_indices_in_kvcache=p.extra_indices.view(2, 3, -1),
        extra_topk_length=lengths + 9,
    )[0]
    assert torch.equal(again, out)


def test_padded_heads_are_left_alone(device):
    """16 heads of an engine that pads to 64: with live_heads the rest is neither computed nor written."""
    p = Problem(16, device)
    padded = torch.zeros((5, 1, 64, 512), dtype=torch.bfloat16, device=device)
    padded[:, :, :16] = p.q.unsqueeze(1)
    sink = torch.zeros(64, device=device)
    sink[:16] = p.sink
    bare, bare_lse = decode(p)
    whole, whole_lse = decode(p, q=padded, attn_sink=sink)
    guard = torch.full((5, 1, 64, 512), 7.0, dtype=torch.bfloat16, device=device)
    out, lse = decode(p, q=padded, attn_sink=sink, live_heads=16, out=guard)
    assert out is guard and (out[:, :, 16:] == 7).all()
    for got, got_lse in ((whole, whole_lse), (out, lse)):
        assert_bf16_close(got[:, 0, :16], bare[:, 0].cpu())
        assert_lse_close(got_lse[:, :16], bare_lse)


def test_strides_of_q_indices_and_out(device):
    p = Problem(16, device)
    wide_q = torch.zeros((5, 24, 512), dtype=torch.bfloat16, device=device)
    wide_q[:, 4:20] = p.q
    wide_indices = torch.full((5, 64), -1, dtype=torch.int32, device=device)
    wide_indices[:, :48] = p.indices
    wide_out = torch.full((10, 1, 20, 512), 7.0, dtype=torch.bfloat16, device=device)
    out = decode(
        p, q=wide_q[:, 4:20].unsqueeze(1), indices=wide_indices[:, :48].unsqueeze(1), out=wide_out[::2, :, 2:18]
    )[0]
    assert torch.equal(out, decode(p)[0])
    wide_out[::2, :, 2:18] = 7
    assert (wide_out == 7).all()


def test_no_tokens(device):
    p = Problem(8, device)
    out, lse = decode(
        p,
        q=p.q[:0].unsqueeze(1),
        indices=p.indices[:0].unsqueeze(1),
        topk_length=p.length[:0],
        extra_indices_in_kvcache=p.extra_indices[:0].unsqueeze(1),
        extra_topk_length=p.extra_length[:0],
    )
    assert out.shape == (0, 1, 8, 512) and lse.shape == (0, 8, 1)


def test_a_schedule_is_accepted_and_unused(device):
    p = Problem(8, device)
    out = decode(p)[0]
    for schedule in (None, FlashMLASchedMeta(), torch.zeros((4, 8), dtype=torch.int32)):
        assert torch.equal(decode(p, tile_scheduler_metadata=schedule, num_splits=None)[0], out)


@pytest.mark.parametrize("heads", [8, 16, 64, 128])
def test_prefill(device, heads):
    p = Problem(heads, device, extra=None)
    rows = torch.empty((1, 96, 512), dtype=torch.bfloat16, device=device)
    as_int = dict(dtype=torch.int32, device=device)
    mega.kv_gather(p.kv, torch.tensor([96], **as_int), torch.arange(3, **as_int).view(1, 3), out=rows)
    out, max_logits, lse = flash_mla_sparse_fwd(
        p.q, rows.view(96, 1, 512), p.indices.unsqueeze(1), SCALE, attn_sink=p.sink, topk_length=p.length
    )
    expected, expected_lse = p.reference(rotated=True)
    assert_bf16_close(out, expected)
    assert_lse_close(lse, expected_lse)
    largest = torch.empty((5, heads))
    cpu = [t.cpu() for t in (p.q, rows[0], p.indices, p.length)]
    mega.prefill_attention(
        cpu[0],
        cpu[1],
        cpu[2],
        topk_length=cpu[3],
        out=torch.empty((5, heads, 512)),
        output="f32",
        max_logits=largest,
        device="reference",
    )
    assert torch.isneginf(max_logits[2]).all()
    torch.testing.assert_close(max_logits.cpu(), largest, rtol=4.01 / 65536, atol=1e-5)
    given = torch.empty_like(out)
    assert (
        flash_mla_sparse_fwd(
            p.q, rows.view(96, 1, 512), p.indices.unsqueeze(1), SCALE, attn_sink=p.sink, topk_length=p.length, out=given
        )[0]
        is given
    )
    assert torch.equal(given, out)
