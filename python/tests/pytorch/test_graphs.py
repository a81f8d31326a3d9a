"""CUDA graphs: captured once, replayed after the inputs have changed where they lie."""

import pytest
import torch
from mega_calls import decode_arguments, prefill_arguments
from problem import SCALE, Problem, assert_bf16_close, assert_fp8_close, dequantised, mega
from test_mega_attention import FORMATS, gathered

from megamla.torch import alloc_mega_attn_output, flash_mla_sparse_fwd, flash_mla_with_kvcache


def capture(function):
    """(graph, the results that a replay writes). A first run outside, as engines warm up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


def change(p, seed=9):
    """Another step's values in the same memory."""
    other = Problem(
        p.heads,
        "cpu",
        tokens=p.tokens,
        record=p.kv.shape[-1],
        seed=seed,
        extra=None if p.extra_kv is None else p.extra_kv.shape[-1],
    )
    for name in ("q", "indices", "length", "positions", "sink", "extra_indices", "extra_length"):
        if getattr(p, name) is not None:
            getattr(p, name).copy_(getattr(other, name))


@pytest.mark.parametrize("heads", [8, 16, 64, 128])
def test_step_one(gpu, heads):
    p = Problem(heads, gpu)

    def attend():
        return flash_mla_with_kvcache(
            p.q.unsqueeze(1),
            p.kv,
            None,
            None,
            512,
            softmax_scale=SCALE,
            is_fp8_kvcache=True,
            indices=p.indices.unsqueeze(1),
            attn_sink=p.sink,
            extra_k_cache=p.extra_kv,
            extra_indices_in_kvcache=p.extra_indices.unsqueeze(1),
            topk_length=p.length,
            extra_topk_length=p.extra_length,
        )

    graph, (out, lse) = capture(attend)
    for seed in (9, 10):
        change(p, seed)
        graph.replay()
        assert_bf16_close(out[:, 0], p.reference(rotated=True)[0])
        direct = attend()
        assert torch.equal(out, direct[0]) and torch.equal(lse, direct[1])


@pytest.mark.parametrize("heads", [8, 16, 64, 128])
@pytest.mark.parametrize("record, extra", FORMATS)
def test_step_two(gpu, heads, record, extra):
    p = Problem(heads, gpu, record=record, extra=extra)
    q = p.chunked_q()
    data, scale = alloc_mega_attn_output(13, heads // 8, gpu)
    data.view(torch.uint8).fill_(0xEE)
    scale.fill_(-7)

    def attend():
        mega.permute_weights(p.q, out=q, kind="q")
        return mega.fused_norm_rope_attn_rope_cast_decode(
            *decode_arguments(p, q=q, out_fp8=data[4:9], out_sf=scale[4:9])
        )

    graph, results = capture(attend)
    change(p)
    graph.replay()
    assert_fp8_close(dequantised(results[0], results[1]), p.reference(rotated=False)[0])
    guards = [0, 1, 2, 3, 9, 10, 11, 12]
    assert (data[guards].view(torch.uint8) == 0xEE).all() and (scale[guards] == -7).all()


@pytest.mark.parametrize("heads", [16, 64])
def test_prefill(gpu, heads):
    p = Problem(heads, gpu, record=528, extra=None)
    rows, q = gathered(p), p.chunked_q()

    def attend():
        plain = flash_mla_sparse_fwd(p.q, rows, p.indices.unsqueeze(1), SCALE, attn_sink=p.sink, topk_length=p.length)
        return plain[0], mega.fused_norm_rope_attn_rope_cast_fwd(*prefill_arguments(p, rows, q=q))

    graph, (out, (data, scale, _, _)) = capture(attend)
    change(p)
    q.copy_(p.chunked_q())
    graph.replay()
    assert_bf16_close(out, p.reference(rotated=True)[0])
    assert_fp8_close(dequantised(data, scale), p.reference(rotated=False)[0])


def test_compiled_with_graphs(gpu):
    """torch.compile's own graphs: mode "reduce-overhead"."""
    p = Problem(16, gpu, record=528, extra=288)

    def attend(q):
        data, scale, lse = mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p, q=q))
        return data.view(torch.uint8), scale, lse * 2

    expected = attend(p.chunked_q())
    fast = torch.compile(attend, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        got = fast(p.chunked_q())
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_the_stream_is_the_frameworks(gpu):
    """Work goes behind what the current stream holds: a long fill, then attention over what it wrote."""
    p = Problem(16, gpu)
    out, expected = torch.empty_like(p.q), torch.empty_like(p.q)
    mega.decode_attention(p.q, p.kv, p.indices, out=expected, output="bf16")
    q = torch.zeros_like(p.q)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        q.copy_(p.q)
        mega.decode_attention(q, p.kv, p.indices, out=out, output="bf16")
    stream.synchronize()
    assert torch.equal(out, expected)
