"""Index transforms and plans, against plain Python."""

import numpy as np

from megamla import ops


def i32(*values):
    return np.array(values, np.int32)


def test_topk_to_slots():
    rng = np.random.default_rng(1)
    topk = rng.integers(-2, 64, (6, 9)).astype(np.int32)
    request = i32(0, 0, 1, 1, 2, 2)
    table = rng.permutation(12).astype(np.int32).reshape(3, 4)
    valid = np.array([1, 1, 1, 0, 1, 1], bool)
    slots, lens = np.empty((6, 9), np.int32), np.empty(6, np.int32)
    ops.topk_to_slots(topk, request, table, out=slots, lens=lens, slots_per_page=16, is_valid_token=valid)
    for t in range(6):
        expected = [table[request[t], p // 16] * 16 + p % 16 if p >= 0 and valid[t] else -1 for p in topk[t]]
        assert list(slots[t]) == expected
        assert lens[t] == sum(s >= 0 for s in expected)


def test_swa_metadata():
    starts, lens = i32(0, 1, 2, 7), i32(130, 3, 5)  # two decodes, one prefill of five tokens
    table = np.arange(3 * 3, dtype=np.int32).reshape(3, 3)
    mapping = np.arange(8)
    mapping[7] = -1
    slots, count = np.empty((2, 128), np.int32), np.empty(8, np.int32)
    valid, request, gather = np.empty(8, np.uint8), np.empty(7, np.int32), np.empty(1, np.int32)
    ops.swa_metadata(starts, lens, mapping, table, out=slots, decode_swa_lens=count, is_valid_token=valid,
                     token_to_req=request, prefill_gather_lens=gather, page_size=64, num_decodes=2)
    assert list(slots[0]) == list(range(2, 130)) and list(slots[1]) == [192, 193, 194] + [-1] * 125
    assert list(count) == [128, 3, 0, 0, 0, 0, 0, 0]
    assert list(valid) == [1] * 7 + [0] and list(request) == [0, 1, 2, 2, 2, 2, 2]
    assert list(gather) == [5]


def test_combine_topk_swa_without_compressed_rows():
    starts, lens = i32(0, 3), i32(3)
    topk = np.full((3, 0), -1, np.int32)
    out, count = np.empty((3, 128), np.int32), np.empty(3, np.int32)
    ops.combine_topk_swa(topk, starts, lens, i32(3), out=out, lens=count, window=2, compress_ratio=0, m=3, n=0)
    assert [sorted(row[row >= 0]) for row in out] == [[0], [0, 1], [1, 2]]
    assert list(count) == [1, 2, 2]


def test_compressed_slot_mapping():
    out = np.empty(5, np.int64)
    ops.compressed_slot_mapping(i32(0, 4), i32(10), np.array([[3, 1]], np.int32), out=out, states_per_page=4)
    # Positions 6 .. 9: 7 closes row 3 (page 3), 9 closes row 4 (page 1); the fifth token is padding.
    assert list(out) == [-1, 3 * 4 + 3, -1, 1 * 4 + 0, -1]


def test_split_batch():
    assert ops.split_batch(i32(1, 2, 2, 40, 7), threshold=2) == (3, 2, 5, 47)
    assert ops.split_batch(i32(), threshold=1) == (0, 0, 0, 0)


def test_prefill_chunk_plan():
    plan = ops.prefill_chunk_plan(i32(100, 20, 30), i32(10, 20, 30), compress_ratio=2, has_compressed=True,
                                  chunk_size=2, max_model_len=4096, max_num_batched_tokens=4096)
    # Window rows: the new tokens and up to 127 before them.
    assert plan == [(0, 3, 50, 50 + 100)]
