"""The page for engines, top to bottom."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "adopting.md"


def test_examples():
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(examples) >= 5
    names = {}
    for number, example in enumerate(examples, 1):
        exec(compile(example, f"docs/adopting.md, example {number}", "exec"), names)
