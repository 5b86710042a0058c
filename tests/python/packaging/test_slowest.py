"""`.ci/slowest.py`: what took longest is shown first, and everything is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / ".ci" / "slowest.py"

PYTEST = "".join(
    f'<testcase classname="tests.a" name="test_{i}[x]" time="{i}.25"/>' for i in range(32)
)
CTEST = '<testcase name="A.B" classname="A.B" time="0.5"/><testcase name="C.D" time="1.5"/>'
NINJA = "# ninja log v5\n0\t900\t1\ta.o\tf1\n900\t2400\t1\tb.o\tf2\n0\t2000\t2\ta.o\tf1\n"


def test_the_slowest_are_printed_and_all_are_written(tmp_path: Path) -> None:
    files = {"pytest.xml": PYTEST, "ctest.xml": CTEST, ".ninja_log": NINJA}
    for name, text in files.items():
        text = f"<testsuite>{text}</testsuite>" if name.endswith("xml") else text
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, "reports/all.txt", "gone.xml", *files],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    shown = done.stdout.splitlines()
    assert shown[0] == "pytest.xml: 32, 504 s in all"
    assert shown[1] == "   31.25 s  tests.a::test_31[x]"
    assert shown[30] == "    2.25 s  tests.a::test_2[x]"
    assert shown[31:] == [
        "",
        *("ctest.xml: 2, 2 s in all", "    1.50 s  C.D", "    0.50 s  A.B", ""),
        *(".ninja_log: 2, 4 s in all", "    2.00 s  a.o", "    1.50 s  b.o", ""),
    ]
    written = (tmp_path / "reports" / "all.txt").read_text(encoding="utf-8").splitlines()
    assert written == [
        *shown[:31],
        "    1.25 s  tests.a::test_1[x]",
        "    0.25 s  tests.a::test_0[x]",
        *shown[31:-1],
    ]
