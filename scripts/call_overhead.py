#!/usr/bin/env python3
"""Host time of a call from PyTorch, outside a graph. Usage: call_overhead.py [--device cuda] [--json FILE].

On the CPU the calls have no tokens, so that nothing but the way to the library and its checks is timed. On a GPU they
have one, and the time is that until the call returns, launch included. The best of many short rounds, so that a busy
machine does not matter much.
"""

import argparse
import json
import time

import torch

import megamla
import megamla.torch as mt
from megamla import ops

mega = torch.ops.megamla


def microseconds(call, rounds=200, calls=50):
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return best * 1e6


def calls(device):
    """name -> call: both steps with every argument given, and the smallest op."""
    tokens, heads = (0 if device == "cpu" else 1), 64
    int32, f32 = dict(dtype=torch.int32, device=device), dict(dtype=torch.float32, device=device)
    bf16 = dict(dtype=torch.bfloat16, device=device)
    q = torch.zeros((tokens, heads, 512), **bf16)
    slots, extra_slots = torch.zeros((tokens, 128), **int32), torch.zeros((tokens, 512), **int32)
    lens, sink = torch.ones(tokens, **int32), torch.zeros(heads, **f32)
    table = torch.zeros((128, 64), **f32)
    cache_584 = torch.zeros((4, 64, 1, 584), dtype=torch.uint8, device=device)
    cache_528 = torch.zeros((4, 64, 1, 528), dtype=torch.uint8, device=device)
    cache_288 = torch.zeros((4, 64, 1, 288), dtype=torch.uint8, device=device)
    out, lse = torch.empty((tokens, heads, 512), **bf16), torch.empty((tokens, heads), **f32)
    pair = mt.alloc_mega_attn_output(tokens, heads // 8, device)
    schedule = mt.get_mla_metadata()[0]
    x, weight, y = torch.zeros((tokens, 512), **f32), torch.zeros(512, **bf16), torch.zeros((tokens, 512), **bf16)
    lists = dict(
        window_lens=lens,
        compressed=cache_584,
        compressed_slots=extra_slots,
        compressed_lens=lens,
        attn_sink=sink,
        positions=lens,
        cos_sin=table,
        output="bf16",
        out=out,
        lse=lse,
    )
    flash = (q.unsqueeze(1), cache_584, None, None, 512, schedule, None, 0.04, False, True)
    flash += (slots.unsqueeze(1), sink, cache_584, extra_slots.unsqueeze(1), lens, lens)
    out_4d = out.unsqueeze(1)
    return {
        "ops.rms_norm": lambda: ops.rms_norm(x, weight, out=y),
        "torch.ops.megamla.rms_norm": lambda: mega.rms_norm(x, weight, out=y),
        "ops.decode_attention": lambda: ops.decode_attention(q, cache_584, slots, **lists),
        "torch.ops.megamla.decode_attention": lambda: mega.decode_attention(q, cache_584, slots, **lists),
        "flash_mla_with_kvcache": lambda: mt.flash_mla_with_kvcache(*flash),
        "flash_mla_with_kvcache, out given": lambda: mt.flash_mla_with_kvcache(*flash, out_4d),
        "torch.ops.megamla.fused_norm_rope_attn_rope_cast_decode": lambda: mega.fused_norm_rope_attn_rope_cast_decode(
            q,
            cache_528,
            slots,
            0.04,
            512,
            sink,
            lens,
            cache_288,
            extra_slots,
            lens,
            False,
            0.0,
            lens,
            False,
            64,
            table,
            heads // 8,
            32,
            True,
            True,
            True,
            *pair,
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with torch.inference_mode():
        times = {name: microseconds(call) for name, call in calls(options.device).items()}
    for name, value in times.items():
        print(f"{name:60} {value:7.1f} us")
    if options.json:
        record = {
            "megamla": megamla.__version__,
            "torch": torch.__version__,
            "device": options.device,
            "call_overhead_us": times,
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
