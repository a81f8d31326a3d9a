"""Calls of the fused operators in SM100's argument order."""

from problem import SCALE, mega


def _changed(arguments, changes):
    for name in changes:
        assert name in arguments, name
    return tuple({**arguments, **changes}.values())


def _fixed(p):
    """The last arguments, which both operators share."""
    return dict(
        enable_q_norm=False,
        rms_norm_eps=0.0,
        token_positions=p.positions,
        is_rope_neox_style=False,
        rope_dim=64,
        cos_sin_cache=p.table,
        n_wv_group=p.heads // 8,
        num_per_channels=32,
        use_tma_aligned_col_major_sf=True,
        round_sf=True,
        use_packed_ue8m0=True,
        out_fp8=None,
        out_sf=None,
    )


def decode_arguments(p, q=None, **changes):
    """The positional arguments of a Problem."""
    arguments = dict(
        q=p.chunked_q() if q is None else q,
        kv=p.kv,
        indices=p.indices,
        sm_scale=SCALE,
        d_v=512,
        attn_sink=p.sink,
        topk_length=p.length,
        extra_kv=p.extra_kv,
        extra_indices=p.extra_indices,
        extra_topk_length=p.extra_length,
        **_fixed(p),
    )
    return _changed(arguments, changes)


def decode(p, *, keywords=None, **changes):
    return mega.fused_norm_rope_attn_rope_cast_decode(*decode_arguments(p, **changes), **(keywords or {}))


def prefill_arguments(p, rows, q=None, **changes):
    arguments = dict(
        q=p.chunked_q() if q is None else q,
        kv=rows,
        indices=p.indices.unsqueeze(1),
        sm_scale=SCALE,
        d_v=512,
        attn_sink=p.sink,
        topk_length=p.length,
        **_fixed(p),
    )
    return _changed(arguments, changes)


def prefill(p, rows, *, keywords=None, **changes):
    return mega.fused_norm_rope_attn_rope_cast_fwd(*prefill_arguments(p, rows, **changes), **(keywords or {}))
