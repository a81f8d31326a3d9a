"""The installed package: its program, what a process loads with it, the documentation's examples."""

import pathlib
import re
import subprocess
import sys

import megamla

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


def test_program_is_the_library_of_this_version():
    assert run("-m", "megamla", "--version").stdout.strip() == f"megamla {megamla.__version__}"
    doctor = run("-m", "megamla", "doctor")
    assert doctor.returncode == 0 and "decode_attention" in doctor.stdout


def test_program_exit_codes_come_through():
    done = run("-m", "megamla", "check", str(ROOT / "tests" / "golden"))
    assert done.returncode == 0 and " 0 failed" in done.stdout, done.stdout + done.stderr
    assert run("-m", "megamla", "check", "/nonexistent").returncode == 2


def test_program_is_executable_without_the_package():
    program = pathlib.Path(megamla.__file__).parent / "bin" / "megamla"
    done = subprocess.run([str(program), "--version"], env={}, capture_output=True, text=True)
    assert done.stdout.strip() == f"megamla {megamla.__version__}"


def test_what_the_package_needs_of_the_machine():
    """The C and C++ runtimes and tvm_ffi; everything else is carried."""
    folder = pathlib.Path(megamla.__file__).parent
    carried = {path.name for path in (folder / "lib").iterdir()}
    machines = r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|tvm_ffi|cuda)\.so|ld-linux|linux-vdso"
    for path in [*(folder / "lib").iterdir(), folder / "bin" / "megamla"]:
        needed = re.findall(r"^\s*(?:\S*/)?(\S+?)(?: =>|\s+\()", subprocess.run(
            ["ldd", path], capture_output=True, text=True).stdout, re.M)
        assert needed, path
        missing = [name for name in needed if name not in carried and not re.match(machines, name)]
        assert not missing, f"{path.name} needs {missing}"


# tvm_ffi imports PyTorch where there is one; then it has been imported already in these two.
FIRST = "import importlib.util, sys\nif importlib.util.find_spec('torch'): import torch\n"


def test_one_openmp_and_no_opencl_in_the_process():
    code = """
import numpy as np
from megamla import ops
ops.rms_norm(np.ones((64, 512), np.float32), np.zeros(512, np.uint16), out=np.zeros((64, 512), np.uint16))
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/" in line})
"""
    libraries = run("-c", FIRST + code).stdout.split()
    assert any("libmegamla_python" in library for library in libraries)
    assert len([library for library in libraries if re.search(r"lib(gomp|iomp5|omp)[.-]", library)]) == 1
    assert not any("OpenCL" in library for library in libraries)


def test_import_takes_less_than_a_second():
    # Processor time: a machine that is busy with other work makes no import slow.
    code = FIRST + "import time; t = time.process_time(); import megamla; print(time.process_time() - t)"
    assert min(float(run("-c", code).stdout) for _ in range(3)) < 1.0


def test_every_function_says_what_it_takes():
    for name in megamla.ops.__all__:
        function = getattr(megamla.ops, name)
        assert function.__doc__ and "return" in function.__annotations__, name


def test_examples_of_the_documentation():
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.M | re.S)
    assert examples
    names = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"docs/python.md, example {number}", "exec"), names)
