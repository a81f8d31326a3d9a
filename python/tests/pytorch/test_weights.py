"""The permutations of weights: the fused operators and the plain ones give the same projections."""

import pytest
import torch
from mega_calls import decode
from problem import Problem, dequantised, mega


def random_fp8(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) / 4).to(torch.float8_e4m3fn)


def packed_scales(rows, groups, seed=0):
    """Scales of `groups` groups a row: float32 [..., rows, groups], and int32 words of 4, stride 1 along the rows."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(120, 130, (*rows, groups), generator=generator, dtype=torch.uint8)
    words = exponents.view(torch.int32).transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.exp2(exponents.float() - 127), words


def unpacked(words):
    return torch.exp2(words.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8).float() - 127)


@pytest.mark.parametrize("grain", [32, 128])
def test_q_b_proj_makes_chunked_q(device, grain):
    """x W^T with permuted rows is the chunked order of x W^T."""
    heads, rank = 8, 512
    weight = random_fp8(heads * 512, rank)
    scales, words = packed_scales((heads * 512,), rank // grain)
    permuted, permuted_words = mega.permute_q_b_proj(weight.to(device), words.to(device), heads, 512)
    assert permuted.shape == weight.shape and permuted.dtype == weight.dtype and permuted.device.type == device
    assert permuted_words.shape == words.shape and permuted_words.stride(0) == 1
    x = torch.randn((3, rank), generator=torch.Generator().manual_seed(1))
    q = x @ (weight.float() * scales.repeat_interleave(grain, 1)).t()
    chunked = x @ (permuted.cpu().float() * unpacked(permuted_words).repeat_interleave(grain, 1)).t()
    expected = torch.empty((3, heads, 512))
    mega.permute_weights(q.view(3, heads, 512), out=expected, kind="q")
    torch.testing.assert_close(chunked.view(3, heads, 512), expected)


def test_wv_proj_reads_the_output_pair(device):
    """The permuted weight times the pair is the plain weight times the attention output."""
    p = Problem(16, device)
    data, scale, _ = decode(p)
    weight = random_fp8(2, 64, 4096)
    scales, words = packed_scales((2, 64), 128)
    permuted, permuted_words = mega.permute_wv_proj(weight.to(device), words.to(device), 8, 512)
    assert permuted.shape == weight.shape and permuted_words.shape == words.shape and permuted_words.stride(1) == 1
    wide = weight.float() * scales.repeat_interleave(32, 2)
    expected = torch.einsum("tgr,gdr->tgd", dequantised(data, scale).view(5, 2, 4096), wide)
    pair = data.cpu().float() * unpacked(scale).repeat_interleave(32, 2)
    wide_permuted = permuted.cpu().float() * unpacked(permuted_words).repeat_interleave(32, 2)
    torch.testing.assert_close(torch.einsum("tgr,gdr->tgd", pair, wide_permuted), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(d_q=576), ValueError, "permute_q_b_proj: d_q: expected 512, got 576"),
        (dict(h_q=16), ValueError, "permute_q_b_proj: q_b_proj: expected 8192 rows, got 4096"),
        (dict(q_b_proj=random_fp8(4096, 512).view(torch.uint8)), TypeError, "q_b_proj: expected float8_e4m3fn"),
        (
            dict(scale_factors=torch.zeros((8, 4096), dtype=torch.int32).t()),
            ValueError,
            r"expected \[4096, 4\] or \[4096, 1\]",
        ),
        (dict(scale_factors=torch.zeros((4096, 4), dtype=torch.int32)), ValueError, "stride 1 along the rows"),
        (dict(scale_factors=torch.zeros((4, 4096)).t()), TypeError, "expected int32"),
    ],
)
def test_refused(change, error, message):
    arguments = dict(q_b_proj=random_fp8(4096, 512), scale_factors=packed_scales((4096,), 16)[1], h_q=8, d_q=512)
    arguments.update(change)
    with pytest.raises(error, match=message):
        mega.permute_q_b_proj(*arguments.values())


def test_refused_wv_proj():
    weight, words = random_fp8(2, 64, 4096), packed_scales((2, 64), 128)[1]
    with pytest.raises(ValueError, match="wv_group_size: expected 8, got 16"):
        mega.permute_wv_proj(weight, words, 16, 512)
    with pytest.raises(ValueError, match=r"scale_factors: expected \[2, 64, 32\], got \[2, 64, 8\]"):
        mega.permute_wv_proj(weight, packed_scales((2, 64), 32)[1], 8, 512)
