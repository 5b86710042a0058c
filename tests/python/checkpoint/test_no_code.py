"""A checkpoint is data: opening one runs nothing, imports nothing, and opens nothing else.

An audit hook cannot be removed, so it runs in its own process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_PROBE = """
import sys
sys.path[:0] = {path!r}
from sinkstream.loading.open_checkpoint import open_checkpoint
from sinkstream.errors import CheckpointError

warm, *folders = sys.argv[1:]
for path in (warm + "/model.gguf", warm):  # every import that an opening needs
    open_checkpoint(path).source.close()

FORBIDDEN = (
    "import", "exec", "compile", "subprocess.", "socket.", "os.system", "os.exec", "os.fork",
    "os.spawn", "os.posix_spawn", "os.putenv", "ctypes.", "pickle.", "marshal.", "mmap.", "shutil.",
)
events = []
active = False

def watch(event, arguments):
    if not active:
        return
    if event.startswith(FORBIDDEN):
        events.append((event, repr(arguments)[:200]))
    if event == "open" and str(arguments[0]).endswith((".py", ".pyc", ".bin", ".so", ".pkl")):
        events.append((event, repr(arguments)[:200]))

sys.addaudithook(watch)
active = True
outcomes = []
for folder in folders:
    try:
        open_checkpoint(folder).source.close()
        outcomes.append("opened")
    except CheckpointError:
        outcomes.append("refused")
active = False
import json
print(json.dumps([outcomes, events]))
"""

_EVIL = "import os; os.system('touch /tmp/sinkstream-was-here')\n"


def test_opening_hostile_folders_runs_nothing(
    tiny_folder: Callable[[str], Path], tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    warm = shutil.copytree(tiny_folder("llama"), tmp_path / "warm")
    shutil.copy(tiny_gguf("llama", "F32"), warm / "model.gguf")

    def hostile(name: str, **fields: object) -> Path:
        folder = shutil.copytree(tiny_folder("llama"), tmp_path / name)
        for module in ("modeling_evil", "tokenizers", "json", "sitecustomize", "__init__"):
            (folder / f"{module}.py").write_text(_EVIL)
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))
        return folder

    pickled = hostile("pickled")
    (pickled / "model.safetensors").unlink()
    folders = {
        hostile("code next to the weights"): "opened",
        hostile("auto_map", auto_map={"AutoConfig": "modeling_evil.Evil"}): "refused",
        hostile("model_type", model_type="modeling_evil"): "refused",
        hostile("attention", _attn_implementation="evil/kernels"): "refused",
        hostile("custom", custom_pipelines={"x": {"impl": "modeling_evil.Evil"}}): "refused",
        hostile("format", architectures=["modeling_evil.Evil", "{0.__class__}"]): "opened",
        pickled: "refused",
    }
    probe = _PROBE.format(path=[path for path in sys.path if path])
    done = subprocess.run(
        [sys.executable, "-c", probe, str(warm), *map(str, folders)],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes, events = json.loads(done.stdout.splitlines()[-1])
    assert outcomes == list(folders.values())
    assert events == []


@pytest.mark.parametrize("call", ["import colorsys", "compile('1', 'x', 'eval')", "exec('1')"])
def test_the_probe_sees_what_it_forbids(call: str, tmp_path: Path) -> None:
    planted = _PROBE.format(path=[path for path in sys.path if path])
    begin, end = (
        planted.index("from sinkstream.loading.open_checkpoint"),
        planted.index("FORBIDDEN"),
    )
    planted = (
        planted[:begin]
        + "folders = ['x']\nclass CheckpointError(Exception): pass\n"
        + planted[end:]
    )
    planted = planted.replace("open_checkpoint(folder).source.close()", call)
    done = subprocess.run(
        [sys.executable, "-c", planted], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[1]
