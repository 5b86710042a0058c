"""Compares the products of weights of another commit with those of this tree, in one process.

    python benchmarks/linear_duel.py COMMIT --build build --table avx512 --threads 1

Compiles the kernel table of both with the flags of a build folder (configured with
`-G Ninja -DSINKSTREAM_BENCH=ON`, and built), renames the other commit's table, and links both into
linear_duel.cc, which runs them interleaved.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import ROOT, commit, processor

# Both must agree on the table's interface, the layout of weights, and the thread pool.
INTERFACES = (
    "csrc/kernels/table.h",
    "csrc/kernels/linear.h",
    "csrc/kernels/pack.h",
    "csrc/common/thread_pool.h",
    "csrc/common/processor.cc",  # linked once, for both
)
LIBRARIES = ("libsinkstream_tables.a", "libsinkstream_core.a")


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return its output; exit with the end of its error if it fails."""
    done = subprocess.run([*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"linear_duel: {words[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def compile_table(entry: dict[str, str], tree: Path, to: Path) -> None:
    """Compile a build's entry from another tree."""
    words = shlex.split(entry["command"].replace(str(ROOT), str(tree)))
    words[words.index("-o") + 1] = str(to)
    run(*words, cwd=Path(entry["directory"]))


def rename_table(made: Path, table: str) -> None:
    """Rename the only global symbol of an object to `base_kernels`."""
    symbols = [line.split()[-1] for line in run("nm", made).splitlines() if " T " in line]
    old = f"{len(table) + len('_kernels')}{table}_kernels"
    (symbol,) = [symbol for symbol in symbols if old in symbol]
    run("objcopy", "--redefine-sym", f"{symbol}={symbol.replace(old, '12base_kernels')}", made)


def main() -> None:
    """Build the program and run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="a commit")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--table", default="avx512", choices=("generic", "avx2", "avx512", "amx"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    build = args.build.resolve()
    if not (build / "compile_commands.json").is_file():
        parser.error(f"{build} has no compile_commands.json; configure it as `--help` shows.")
    if run("git", "diff", "--diff-filter=a", "--name-only", args.base, "--", *INTERFACES):
        parser.error(
            f"{args.base} has another interface of kernel tables; the two cannot be compared."
        )
    source = f"csrc/kernels/cpu/{args.table}.cc"
    entries = json.loads((build / "compile_commands.json").read_text())
    (entry,) = [entry for entry in entries if entry["file"].endswith(source)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, made = folder / "tree", folder / "base.o"
        run("git", "worktree", "add", "--detach", tree, args.base)
        try:
            compile_table(entry, tree, made)
        finally:
            run("git", "worktree", "remove", "--force", tree)
        rename_table(made, args.table)
        compile_table(entry, ROOT, folder / "new.o")
        table = f"-DSINKSTREAM_TABLE={args.table}_kernels"
        libraries = [build / library for library in LIBRARIES]
        run(
            *("c++", "-std=c++20", "-O2", "-pthread", "-I", ROOT / "csrc", table),
            *(ROOT / "benchmarks/linear_duel.cc", made, folder / "new.o", *libraries),
            *("-o", folder / "duel"),
        )
        print(f"{processor()}: {args.base} and {commit()}", flush=True)
        subprocess.run([folder / "duel", str(args.threads)], check=True)


if __name__ == "__main__":
    main()
