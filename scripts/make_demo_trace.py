#!/usr/bin/env python3
"""Writes examples/demo_trace.jsonl: a small synthetic trace in the form of public request traces.

Usage: scripts/make_demo_trace.py [FILE]

Eight requests arrive over two seconds. Half of them share a prompt prefix of 1024 tokens (two blocks of 512), as a system prompt
would; lengths come from a fixed linear congruential generator, so that the file is the same everywhere.
"""
import json
import os
import sys

BLOCK = 512
here = os.path.dirname(os.path.abspath(__file__))
path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "examples", "demo_trace.jsonl")

state = 20250810


def draw(low, high):
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return low + (state >> 33) % (high - low + 1)


next_id = 2  # blocks 0 and 1 are the shared prefix
with open(path, "w") as out:
    for i in range(8):
        shared = i % 2 == 0
        prompt = draw(1100, 1500) if shared else draw(150, 700)
        hash_ids = [0, 1] if shared else []
        while len(hash_ids) < (prompt + BLOCK - 1) // BLOCK:
            hash_ids.append(next_id)
            next_id += 1
        out.write(json.dumps({"timestamp": i * 250, "input_length": prompt, "output_length": draw(8, 32), "hash_ids": hash_ids}) + "\n")
