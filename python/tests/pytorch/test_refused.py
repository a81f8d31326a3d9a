"""What is refused, with the library's message, before anything is written or launched."""

import pytest
import torch
from mega_calls import decode, prefill
from problem import SCALE, Problem, mega
from test_mega_attention import gathered

from megamla.torch import alloc_mega_attn_output, flash_mla_sparse_fwd, flash_mla_with_kvcache


class Guarded:
    """An output pair with a known content."""

    def __init__(self, device, tokens=5, groups=2):
        self.data, self.scale = alloc_mega_attn_output(tokens, groups, device)
        self.data.view(torch.uint8).fill_(0xEE)
        self.scale.fill_(-7)

    def untouched(self):
        return bool((self.data.view(torch.uint8) == 0xEE).all()) and bool((self.scale == -7).all())


def bf16(device, *shape):
    return torch.zeros(shape, dtype=torch.bfloat16, device=device)


def int32(device, *shape):
    return torch.zeros(shape, dtype=torch.int32, device=device)


DECODE = {
    "dtype of q": (
        lambda d: dict(q=bf16(d, 5, 16, 512).half()),
        TypeError,
        "decode_attention: q: expected BF16, got float16",
    ),
    "dtype of indices": (
        lambda d: dict(indices=int32(d, 5, 48).long()),
        TypeError,
        "window_slots: expected I32, got I64",
    ),
    "dtype of positions": (
        lambda d: dict(token_positions=torch.zeros(5, device=d)),
        TypeError,
        "positions: expected I32 or I64, got F32",
    ),
    "dtype of the cache": (
        lambda d: dict(kv=bf16(d, 3, 32, 1, 528)),
        TypeError,
        "window: expected U8 or F8_E4M3, got BF16",
    ),
    "dtype of the sink": (lambda d: dict(attn_sink=bf16(d, 16)), TypeError, "attn_sink: expected F32, got BF16"),
    "dtype of out_fp8": (lambda d: dict(out_fp8=bf16(d, 5, 2, 4096)), TypeError, "out: expected F8_E4M3, got BF16"),
    "dtype of out_sf": (
        lambda d: dict(out_sf=torch.zeros((2, 32, 8), device=d).permute(2, 0, 1)[:5]),
        TypeError,
        "out_scale: expected I32, got F32",
    ),
    "shape of q": (
        lambda d: dict(q=bf16(d, 5, 16, 576)),
        ValueError,
        r"q: expected BF16 \[\*, \*, 512\], got BF16 \[5, 16, 576\]",
    ),
    "heads": (
        lambda d: dict(q=bf16(d, 5, 12, 512), n_wv_group=1),
        ValueError,
        "q heads: expected a multiple of 8, got 12",
    ),
    "tokens of indices": (
        lambda d: dict(indices=int32(d, 4, 48)),
        ValueError,
        r"window_slots: expected I32 \[5, \*\], got I32 \[4, 48\]",
    ),
    "tokens of lengths": (
        lambda d: dict(topk_length=int32(d, 6)),
        ValueError,
        r"window_lens: expected I32 \[5\], got I32 \[6\]",
    ),
    "heads of the sink": (
        lambda d: dict(attn_sink=torch.zeros(64, device=d)),
        ValueError,
        r"attn_sink: expected F32 \[16\]",
    ),
    "width of the table": (
        lambda d: dict(cos_sin_cache=torch.zeros((200, 128), device=d)),
        ValueError,
        r"cos_sin: expected F32 \[\*, 64\]",
    ),
    "record": (
        lambda d: dict(kv=torch.zeros((3, 32, 1, 656), dtype=torch.uint8, device=d)),
        ValueError,
        "window: expected bytes .* got .3, 32, 1, 656.",
    ),
    "fp4 as the first cache": (
        lambda d: dict(kv=torch.zeros((3, 32, 1, 288), dtype=torch.uint8, device=d)),
        ValueError,
        "window: expected format fp8_528 or fp8_584, got nvfp4_288",
    ),
    "pair of formats": (
        lambda d: dict(extra_kv=torch.zeros((3, 32, 1, 584), dtype=torch.uint8, device=d)),
        ValueError,
        "compressed: expected format fp8_528 or nvfp4_288, got fp8_584",
    ),
    "stride of q": (lambda d: dict(q=bf16(d, 5, 32, 512)[:, ::2]), ValueError, "q: expected stride 512 in dimension 1"),
    "stride within a page": (
        lambda d: dict(kv=torch.zeros((3, 64, 1, 528), dtype=torch.uint8, device=d)[:, ::2]),
        ValueError,
        "window: expected records of a page one after the other",
    ),
    "stride of pages": (
        lambda d: dict(
            kv=torch.zeros(3 * 16904, dtype=torch.uint8, device=d).as_strided((3, 32, 1, 528), (16904, 528, 528, 1))
        ),
        ValueError,
        "window: expected a page_stride that is a multiple of 16",
    ),
    "strides of out_sf": (
        lambda d: dict(out_sf=int32(d, 5, 2, 32)),
        ValueError,
        r"out_scale: expected stride|out_scale: expected strides \(1, 32\*A, A\)",
    ),
    "strides of out_fp8": (
        lambda d: dict(out_fp8=torch.zeros((5, 4, 4096), dtype=torch.float8_e4m3fn, device=d)[:, ::2]),
        ValueError,
        "out: expected stride 4096 in dimension 1",
    ),
    "extra indices without a cache": (lambda d: dict(extra_kv=None), ValueError, "compressed_slots: expected nothing"),
    "a cache without extra indices": (lambda d: dict(extra_indices=None), ValueError, "compressed_slots: expected I32"),
    "extra lengths without a cache": (
        lambda d: dict(extra_kv=None, extra_indices=None),
        ValueError,
        "compressed_lens: expected nothing",
    ),
    "d_v": (lambda d: dict(d_v=448), ValueError, "fused_norm_rope_attn_rope_cast_decode: d_v: expected 512, got 448"),
    "neox": (lambda d: dict(is_rope_neox_style=True), ValueError, "is_rope_neox_style: expected False"),
    "rope_dim": (lambda d: dict(rope_dim=128), ValueError, "rope_dim: expected 64, got 128"),
    "n_wv_group": (lambda d: dict(n_wv_group=4), ValueError, r"n_wv_group: expected 2 \(8 heads a group\), got 4"),
    "num_per_channels": (lambda d: dict(num_per_channels=128), ValueError, "num_per_channels: expected 32, got 128"),
    "col_major": (
        lambda d: dict(use_tma_aligned_col_major_sf=False),
        ValueError,
        "use_tma_aligned_col_major_sf: expected True, got False",
    ),
    "round_sf": (lambda d: dict(round_sf=False), ValueError, "round_sf: expected True, got False"),
    "packed": (lambda d: dict(use_packed_ue8m0=False), ValueError, "use_packed_ue8m0: expected True, got False"),
    "scale": (lambda d: dict(sm_scale=float("nan")), ValueError, "softmax_scale: expected a finite value"),
}


@pytest.mark.parametrize("name", DECODE)
def test_decode(device, name):
    change, error, message = DECODE[name]
    p = Problem(16, device, record=528, extra=288)
    pair = Guarded(device)
    arguments = dict(out_fp8=pair.data, out_sf=pair.scale)
    arguments.update(change(device))
    with pytest.raises(error, match=message):
        decode(p, **arguments)
    assert pair.untouched()


@pytest.mark.parametrize("given, missing", [("out_fp8", "out_sf"), ("out_sf", "out_fp8")])
def test_half_a_pair(device, given, missing):
    p = Problem(16, device)
    pair = Guarded(device)
    message = f"{missing}: expected out_fp8 and out_sf, or neither, got only one of them"
    half = {given: pair.data if given == "out_fp8" else pair.scale}
    with pytest.raises(ValueError, match=message):
        decode(p, **half)
    with pytest.raises(ValueError, match=message):
        prefill(p, bf16(device, 96, 1, 512), **half)
    assert pair.untouched()


def test_scale_buffers_that_overlap(device):
    """Scales within the data, within the cache's bytes, or rows of them on top of each other."""
    p = Problem(16, device, record=528, extra=None)
    buffer = torch.zeros(64 * 4096, dtype=torch.uint8, device=device)
    data = buffer[: 5 * 2 * 4096].view(torch.float8_e4m3fn).view(5, 2, 4096)
    words = buffer.view(torch.int32)
    inside = words[1024:].as_strided((5, 2, 32), (1, 256, 8), words.storage_offset() + 1024)
    with pytest.raises(ValueError, match="out_scale: expected memory apart from out, got overlapping memory"):
        decode(p, out_fp8=data, out_sf=inside)
    folded = words.as_strided((5, 2, 32), (1, 0, 8), 16384)
    with pytest.raises(ValueError, match="out_scale: expected an output whose elements do not overlap"):
        decode(p, out_fp8=data, out_sf=folded)
    narrow = words.as_strided((5, 2, 32), (1, 128, 4), 16384)  # A = 4 < 5 tokens
    with pytest.raises(ValueError, match="out_scale: expected"):
        decode(p, out_fp8=data, out_sf=narrow)
    cache_bytes = p.kv.as_strided((16384,), (1,)).view(torch.int32)
    in_cache = cache_bytes.as_strided((5, 2, 32), (1, 256, 8), p.kv.storage_offset() // 4)
    with pytest.raises(ValueError, match="out_scale: expected memory apart from window"):
        decode(p, out_fp8=data, out_sf=in_cache)
    assert not buffer.any()


def test_another_device(gpu):
    p = Problem(16, gpu, record=528, extra=288)
    pair = Guarded(gpu)
    for name in ("kv", "indices", "topk_length", "extra_kv", "token_positions", "cos_sin_cache", "attn_sink"):
        value = {
            "kv": p.kv,
            "indices": p.indices,
            "topk_length": p.length,
            "extra_kv": p.extra_kv,
            "token_positions": p.positions,
            "cos_sin_cache": p.table,
            "attn_sink": p.sink,
        }[name].cpu()
        with pytest.raises(ValueError, match="expected memory of CUDA device 0, got host memory"):
            decode(p, out_fp8=pair.data, out_sf=pair.scale, **{name: value})
    assert pair.untouched()


FLASHMLA = {
    "no indices": (
        dict(indices=None),
        NotImplementedError,
        r"indices: expected int32 .b, s_q, topk. \(no dense form is here\)",
    ),
    "causal": (dict(causal=True), ValueError, "causal: expected False"),
    "bf16 cache": (dict(is_fp8_kvcache=False), ValueError, "is_fp8_kvcache: expected True"),
    "head_dim_v": (dict(head_dim_v=448), ValueError, "head_dim_v: expected 512, got 448"),
}


@pytest.mark.parametrize("name", FLASHMLA)
def test_flash_mla_with_kvcache(device, name):
    change, error, message = FLASHMLA[name]
    p = Problem(8, device)
    out = torch.full((5, 1, 8, 512), 7.0, dtype=torch.bfloat16, device=device)
    arguments = dict(
        q=p.q.unsqueeze(1),
        k_cache=p.kv,
        block_table=None,
        cache_seqlens=None,
        head_dim_v=512,
        is_fp8_kvcache=True,
        indices=p.indices.unsqueeze(1),
        out=out,
    )
    with pytest.raises(error, match="flash_mla_with_kvcache: " + message):
        flash_mla_with_kvcache(**{**arguments, **change})
    with pytest.raises(ValueError, match=r"q: expected BF16 \[\*, \*, 512\], got BF16 \[5, 8, 576\]"):
        flash_mla_with_kvcache(**{**arguments, "q": bf16(device, 5, 1, 8, 576)})
    with pytest.raises(ValueError, match="out: expected strides of the first two dimensions that merge"):
        two = dict(q=bf16(device, 2, 2, 8, 512), indices=int32(device, 2, 2, 4), out=bf16(device, 2, 3, 8, 512)[:, :2])
        flash_mla_with_kvcache(**{**arguments, **two})
    assert (out == 7).all()


def test_flash_mla_sparse_fwd(device):
    p = Problem(8, device, record=528, extra=None)
    rows = gathered(p)
    out = torch.full((5, 8, 512), 7.0, dtype=torch.bfloat16, device=device)
    for arguments, message in [
        (dict(d_v=448), "flash_mla_sparse_fwd: d_v: expected 512, got 448"),
        (dict(kv=rows.expand(96, 2, 512)), r"flash_mla_sparse_fwd: kv: expected \[s_kv, 1, 512\]"),
        (dict(indices=p.indices), r"flash_mla_sparse_fwd: indices: expected \[s_q, 1, topk\]"),
        (dict(kv=rows[:, :, :500]), r"prefill_attention: kv: expected BF16 \[\*, 512\]"),
    ]:
        call = dict(q=p.q, kv=rows, indices=p.indices.unsqueeze(1), sm_scale=SCALE, out=out)
        with pytest.raises(ValueError, match=message):
            flash_mla_sparse_fwd(**{**call, **arguments})
    assert (out == 7).all()


def test_operators_refuse_as_the_functions_do(device):
    x, weight = torch.ones((2, 64), device=device), bf16(device, 63)
    out = torch.full((2, 64), 9.0, dtype=torch.bfloat16, device=device)
    with pytest.raises(ValueError, match=r"rms_norm: weight: expected BF16 \[64\], got BF16 \[63\]"):
        mega.rms_norm(x, weight, out=out)
    assert (out == 9).all()
