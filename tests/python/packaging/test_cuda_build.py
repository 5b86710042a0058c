"""The build finds a GPU and an nvcc that works, or goes without the CUDA kernels and says why."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SAYS_13 = "echo 'Cuda compilation tools, release 13.0, V13.0.88'"
FAILS = (
    f'[ "$1" = --version ] && {{ {SAYS_13}; exit; }}; echo "gcc: error: no such GCC" >&2; exit 1'
)


def fake(folder: Path, script: str, name: str = "nvcc") -> Path:
    """Write a program into a folder of its own."""
    path = folder / "fake" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def configure(
    folder: Path, *options: str, path: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Configure the core, without Python, in `folder`, as on a machine with a GPU."""
    devices = folder.parent / "dev"
    devices.mkdir(exist_ok=True)
    (devices / "nvidia0").touch()
    command = ["cmake", "-S", ROOT, "-B", folder, "-DSINKSTREAM_PYTHON=OFF"]
    command += [f"-DSINKSTREAM_DEVICES={devices}", *options]
    variables = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    for name in ("CUDACXX", "CUDAHOSTCXX"):
        variables.pop(name, None)
    return subprocess.run(
        command, env=variables | environment, capture_output=True, text=True, check=False
    )


def in_one_line(text: str) -> str:
    """Return a text without CMake's line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (
            "echo 'Cuda compilation tools, release 11.8, V11.8.89'",
            "{} is 11.8, but the kernels need 12.4 or newer",
        ),
        (FAILS, "{} cannot compile them: gcc: error: no such GCC"),
        ("exit 1", "{} does not say its version"),
    ],
)
def test_an_old_or_failing_nvcc_means_a_build_without_the_kernels(
    tmp_path: Path, script: str, problem: str
) -> None:
    nvcc = fake(tmp_path, script)
    done = configure(tmp_path / "auto", path=str(nvcc.parent))
    assert done.returncode == 0, done.stderr
    assert f"Building without the CUDA kernels: {problem.format(nvcc)}. For them: " in in_one_line(
        done.stdout
    )
    assert "CUDACXX=" in done.stdout
    asked = configure(tmp_path / "on", "-DSINKSTREAM_CUDA=ON", CUDACXX=str(nvcc))
    assert asked.returncode == 1
    assert f"SINKSTREAM_CUDA is ON, but {problem.format(nvcc)}." in in_one_line(asked.stderr)


def test_without_a_gpu_the_kernels_are_compiled_only_if_asked_for(tmp_path: Path) -> None:
    nvcc = fake(tmp_path, "exit 1")
    (empty := tmp_path / "no devices").mkdir()
    no_gpu = f"-DSINKSTREAM_DEVICES={empty}"
    done = configure(tmp_path / "auto", no_gpu, CUDACXX=str(nvcc))
    assert done.returncode == 0, done.stderr
    assert (
        "Building without the CUDA kernels: this machine has no NVIDIA GPU. "
        "For them: SINKSTREAM_CUDA=ON" in in_one_line(done.stdout)
    )
    asked = configure(tmp_path / "on", no_gpu, "-DSINKSTREAM_CUDA=ON", CUDACXX=str(nvcc))
    assert "SINKSTREAM_CUDA is ON, but" in in_one_line(asked.stderr)


def test_a_release_needs_an_nvcc_that_knows_its_gpus(tmp_path: Path) -> None:
    nvcc = fake(tmp_path, "echo 'Cuda compilation tools, release 12.4, V12.4.99'")
    done = configure(
        tmp_path / "build",
        "-DSINKSTREAM_CUDA_CODE=RELEASE",
        "-DSINKSTREAM_CUDA=ON",
        f"-DCMAKE_CUDA_COMPILER={nvcc}",
    )
    assert done.returncode == 1
    assert "is 12.4, but the kernels need 12.8 or newer" in in_one_line(done.stderr)


def commands(folder: Path) -> dict[str, str]:
    """Return the command that compiles each of the plugin's files."""
    entries = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    return {
        Path(entry["file"]).name: entry["command"]
        for entry in entries
        if "/_cuda.dir/" in entry["command"]
    }


def machine_code(command: str) -> tuple[str, str]:
    """Return what a command says of the machine code, and of PTX."""
    words = dict(word.split("=", 1) for word in shlex.split(command) if word.startswith("-DSINK"))
    return (
        words["-DSINKSTREAM_MACHINE_CODE"].strip('"'),
        words["-DSINKSTREAM_HAS_PTX"],
    )


needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


@pytest.mark.slow
@needs_nvcc
def test_a_local_build_has_code_for_the_gpus_of_this_machine_only(tmp_path: Path) -> None:
    smi = fake(tmp_path, "printf '8.6\\n7.5\\n9.0\\n8.6\\n'", "nvidia-smi")
    assert configure(tmp_path / "build", path=str(smi.parent)).returncode == 0
    found = commands(tmp_path / "build")
    assert set(re.findall(r"code=\[(.*?)\]", found["linear.cu"])) == {"sm_86", "sm_90a"}
    assert machine_code(found["plugin.cc"]) == ("86 90a", "false")


@pytest.mark.slow
@needs_nvcc
def test_warnings_fail_only_builds_that_ask_for_it(tmp_path: Path) -> None:
    quick, release = tmp_path / "quick", tmp_path / "release"
    assert configure(quick).returncode == 0
    options = ("-DSINKSTREAM_CUDA_CODE=RELEASE", "-DSINKSTREAM_CUDA_WERROR=ON")
    assert configure(release, *options).returncode == 0
    assert not any("Werror" in command for command in commands(quick).values())
    kernels = [command for name, command in commands(release).items() if name.endswith(".cu")]
    assert kernels
    assert all("-Werror=all-warnings" in command for command in kernels)
    generations = {"80", "86", "89", "90a", "100", "120"}
    for folder, expected in ((quick, {"90a"}), (release, generations)):
        found = commands(folder)
        codes = set(re.findall(r"code=\[?[^ ]*?sm_(\w+)", found["linear.cu"]))
        assert codes == expected
        in_order = " ".join(sorted(expected, key=lambda code: int(code.rstrip("a"))))
        assert machine_code(found["plugin.cc"]) == (in_order, "true")
        assert "compute_80" in found["linear.cu"]


def version_of(folder: Path) -> str:
    """Return the version that the build gives a tree's plugin."""
    script = folder.parent / "version.cmake"
    module = ROOT / "cmake" / "SinkstreamPluginVersion.cmake"
    script.write_text(
        "cmake_minimum_required(VERSION 3.24)\n"
        f"include({module})\nplugin_version({folder} found)\nmessage(${{found}})\n"
    )
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, check=True)
    return done.stderr.strip()


def test_the_plugins_version_changes_with_every_header_that_it_includes(tmp_path: Path) -> None:
    tree = tmp_path / "csrc"
    for header in (ROOT / "csrc").rglob("*.h"):
        copy = tree / header.relative_to(ROOT / "csrc")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(header, copy)
    first = version_of(tree)
    assert re.fullmatch("[0-9a-f]{16}", first)
    found = {first}
    for name in ("plugin.h", "runtime.h", "attention/attention.h", "device_types.h"):
        with (tree / "kernels/cuda" / name).open("a") as file:
            file.write("// another argument\n")
        found.add(version_of(tree))
    assert len(found) == 5
    last = version_of(tree)
    with (tree / "kernels/cuda/portable.h").open("a") as file:  # of the kernels alone
        file.write("// a kernel's\n")
    assert version_of(tree) == last
