"""torch.ops.megamla as PyTorch sees it: schemas that tell the truth, torch.compile, inputs changed in place."""

import subprocess
import sys

import pytest
import torch
from mega_calls import decode_arguments, prefill_arguments
from problem import SCALE, Problem, mega
from test_mega_attention import gathered

from megamla import ops
from megamla.torch import alloc_mega_attn_output, flash_mla_sparse_fwd, flash_mla_with_kvcache

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def compiled(function, backend, **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def bits(tensors):
    return [t.view(torch.uint8) if t.dtype == torch.float8_e4m3fn else t for t in tensors]


def assert_same(got, expected):
    for a, b in zip(bits(got), bits(expected), strict=True):
        assert a.stride() == b.stride() and torch.equal(a, b)


def test_every_op_with_an_output_is_there():
    for name in ops.__all__:
        if not name.startswith(("alloc_", "page_layout", "prefill_chunk", "split_batch", "workspace_size")):
            schema = getattr(mega, name).default._schema
            assert schema.is_mutable and not schema.returns, name


def test_schemas_tell_what_is_written(device):
    p = Problem(8, device)
    out, lse = torch.empty_like(p.q), torch.empty((5, 8), device=device)
    torch.library.opcheck(
        mega.decode_attention.default,
        (p.q, p.kv, p.indices),
        dict(
            out=out,
            lse=lse,
            output="bf16",
            window_lens=p.length,
            compressed=p.kv,
            compressed_slots=p.indices,
            compressed_lens=p.length,
            positions=p.positions,
            cos_sin=p.table,
        ),
    )
    x, weight = torch.randn((3, 64), device=device), torch.ones(64, dtype=torch.bfloat16, device=device)
    torch.library.opcheck(mega.rms_norm.default, (x, weight), dict(out=torch.empty_like(x, dtype=torch.bfloat16)))
    latent, slots = torch.randn((4, 512), device=device).to(torch.bfloat16), torch.arange(4, device=device)
    torch.library.opcheck(mega.kv_insert.default, (latent, slots), dict(out=torch.zeros_like(p.kv)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_step_one_compiled(device, backend):
    p = Problem(16, device)

    def attend(q, k_cache, indices, extra_cache, extra_indices):
        out, lse = flash_mla_with_kvcache(
            (q * 2).unsqueeze(1),
            k_cache,
            None,
            None,
            512,
            softmax_scale=SCALE,
            is_fp8_kvcache=True,
            indices=indices.unsqueeze(1),
            attn_sink=p.sink,
            extra_k_cache=extra_cache,
            extra_indices_in_kvcache=extra_indices.unsqueeze(1),
            topk_length=p.length,
            extra_topk_length=p.extra_length,
        )
        return out[:, 0] + 1, lse

    arguments = (p.q, p.kv, p.indices, p.extra_kv, p.extra_indices)
    assert_same(compiled(attend, backend)(*arguments), attend(*arguments))


@pytest.mark.parametrize("backend", BACKENDS)
def test_step_two_compiled(device, backend):
    """Decode into a new pair, prefill into the caller's: a slice with strides of a larger one."""
    p = Problem(16, device, record=528, extra=288)
    rows = gathered(p)

    def attend(q, data, scale):
        decoded = mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p, q=q))
        prefilled = mega.fused_norm_rope_attn_rope_cast_fwd(
            *prefill_arguments(p, rows, q=q, out_fp8=data, out_sf=scale)
        )
        return decoded[2] + prefilled[3], decoded[0], decoded[1]

    def run(function):
        data, scale = alloc_mega_attn_output(9, 2, device)
        data.view(torch.uint8).fill_(0xEE)
        scale.fill_(-7)
        results = function(p.chunked_q(), data[2:7], scale[2:7])
        return *results, data, scale

    assert_same(run(compiled(attend, backend)), run(attend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_whole_segment_compiled(device, backend):
    """Allocate, insert, attend, project: what is written by one operator is read by the next."""
    p = Problem(8, device, record=528, extra=None)
    generator = torch.Generator().manual_seed(3)
    latent = torch.randn((4, 512), generator=generator).to(torch.bfloat16).to(device)
    weight = torch.randint(0, 0x70, (1, 64, 4096), generator=generator, dtype=torch.uint8).to(device)
    weight_scale = torch.full((1, 64, 128), 120, dtype=torch.uint8, device=device)
    slots = torch.arange(4, device=device)

    def segment(q, cache):
        mega.kv_insert(latent, slots, positions=p.positions[:4], cos_sin=p.table, out=cache)
        data, scale = alloc_mega_attn_output(q.shape[0], 1, q.device)
        mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p, q=q, kv=cache, out_fp8=data, out_sf=scale))
        z = torch.empty((q.shape[0], 1, 64), dtype=torch.bfloat16, device=q.device)
        mega.block_scaled_linear(
            data, weight, x_scale=scale, weight_scale=weight_scale, input="fp8_pair", weight_kind="row_32", out=z
        )
        return z * 2

    def run(function):
        cache = p.kv.clone()  # a clone is dense; the page stride may be anything
        return function(p.chunked_q(), cache), cache

    expected, got = run(segment), run(compiled(segment, backend))
    assert_same(got, expected)
    assert not torch.equal(expected[1], p.kv)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_changed_in_place_between_calls(device, backend):
    p = Problem(8, device)

    def attend(q):
        out = torch.empty_like(q)
        mega.decode_attention(q, p.kv, p.indices, out=out, output="bf16", window_lens=p.length)
        return out

    fast = compiled(attend, backend)
    first = fast(p.q)
    assert torch.equal(first, attend(p.q))
    p.length.copy_(torch.tensor([1, 2, 3, 4, 5], dtype=torch.int32))
    p.q.neg_()
    second = fast(p.q)
    assert torch.equal(second, attend(p.q)) and not torch.equal(first, second)


def test_any_number_of_tokens_is_one_compilation(device):
    p = Problem(8, device, tokens=12, extra=None)
    compilations = []

    def counting(graph, inputs):
        compilations.append(len(inputs))
        return graph.forward

    def attend(q, indices):
        return flash_mla_with_kvcache(
            q.unsqueeze(1), p.kv, None, None, 512, is_fp8_kvcache=True, indices=indices.unsqueeze(1)
        )[0]

    fast = torch.compile(attend, backend=counting, dynamic=True, fullgraph=True)
    for tokens in (4, 5, 12, 7):
        q, indices = p.q[:tokens], p.indices[:tokens]
        assert torch.equal(fast(q, indices), attend(q, indices))
    assert len(compilations) == 1


def test_tensors_without_memory_have_the_shapes():
    p = Problem(16, "cpu")
    for name, value in vars(p).items():
        setattr(p, name, value.to("meta") if isinstance(value, torch.Tensor) else value)
    decoded = mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p))
    assert [t.shape for t in decoded] == [(5, 2, 4096), (5, 2, 32), (5, 16)] and decoded[1].stride() == (1, 256, 8)
    out, lse = flash_mla_with_kvcache(
        p.q.unsqueeze(1), p.kv, None, None, 512, is_fp8_kvcache=True, indices=p.indices.unsqueeze(1)
    )
    assert out.shape == (5, 1, 16, 512) and lse.shape == (5, 16, 1) and out.is_meta


def test_no_gradient_is_invented(device):
    p = Problem(8, device)
    q = p.q.clone().requires_grad_()
    out = flash_mla_sparse_fwd(
        q.detach(),
        torch.zeros((4, 1, 512), dtype=torch.bfloat16, device=device),
        torch.zeros((5, 1, 4), dtype=torch.int32, device=device),
        SCALE,
    )[0]
    assert not out.requires_grad


@pytest.mark.parametrize("order", ["import torch, megamla.torch", "import megamla.torch, torch"])
def test_one_openmp_whatever_is_imported_first(order):
    code = f"""
{order}
import re
x = torch.randn(64, 512)
torch.ops.megamla.rms_norm(x, torch.ones(512, dtype=torch.bfloat16), out=x.to(torch.bfloat16))
assert torch.isfinite(x @ x.t()).all()
print(*{{line.split()[-1] for line in open("/proc/self/maps") if re.search(r"lib(gomp|iomp5|omp)[.-]", line)}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 1, done.stdout
