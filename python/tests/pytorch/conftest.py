"""Tests of megamla.torch: the same on the CPU and, where this build and this machine have one, on a Hopper GPU."""

import functools
import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    if importlib.util.find_spec("torch") is None:
        return "python/tests/pytorch: not run, there is no PyTorch (make python TORCH=1)"
    import torch

    return f"PyTorch {torch.__version__}; GPU tests: {no_gpu() or torch.cuda.get_device_name()}"


@functools.cache
def no_gpu():
    """Why the GPU tests cannot run; "" if they can."""
    import torch

    import megamla.torch  # noqa: F401  (registers torch.ops.megamla)

    if not torch.cuda.is_available():
        return "PyTorch has no GPU here"
    x = torch.zeros((1, 64), device="cuda")
    weight, out = torch.zeros(64, dtype=torch.bfloat16, device="cuda"), x.to(torch.bfloat16)
    try:
        torch.ops.megamla.rms_norm(x, weight, out=out)
    except (NotImplementedError, RuntimeError) as error:
        return str(error)
    return ""


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and no_gpu():
        pytest.skip(no_gpu())
    return request.param


@pytest.fixture
def gpu():
    if no_gpu():
        pytest.skip(no_gpu())
    return "cuda"


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """An op that has no kernel yet is no failure of these tests."""
    try:
        return (yield)
    except NotImplementedError as error:
        if "this build has no implementation for device cuda" in str(error):
            pytest.skip(str(error))
        raise
