"""A decode step with everything that may lie in its lists, its reference, and the contract's bounds."""

import torch

import megamla.torch  # noqa: F401  (registers torch.ops.megamla)

mega = torch.ops.megamla
SCALE = 512**-0.5
LARGEST_KEY = 4.0  # no more than what normal random rows of this many values reach


def make_cache(record, pages, page_size, generator, device, layout="planar"):
    """[pages, page_size, 1, record] with a row in every slot, pages a little apart."""
    rows = pages * page_size
    stride = (page_size * record + 15) // 16 * 16 + 64
    pool = torch.zeros(pages * stride, dtype=torch.uint8)
    cache = pool.as_strided((pages, page_size, 1, record), (stride, record, record, 1))
    latent = torch.randn((rows, 512), generator=generator).to(torch.bfloat16)
    mega.kv_insert(latent, torch.arange(rows), out=cache, layout=layout)
    return pool.to(device).as_strided(cache.shape, cache.stride())


def make_slots(tokens, width, slots, generator, device):
    """int32 [tokens, width] and [tokens]: repeated slots, holes, slots past the pool, lengths from 0 to too long."""
    listed = torch.randint(0, slots, (tokens, width), generator=generator, dtype=torch.int32)
    listed[torch.rand(listed.shape, generator=generator) < 0.1] = -1
    listed[0, width // 2] = slots + 5
    lengths = torch.randint(1, width + 1, (tokens,), generator=generator, dtype=torch.int32)
    lengths[0] = width + 3
    if tokens > 2:
        lengths[2] = 0
    return listed.to(device), lengths.to(device)


class Problem:
    """q bf16 [tokens, heads, 512] in standard order, one or two caches with lists, positions with a table, a sink."""

    def __init__(
        self, heads, device, tokens=5, record=584, extra=584, width=48, extra_width=96, layout="planar", seed=0
    ):
        generator = torch.Generator().manual_seed(seed)
        self.heads, self.tokens, self.device, self.layout = heads, tokens, device, layout
        self.q = torch.randn((tokens, heads, 512), generator=generator).to(torch.bfloat16).to(device)
        self.kv = make_cache(record, 3, 32, generator, device, layout)
        self.indices, self.length = make_slots(tokens, width, 96, generator, device)
        self.extra_kv = self.extra_indices = self.extra_length = None
        if extra is not None:
            self.extra_kv = make_cache(extra, 2, 61, generator, device, layout)
            self.extra_indices, self.extra_length = make_slots(tokens, extra_width, 122, generator, device)
            if tokens > 2:
                self.extra_length[2] = 0
        self.positions = torch.randint(0, 200, (tokens,), generator=generator, dtype=torch.int32).to(device)
        self.table = torch.empty((200, 64))
        mega.rope_table(out=self.table, theta=10000.0)
        self.table = self.table.to(device)
        self.sink = torch.randn(heads, generator=generator).to(device)

    def chunked_q(self):
        """q in the order in which the fused operators read it."""
        out = torch.empty_like(self.q)
        mega.permute_weights(self.q, out=out, kind="q")
        return out

    def reference(self, rotated, **changes):
        """(values float32 [tokens, heads, 512], lse) in double precision. rotated: q comes and o leaves rotated."""
        out, lse = torch.empty((self.tokens, self.heads, 512)), torch.empty((self.tokens, self.heads))
        arguments = dict(
            window_lens=self.length,
            compressed=self.extra_kv,
            compressed_slots=self.extra_indices,
            compressed_lens=self.extra_length,
            attn_sink=self.sink,
            window_layout=self.layout,
            compressed_layout=self.layout,
            positions=None if rotated else self.positions,
            cos_sin=None if rotated else self.table,
        )
        arguments.update(changes)
        arguments = {name: on_cpu(value) for name, value in arguments.items()}
        mega.decode_attention(
            on_cpu(self.q),
            on_cpu(self.kv),
            on_cpu(self.indices),
            out=out,
            output="f32",
            lse=lse,
            device="reference",
            **arguments,
        )
        return out, lse


def on_cpu(value):
    """A tensor's copy in host memory, with its strides (a cache's pages lie apart)."""
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    storage = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage().cpu())
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def dequantised(data, scale):
    """An fp8 pair [tokens, groups, 4096] as float32 [tokens, 8 * groups, 512]: chunk 8 c + h of a group holds dims 32 c
    .. 32 c + 31 of its head h."""
    tokens, groups, _ = data.shape
    exponents = scale.cpu().contiguous().view(torch.uint8).view(tokens, groups, 128, 1)
    values = data.cpu().float().view(tokens, groups, 128, 32) * torch.exp2(exponents.float() - 127)
    return values.view(tokens, groups, 16, 8, 32).transpose(2, 3).reshape(tokens, groups * 8, 512)


def assert_bf16_close(got, expected):
    """The contract's bound of bf16 outputs."""
    got, expected = got.cpu().float(), expected.float()
    error = (got - expected).abs()
    bound = torch.maximum(torch.tensor(1.1e-3 * LARGEST_KEY), 2.01 / 128 * expected.abs())
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"
    assert_same_direction(got, expected, 5e-6)


def assert_fp8_close(got, expected):
    """The contract's bound of dequantised fp8 outputs."""
    error = (got - expected).abs()
    bound = torch.maximum(torch.tensor(1.1e-3 * LARGEST_KEY), 1.01 / 8 * expected.abs())
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"
    norms = expected.norm(dim=-1)
    assert (error.norm(dim=-1) <= 0.045 * norms + 1e-3).all()
    assert_same_direction(got, expected, 1e-3)


def assert_same_direction(got, expected, bound):
    a, b = got.double().flatten(), expected.double().flatten()
    assert 1 - 2 * (a * b).sum() / ((a * a).sum() + (b * b).sum()) < bound


def assert_lse_close(got, expected):
    got, expected = got.cpu(), expected.cpu()
    assert (torch.isposinf(got) == torch.isposinf(expected)).all()
    finite = torch.isfinite(expected)
    error = (got - expected)[finite].abs()
    assert (error <= torch.maximum(1e-5 * (1 + expected[finite].abs()), 4.01 / 65536 * expected[finite].abs())).all()
