"""Scratch memory of attention on a GPU when the caller gives none: kept for a stream's eager calls, apart from other
streams and from graphs. Every result is held against one whose workspace was the test's own."""

import threading

import pytest
import torch
from problem import Problem, mega

from megamla import ops

HEADS = 64  # of fewer, attention needs no workspace
FEW, MANY = 5, 80  # tokens; the workspace of MANY is larger, and parts of rows meet in it


class Step:
    """A decode step, what it should give, and an output for each of its calls."""

    def __init__(self, device, tokens, seed, calls):
        self.problem = Problem(HEADS, device, tokens=tokens, width=128, extra_width=512, seed=seed)
        self.outs = [torch.zeros_like(self.problem.q) for _ in range(calls)]
        self.expected = torch.zeros_like(self.problem.q)
        size = ops.workspace_size(
            "decode_attention", tokens=tokens, heads=HEADS, window_width=128, compressed_width=512, device="cuda"
        )
        self.attend(self.expected, torch.zeros(size, dtype=torch.uint8, device=device))
        torch.cuda.synchronize()

    def attend(self, out, workspace=None):
        p = self.problem
        mega.decode_attention(
            p.q,
            p.kv,
            p.indices,
            window_lens=p.length,
            compressed=p.extra_kv,
            compressed_slots=p.extra_indices,
            compressed_lens=p.extra_length,
            attn_sink=p.sink,
            output="bf16",
            out=out,
            workspace=workspace,
        )

    def check(self):
        torch.cuda.synchronize()
        assert self.expected.any()
        for number, out in enumerate(self.outs):
            assert torch.equal(out, self.expected), number


def test_eager_calls_take_nothing_from_pytorch(gpu):
    step = Step(gpu, MANY, 0, calls=2)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for out in step.outs:
        step.attend(out)
    assert torch.cuda.max_memory_allocated() == before
    step.check()


def test_growth_behind_unfinished_work(gpu):
    few, many = Step(gpu, FEW, 1, calls=6), Step(gpu, MANY, 2, calls=6)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        for small, large in zip(few.outs, many.outs, strict=True):
            few.attend(small)
            many.attend(large)
    few.check()
    many.check()


@pytest.mark.parametrize("streams", [2, 7])  # fewer and more than memory is kept for
def test_streams_beside_each_other(gpu, streams):
    steps = [Step(gpu, MANY - 3 * seed, seed, calls=8) for seed in range(streams)]
    queues = [torch.cuda.Stream() for _ in steps]
    for call in range(8):
        for step, stream in zip(steps, queues, strict=True):
            with torch.cuda.stream(stream):
                step.attend(step.outs[call])
    for step in steps:
        step.check()


def test_capture_after_eager_calls(gpu):
    """A graph's replays on one stream, eager calls on the stream that captured it."""
    captured, eager = Step(gpu, MANY, 3, calls=1), Step(gpu, MANY - 1, 4, calls=8)
    home, side = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(home):
        eager.attend(eager.outs[0])
    home.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=home):
        captured.attend(captured.outs[0])
    junk = [torch.full((1 << 24,), 0x7F, dtype=torch.uint8, device=gpu) for _ in range(8)]  # over what was free again
    torch.cuda.synchronize()
    for out in eager.outs:
        captured.outs[0].zero_()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.replay()
        with torch.cuda.stream(home):
            eager.attend(out)
        side.synchronize()
        captured.check()
    eager.check()
    assert all((block == 0x7F).all() for block in junk)


@pytest.mark.parametrize("own_streams", [False, True])
def test_threads(gpu, own_streams):
    steps = [Step(gpu, FEW if seed % 2 else MANY - seed, seed, calls=30) for seed in range(4)]
    stream, errors = torch.cuda.Stream(), []

    def serve(step):
        try:
            with torch.cuda.stream(torch.cuda.Stream() if own_streams else stream):
                for out in step.outs:
                    step.attend(out)
        except Exception as error:  # noqa: BLE001  (shown by the main thread)
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for step in steps:
        step.check()


def test_a_thread_captures_while_another_works(gpu):
    captured, eager = Step(gpu, MANY, 5, calls=1), Step(gpu, MANY - 1, 6, calls=8)
    begun, done, errors = threading.Event(), threading.Event(), []

    def serve():
        try:
            begun.wait(30)
            with torch.cuda.stream(stream):
                for out in eager.outs:
                    eager.attend(out)
        except Exception as error:  # noqa: BLE001
            errors.append(error)
        done.set()

    stream = torch.cuda.Stream()
    thread = threading.Thread(target=serve)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    # Not the default mode: where earlier tests' streams have all the memory that is kept, the other thread's comes from
    # PyTorch, whose allocation would end a capture that forbids it to every thread.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        captured.attend(captured.outs[0])
        begun.set()
        assert done.wait(30)
    thread.join()
    assert not errors
    eager.check()
    captured.outs[0].zero_()
    graph.replay()
    captured.check()
