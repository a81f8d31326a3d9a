"""``python -m megamla plot``: what is drawn, from the records of this repository and from small ones, and what is not."""

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("matplotlib")

from megamla.plot import main  # noqa: E402

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "results"


def row(tokens, us, **fields):
    return {"op": "rms_norm", "tokens": tokens, "us_median": us, "implementation": "cpu.rms_norm", **fields}


@pytest.fixture
def record(tmp_path):
    def write(*rows, name="record.json", **content):
        path = tmp_path / name
        path.write_text(json.dumps({"card": "a card", "results": rows, **content}))
        return str(path)

    return write


def test_time_has_every_series_the_bound_and_the_peer(tmp_path):
    out = tmp_path / "decode.svg"
    records = [str(RESULTS / "h200" / name) for name in ("decode_attention.json", "peer_decode_attention.json")]
    filters = ["--where", "topk=512", "--where", "heads=8,64", "--where", "topk_format=nvfp4_288,fp8_584"]
    assert main([*records, *filters, "--out", str(out)]) == 0
    picture = out.read_text()
    for text in (
        "decode_attention on NVIDIA H200",
        "8 heads, fp8_528, nvfp4_288",
        "64 heads, fp8_584, fp8_584",
        "bound",
        "flashmla_sm90",
        "tokens",
        "µs",
        "1024",
    ):
        assert text in picture, text
    assert "128 heads" not in picture
    assert main([*records, *filters, "--out", str(out)]) == 0 and out.read_text() == picture  # the same bytes


def test_roofline(tmp_path):
    out = tmp_path / "roofline.svg"
    assert main([str(RESULTS / "h200" / "block_scaled_linear.json"), "--kind", "roofline", "--out", str(out)]) == 0
    picture = out.read_text()
    assert "wo_b" in picture and "wq_b" in picture and "flop per byte" in picture and "TFLOP/s" in picture


def test_png(record, tmp_path):
    out = tmp_path / "one.png"
    assert main([record(row(1, 3.0, bound_us=1.0), row(8, 4.0, bound_us=2.0)), "--out", str(out), "--title", "x"]) == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n")


def test_every_record_of_the_repository_can_be_drawn(tmp_path):
    # The others are a replay's and the call overhead: no rows.
    files = [path for path in sorted(RESULTS.rglob("*.json")) if "results" in json.loads(path.read_text())]
    assert len(files) >= 11
    for path in files:
        assert main([str(path), "--out", str(tmp_path / "all.svg")]) == 0, path


@pytest.mark.parametrize(
    "content, arguments, message",
    [
        ("{}", [], "expected a record of megamla bench"),
        ("not json", [], "expected a record of megamla bench"),
        ('{"results": [{"op": "x"}]}', [], "expected a record of megamla bench"),
        ('{"results": []}', [], "expected rows to draw, got none"),
        ('{"results": [{"op": "x", "tokens": 1, "us_median": 2}]}', ["--where", "heads=3"], "none that fit --where"),
        ('{"results": [{"op": "x", "tokens": 1, "us_median": 2}]}', ["--where", "heads"], "expected FIELD=VALUE"),
        (
            '{"results": [{"op": "x", "tokens": 1, "us_median": 2}]}',
            ["--kind", "roofline"],
            "rows with tflops and gbps",
        ),
    ],
)
def test_refused_in_one_line(tmp_path, capsys, content, arguments, message):
    path = tmp_path / "record.json"
    path.write_text(content)
    assert main([str(path), "--out", str(tmp_path / "out.svg"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("megamla plot: ") and error.count("\n") == 1
    assert not (tmp_path / "out.svg").exists()


def test_files_that_are_not_there(record, tmp_path, capsys):
    assert main([str(tmp_path / "none.json"), "--out", str(tmp_path / "out.svg")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    good = record(row(1, 3.0))
    assert main([good, "--out", str(tmp_path / "no" / "out.svg")]) == 2
    assert main([good, "--out", str(tmp_path / "out.pdf")]) == 2
    assert "expected a file .svg or .png" in capsys.readouterr().err


def test_the_program_has_the_command(record, tmp_path):
    out = tmp_path / "out.svg"
    command = [sys.executable, "-m", "megamla", "plot", record(row(1, 3.0)), "--out", str(out)]
    assert subprocess.run(command, timeout=120).returncode == 0 and out.exists()
