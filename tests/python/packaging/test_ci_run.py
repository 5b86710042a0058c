"""`.ci/run`: its parts are those of `make test`, and it ends with their times and outcomes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
REPORT = '<testsuite><testcase name="a"/></testsuite>'
# Stands for make: `lint` fails, and what tests writes a report.
MAKE = f"""#!/bin/sh
for target; do
  case $target in
    lint) exit 2 ;;
    test-cpp) mkdir -p build/reports && echo '{REPORT}' >build/reports/ctest.xml ;;
    test-python) echo '{REPORT}' >build/reports/pytest.xml ;;
  esac
done
"""


def words_of(pattern: str, file: str) -> list[str]:
    """Return the words of all matches in a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return " ".join(re.findall(pattern, text, re.MULTILINE)).split()


def run(folder: Path, make: str, **environment: str) -> tuple[int, list[str]]:
    """Run a copy with this `make`; return its exit status and what it prints."""
    shutil.copytree(ROOT / ".ci", folder / ".ci", dirs_exist_ok=True)
    for name, text in (("make", make), ("dpkg", "#!/bin/sh\n"), ("nvcc", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [folder / ".ci" / "run"],
        env={**os.environ, **environment, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_the_parts_are_all_that_make_test_makes() -> None:
    parts = words_of(r"^part '[^']+' (.*)$", ".ci/run")
    assert len(parts) == len(set(parts))
    wanted = set(words_of(r"^test: (.*?) ##", "Makefile"))
    assert set(parts) - wanted == {"tools", "build-tests"}  # made by the others as well
    assert wanted <= set(parts)


def test_a_run_ends_with_times_and_a_count(tmp_path: Path) -> None:
    status, lines = run(tmp_path, MAKE.replace("exit 2", ":"))
    assert status == 0
    assert "build/reports/pytest.xml: 1, 0 s in all" in lines
    assert (tmp_path / "build" / "reports" / "durations.txt").exists()
    *_, empty, site, tools, _, _, _, _, python, cluster, registers, total, _, count = lines
    assert empty == ""
    assert re.fullmatch(r"tools +\d+ s  passed", tools)
    assert re.fullmatch(r"Python tests +\d+ s  passed", python)
    assert re.fullmatch(r"cluster +\d+ s  passed", cluster)  # it is not known what has landed
    assert re.fullmatch(r"registers +\d+ s  passed", registers)
    assert re.fullmatch(r"site +\d+ s  passed", site)
    assert re.fullmatch(r"total +\d+ s", total)
    assert count == "2 passed, 0 failed, 0 skipped"


def commit(folder: Path, file: str) -> str:
    """Write a file and commit it; return the commit."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    with (folder / file).open("a") as written:
        written.write("x\n")
    for command in (("add", file), ("commit", "-qm", file)):
        names = ("-c", "user.name=a", "-c", "user.email=a")
        subprocess.run(["git", *names, *command], cwd=folder, check=True)
    done = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        done, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_cluster_is_tested_if_it_differs_from_what_landed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    own = "python/sinkstream/cluster/a.py"
    commits = [commit(tmp_path, name) for name in (own, "docs/a.md", "docs/b.md")]
    make = MAKE.replace("exit 2", ":")

    def is_tested(landed: str) -> bool:
        status, lines = run(tmp_path, make, LANDED=landed)
        assert status == 0
        return any(line.startswith("cluster ") for line in lines)

    assert not is_tested(commits[0])
    assert is_tested(commits[2])  # nothing has been done since: it is not known what landed
    assert is_tested("0" * 40)
    landed = commits[1]
    for part in ("cluster", "conversations", "server", "integrations"):
        landed, before = commit(tmp_path, f"python/sinkstream/{part}/a.py"), landed
        assert is_tested(before), part


def test_a_part_that_fails_fails_the_run_and_stops_no_other(tmp_path: Path) -> None:
    status, lines = run(tmp_path, MAKE)
    assert status == 1
    assert [line.split()[0] for line in lines if line.endswith("failed")] == ["lint"]
    assert lines[-1] == "2 passed, 0 failed, 0 skipped"


def test_the_site_is_built_before_the_tools_of_the_tests_are_there() -> None:
    parts = words_of(r"^part '([^' ]+)", ".ci/run")
    assert parts.index("site") < parts.index("tools")
