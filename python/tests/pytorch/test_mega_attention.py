"""Step two: the fused operators, against the reference."""

import pytest
import torch
from mega_calls import decode, prefill
from problem import Problem, assert_fp8_close, assert_lse_close, dequantised, mega

from megamla.torch import alloc_mega_attn_output

FORMATS = [(528, None), (528, 528), (528, 288), (584, None), (584, 584)]


def gathered(p):
    """The rows of p.kv, as a prefill reads them: bf16 [96, 1, 512]."""
    rows = torch.empty((1, 96, 512), dtype=torch.bfloat16, device=p.device)
    as_int = dict(dtype=torch.int32, device=p.device)
    mega.kv_gather(p.kv, torch.tensor([96], **as_int), torch.arange(3, **as_int).view(1, 3), out=rows, layout=p.layout)
    return rows.view(96, 1, 512)


@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("record, extra", FORMATS)
def test_decode(device, heads, record, extra):
    p = Problem(heads, device, record=record, extra=extra)
    data, scale, lse = decode(p)
    assert data.shape == (5, heads // 8, 4096) and data.dtype == torch.float8_e4m3fn
    assert scale.shape == (5, heads // 8, 32) and scale.dtype == torch.int32 and scale.stride() == (1, 32 * 8, 8)
    expected, expected_lse = p.reference(rotated=False)
    assert_fp8_close(dequantised(data, scale), expected)
    assert_lse_close(lse, expected_lse)
    assert (dequantised(data, scale)[2] == 0).all() and torch.isposinf(lse[2]).all()


@pytest.mark.parametrize("record, extra", [(528, None), (528, 528), (528, 288)])
def test_interleaved_pages(device, record, extra):
    p = Problem(16, device, record=record, extra=extra, layout="interleaved")
    layouts = {"page_layout": "interleaved", "extra_page_layout": "interleaved"}
    data, scale, _ = decode(p, keywords=layouts)
    assert_fp8_close(dequantised(data, scale), p.reference(rotated=False)[0])


def test_q_norm(device):
    p = Problem(16, device, record=528)
    p.extra_kv = p.extra_indices = p.extra_length = None
    p.q.mul_(3)
    data, scale, lse = decode(p, enable_q_norm=True, rms_norm_eps=1e-6)
    expected, expected_lse = p.reference(rotated=False, q_norm_eps=1e-6)
    assert_fp8_close(dequantised(data, scale), expected)
    assert_lse_close(lse, expected_lse)


def test_positions_are_int32_or_int64(device):
    p = Problem(8, device)
    one, two = decode(p), decode(p, token_positions=p.positions.long())
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one[:1], two[:1]))
    assert torch.equal(one[1], two[1]) and torch.equal(one[2], two[2])


def test_q_in_standard_order(device):
    p = Problem(16, device)
    wide = torch.zeros((5, 24, 512), dtype=torch.bfloat16, device=device)
    wide[:, 8:] = p.q
    for q in (p.q, wide[:, 8:]):
        got = decode(p, q=q, keywords={"q_layout": "standard"})
        assert torch.equal(got[0].view(torch.uint8), decode(p)[0].view(torch.uint8))


def test_strides_of_q_and_indices(device):
    p = Problem(16, device)
    wide_q = torch.zeros((5, 24, 512), dtype=torch.bfloat16, device=device)
    wide_q[:, :16] = p.chunked_q()
    wide_indices = torch.full((5, 64), 3, dtype=torch.int32, device=device)
    wide_indices[:, 8:56] = p.indices
    every_other = torch.full((5, 192), 3, dtype=torch.int32, device=device)
    every_other[:, :96] = p.extra_indices
    got = decode(p, q=wide_q[:, :16], indices=wide_indices[:, 8:56], extra_indices=every_other[:, :96])
    assert torch.equal(got[0].view(torch.uint8), decode(p)[0].view(torch.uint8))


@pytest.mark.parametrize("allocated", [13, 16])
def test_segments_write_their_tokens_of_one_pair(device, allocated):
    """Decode and prefill fill ranges of one allocation; every other token and every padding word stays as it was."""
    p = Problem(16, device, record=528, extra=None)
    data, scale = alloc_mega_attn_output(allocated, 2, device)
    assert scale.stride() == (1, 32 * 16, 16)
    words = torch.as_strided(scale, (2, 32, 16), (512, 16, 1))  # with the padding
    data.view(torch.uint8).fill_(0xEE)
    words.fill_(-7)
    got = decode(p, out_fp8=data[1:6], out_sf=scale[1:6])
    assert got[0].data_ptr() == data[1:6].data_ptr() and got[1].data_ptr() == scale[1:6].data_ptr()
    rows = gathered(p)
    prefill(p, rows, out_fp8=data[7:12], out_sf=scale[7:12])
    bare, bare_prefill = decode(p), prefill(p, rows)
    for (a, b), alone in (((1, 6), bare), ((7, 12), bare_prefill)):
        assert torch.equal(data[a:b].view(torch.uint8), alone[0].view(torch.uint8))
        assert torch.equal(scale[a:b], alone[1])
    for t in [0, 6, *range(12, allocated)]:
        assert (data[t].view(torch.uint8) == 0xEE).all()
    for t in [0, 6, *range(12, 16)]:
        assert (words[:, :, t] == -7).all()


def test_padded_heads_are_left_alone(device):
    p = Problem(16, device)
    padded = torch.zeros((5, 64, 512), dtype=torch.bfloat16, device=device)
    padded[:, :16] = p.q
    sink = torch.zeros(64, device=device)
    sink[:16] = p.sink
    data, scale = alloc_mega_attn_output(5, 8, device)
    data.view(torch.uint8).fill_(0xEE)
    scale.fill_(-7)
    decode(
        p,
        q=padded,
        attn_sink=sink,
        n_wv_group=8,
        out_fp8=data,
        out_sf=scale,
        keywords={"q_layout": "standard", "live_heads": 16},
    )
    assert (data[:, 2:].view(torch.uint8) == 0xEE).all() and (scale[:, 2:] == -7).all()
    assert_fp8_close(dequantised(data[:, :2], scale[:, :2]), p.reference(rotated=False)[0])


@pytest.mark.parametrize("heads", [8, 16, 64, 128])
def test_prefill(device, heads):
    p = Problem(heads, device, record=528, extra=None)
    data, scale, max_logits, lse = prefill(p, gathered(p))
    expected, expected_lse = p.reference(rotated=False)
    assert_fp8_close(dequantised(data, scale), expected)
    assert_lse_close(lse, expected_lse)
    assert torch.isneginf(max_logits[2]).all() and (max_logits <= lse + 1e-3)[[0, 1, 3, 4]].all()


def test_one_token_and_none(device):
    """Strides of dimensions of 1 are anything, and a step may be empty."""
    p = Problem(8, device, tokens=1)
    data, scale, _ = decode(p)
    assert_fp8_close(dequantised(data, scale), p.reference(rotated=False)[0])
    empty = decode(
        p,
        q=p.q[:0],
        indices=p.indices[:0],
        topk_length=p.length[:0],
        extra_indices=p.extra_indices[:0],
        extra_topk_length=p.extra_length[:0],
        token_positions=p.positions[:0],
    )
    assert [t.shape[0] for t in empty] == [0, 0, 0]
