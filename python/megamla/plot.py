"""``python -m megamla plot``: the records of ``megamla bench --json`` as a picture, PNG or SVG.

A record is {"card", "ceilings": {"copy_gbps", "gemm_gflops"}, "results": [row, ...]}. A row says what was timed ("op",
"tokens", and the fields of its case), how long it took ("us_median"), its "bound_us", "tflops" and "gbps". A row whose
"implementation" begins with "peer." is somebody else's time of a like case: it may lack the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

Row = Dict[str, Any]
# In a label in this order; what is not here comes after.
_FIELDS = "by op case path heads topk window window_format topk_format format output".split()
# Not part of a case.
_MEASURED = {"us_median", "us_min", "us_max", "bound_us", "tflops", "gbps", "copy_gbps", "gemm_gflops"}
_MEASURED |= {"tokens", "implementation", "keys", "gather_us", "ops", "ops_us"}


class Refused(Exception):
    """A one-line reason why there is no picture."""


class Record:
    """The rows of one file that were asked for, and the ceilings of its run."""

    def __init__(self, path: str, wanted: Dict[str, Sequence[str]]) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            rows: List[Row] = content["results"]
            for row in rows:
                row["op"], float(row["tokens"]), float(row["us_median"])  # what every row has
        except OSError as error:
            raise Refused(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{path}: expected a record of megamla bench, got none ({error!r})") from None
        self.card: str = content.get("card", "?")
        self.ceilings: Dict[str, float] = content.get("ceilings", {})
        self.rows = [row for row in rows if all(_text(row.get(k)) in values for k, values in wanted.items())]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def is_peer(row: Row) -> bool:
    return str(row.get("implementation", "")).startswith("peer.")


def series_of(rows: Sequence[Row]) -> List[Tuple[str, List[Row]]]:
    """Rows of one case as one series, by tokens; its label says what the cases of the picture differ in."""
    cases: Dict[Tuple[Tuple[str, str], ...], List[Row]] = {}
    for row in rows:
        case = {k: _text(v) for k, v in row.items() if k not in _MEASURED}
        case["by"] = str(row["implementation"])[len("peer.") :] if is_peer(row) else ""
        order = sorted(case, key=lambda name: (_FIELDS.index(name) if name in _FIELDS else len(_FIELDS), name))
        cases.setdefault(tuple((name, case[name]) for name in order), []).append(row)
    fields: Dict[str, Set[str]] = {}
    for case_fields in cases:
        for name, value in case_fields:
            fields.setdefault(name, set()).add(value)
    same = {name for name, values in fields.items() if len(values) == 1 and len(cases) > 1}
    result = []
    for case_fields, case_rows in cases.items():
        label = ", ".join(_field(name, value) for name, value in case_fields if value and name not in same)
        result.append((label, sorted(case_rows, key=lambda row: float(row["tokens"]))))
    return sorted(result)


def _field(name: str, value: str) -> str:
    return f"{value} {name}" if value.isdigit() else value


def draw_time(axes: Any, records: Sequence[Record]) -> None:
    """Time against tokens; dashed, the bound of the same colour; dotted, peers."""
    rows = [row for record in records for row in record.rows]
    for number, (label, points) in enumerate(series_of(rows)):
        tokens = [row["tokens"] for row in points]
        peer = is_peer(points[0])
        style = dict(
            color="0.35" if peer else f"C{number % 10}", linestyle=":" if peer else "-", marker="o", markersize=3
        )
        axes.plot(tokens, [row["us_median"] for row in points], label=label or points[0]["op"], **style)
        bound = [row for row in points if row.get("bound_us")]
        if bound:
            axes.plot(
                [row["tokens"] for row in bound],
                [row["bound_us"] for row in bound],
                color=style["color"],
                linestyle="--",
                linewidth=0.8,
            )
    axes.plot([], [], color="0.5", linestyle="--", linewidth=0.8, label="bound")
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="µs")
    ticks = sorted({row["tokens"] for row in rows})
    axes.set_xticks([t for t in ticks if t & (t - 1) == 0] or ticks, minor=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


def draw_roofline(axes: Any, records: Sequence[Record]) -> None:
    """Arithmetic rate against arithmetic per byte, under the ceilings of each run."""
    rows = [row for record in records for row in record.rows if row.get("tflops") and row.get("gbps")]
    if not rows:
        raise Refused(
            "expected rows with tflops and gbps, got none: a roofline has no place for an op without arithmetic"
        )
    density = [1e3 * row["tflops"] / row["gbps"] for row in rows]
    for number, (label, points) in enumerate(series_of(rows)):
        axes.plot(
            [1e3 * row["tflops"] / row["gbps"] for row in points],
            [row["tflops"] for row in points],
            color=f"C{number % 10}",
            marker="o",
            markersize=3,
            linewidth=0.8,
            label=label or points[0]["op"],
        )
    for ceilings in {tuple(sorted(record.ceilings.items())): record.ceilings for record in records}.values():
        copy, gemm = ceilings.get("copy_gbps"), ceilings.get("gemm_gflops")
        if not copy or not gemm:
            continue
        ends = [min(density) / 2, gemm / copy, max(max(density) * 2, 2 * gemm / copy)]
        axes.plot(ends, [min(x * copy, gemm) / 1e3 for x in ends], color="0.3", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="flop per byte", ylabel="TFLOP/s")


def plot(records: Sequence[Record], kind: str, out: str, title: Optional[str]) -> None:
    try:
        import matplotlib
    except ImportError:
        raise Refused("expected matplotlib (pip install 'megamla[plot]'), found none") from None
    matplotlib.use("Agg")
    # The same bytes for the same records; text stays text.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "megamla", "font.size": 8})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    (draw_time if kind == "time" else draw_roofline)(axes, records)
    ops = sorted({row["op"] for record in records for row in record.rows})
    axes.set_title(title or f"{', '.join(ops)} on {', '.join(sorted({record.card for record in records}))}")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=6, frameon=False)
    metadata = {"Date": None} if out.endswith(".svg") else {"Software": None}
    try:
        figure.savefig(out, dpi=200, metadata=metadata)
    except OSError as error:
        raise Refused(f"{out}: {error.strerror}") from None


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 with one line on the standard error."""
    parser = argparse.ArgumentParser(prog="megamla plot", description="Draws records of megamla bench --json.")
    parser.add_argument("records", nargs="+", metavar="RECORD", help="JSON files; peers' times may be one of them")
    parser.add_argument("--out", required=True, metavar="FILE", help="the picture, .svg or .png")
    parser.add_argument("--kind", choices=["time", "roofline"], default="time", help="default: time against tokens")
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FIELD=VALUE[,VALUE]",
        help="only rows with these values, e.g. heads=8,64",
    )
    parser.add_argument("--title", help="default: ops and card")
    options = parser.parse_args(arguments)
    try:
        if not options.out.endswith((".svg", ".png")):
            raise Refused(f"--out: expected a file .svg or .png, got {options.out}")
        wanted: Dict[str, Sequence[str]] = {}
        for condition in options.where:
            field, equals, values = condition.partition("=")
            if not equals or not field:
                raise Refused(f"--where: expected FIELD=VALUE[,VALUE], got {condition}")
            wanted[field] = values.split(",")
        records = [Record(path, wanted) for path in options.records]
        if not any(record.rows for record in records):
            raise Refused("expected rows to draw, got none that fit --where")
        plot([record for record in records if record.rows], options.kind, options.out, options.title)
    except Refused as reason:
        print(f"megamla plot: {reason}", file=sys.stderr)
        return 2
    return 0
