"""Panel files: a later load has the same bits, whatever has happened to the files meanwhile."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sinkstream
from sinkstream import InvalidArgument
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.loading import panels
from sinkstream.loading.panels import Panels, kept_files
from tests.data import quantized_folders, tiny
from tests.python.lanes import cases
from tests.python.loading.panel_loads import bits, is_mapped, load, locked_bytes, private_bytes
from tests.python.waiting import wait_until

STORAGES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"]


def keep(path: Path, cache: Path, **options: object) -> tuple[str, list[int]]:
    """Load a model, wait until its panels are kept, and return its bits."""
    with load(path, cache, **options) as model:
        before = bits(model)
        wait_until(lambda: is_mapped(model))
        assert bits(model) == before  # of the file, which has taken the memory's place
    return before


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def model_file(tiny_gguf: Callable[[str, str], Path], tmp_path: Path) -> Path:
    return shutil.copy(tiny_gguf("llama", "Q8_0"), tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "change",
    [
        {"storage": "F16"},
        {"rounded_to": "Q4_0"},
        {"added": 1.0},
        {"is_transposed": True},
        {"is_logarithm": True},
    ],
)
def test_what_is_made_of_a_tensor_is_in_the_key(
    change: dict[str, Any], model_file: Path, cache: Path
) -> None:
    opened = open_tensors(model_file)
    with closing(opened.source):
        changed = (replace(opened.tensors[0], **change), *opened.tensors[1:])
        keys = {
            Panels(cache, each, is_wanted=True).key
            for each in (opened, opened, replace(opened, tensors=changed))
        }
    assert len(keys) == 2


def check(path: Path, cache: Path, **options: object) -> None:
    with sinkstream.load(path, cache=False, window=60, max_sequences=1, **options) as plain:  # type: ignore[arg-type]
        expected = bits(plain)
        assert not is_mapped(plain)
    assert keep(path, cache, **options) == expected
    with load(path, cache, **options) as model:
        assert is_mapped(model)
        assert bits(model) == expected
    (kept,) = kept_files(cache)
    assert kept.name == path.name


@pytest.mark.parametrize("storage", cases(STORAGES, lambda storage: storage in ("Q8_0", "Q4_K")))
def test_a_mapped_model_has_the_bits_of_a_plain_load(
    storage: str, tiny_gguf: Callable[[str, str], Path], cache: Path
) -> None:
    check(tiny_gguf(tiny.model_for(storage), storage), cache)


def test_so_has_a_folder(tiny_folder: Callable[[str], Path], cache: Path) -> None:
    check(tiny_folder("qwen2-sharded"), cache)


def test_so_has_a_folder_with_columns_in_another_order(tmp_path: Path, cache: Path) -> None:
    quantized_folders.write(quantized_folders.Scheme("gptq", act_order=True), tmp_path / "m")
    check(tmp_path / "m", cache)


def test_so_has_a_mixture_of_experts(tmp_path: Path, cache: Path) -> None:
    from tests.data.family_models import save_family  # imports transformers

    save_family("qwen3_moe", tmp_path / "m")
    check(tmp_path / "m", cache)


def test_each_quantization_has_a_file_of_its_own(
    tiny_gguf: Callable[[str, str], Path], cache: Path
) -> None:
    path = tiny_gguf("llama", "F16")
    plain, rounded = keep(path, cache), keep(path, cache, quantize="int8")
    assert plain != rounded
    assert {kept.quantize for kept in kept_files(cache)} == {None, "Q8_0"}
    with load(path, cache, quantize="int8") as model:
        assert is_mapped(model)
        assert bits(model) == rounded


# ---- other bytes ---------------------------------------------------------------------------------


class Damage:
    """A panel file that is damaged, in a way and at a place that a number chooses."""

    KINDS = ("cut", "extend", "flip", "flip quietly", "header", "zero", "version", "swap", "empty")

    def __init__(self, number: int, other: Path) -> None:
        self.kind = self.KINDS[number % len(self.KINDS)]
        self._random = random.Random(number)
        self._other = other

    def apply(self, path: Path) -> None:
        path.chmod(0o600)
        before = path.stat()
        content = bytearray(path.read_bytes())
        header = 80 + 48  # and the label
        at = self._random.choice(
            [self._random.randrange(header), self._random.randrange(_start(content), len(content))]
        )
        if self.kind == "cut":
            del content[self._random.randrange(len(content)) :]
        elif self.kind == "extend":
            content += bytes(self._random.randrange(1, 5000))
        elif self.kind == "header":
            content[self._random.randrange(400)] ^= 1 << self._random.randrange(8)
        elif self.kind == "zero":
            end = min(at + 4096, len(content))
            content[at:end] = [byte ^ 0x5A for byte in content[at:end]]
        elif self.kind == "version":
            content[16] += 1
        elif self.kind == "swap":
            content[:] = self._other.read_bytes()
        elif self.kind == "empty":
            content.clear()
        else:
            content[at] ^= 1 << self._random.randrange(8)
        path.write_bytes(content)
        if self.kind == "flip quietly":  # as a program does that keeps times
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _start(content: bytes) -> int:
    """Return where the weights begin."""
    return int.from_bytes(content[32:40], "little")


def damages(count: int, always: int) -> list[object]:
    return cases(range(count), lambda number: number < always)


@pytest.mark.parametrize("number", damages(207, 27))
def test_a_damaged_file_is_noticed_before_it_is_used(
    number: int, undamaged: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(undamaged.cache, cache)
    path = cache / undamaged.path.name
    if number % 2:  # marked as compared
        load(undamaged.model, cache).close()
    damage = Damage(number, undamaged.other)
    damage.apply(path)
    caplog.clear()
    with load(undamaged.model, cache) as model:
        assert not is_mapped(model), damage.kind
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1
        assert bits(model) == undamaged.bits, damage.kind
        wait_until(lambda: is_mapped(model))  # it has been written again
    with load(undamaged.model, cache) as model:
        assert is_mapped(model)
        assert bits(model) == undamaged.bits


@pytest.fixture(scope="module")
def undamaged(
    tiny_gguf: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("undamaged")
    model, other = tiny_gguf("llama", "Q8_0"), tiny_gguf("llama", "Q4_0")
    found = keep(model, folder / "cache")
    keep(other, folder / "other")
    (kept,), (of_other,) = kept_files(folder / "cache"), kept_files(folder / "other")
    return SimpleNamespace(
        model=model, cache=folder / "cache", path=kept.path, bits=found, other=of_other.path
    )


def test_a_file_without_a_mark_is_compared_once(
    model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = keep(model_file, cache)
    (mark,) = cache.glob("*.checked")
    mark.unlink()
    with load(model_file, cache) as model:
        assert is_mapped(model)
        assert bits(model) == expected
    assert mark.exists()


def test_a_model_that_was_trained_on_is_another_one(model_file: Path, cache: Path) -> None:
    before = keep(model_file, cache)
    change_weights(model_file)
    with load(model_file, cache) as model:
        assert not is_mapped(model)
        assert bits(model) != before


def test_so_is_one_of_the_same_size_and_time(model_file: Path, cache: Path) -> None:
    before, times = keep(model_file, cache), model_file.stat()
    change_weights(model_file)
    os.utime(model_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with load(model_file, cache) as model:
        assert not is_mapped(model)
        assert bits(model) != before


def change_weights(path: Path) -> None:
    """Change a byte in every hundred of the second half of the file: weights are there."""
    content = bytearray(path.read_bytes())
    for at in range(len(content) // 2, len(content), 100):
        content[at] ^= 1
    path.write_bytes(content)


def test_a_model_that_was_moved_is_the_same(model_file: Path, cache: Path) -> None:
    expected = keep(model_file, cache)
    moved = model_file.rename(model_file.with_name("other.gguf"))
    with load(moved, cache) as model:
        assert is_mapped(model)
        assert bits(model) == expected


def test_a_model_that_changes_while_it_is_read_is_not_kept(
    model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(*args: object) -> None:
        finish(*args)
        os.utime(model_file)

    from sinkstream.loading import load as loading

    finish = loading._finish_reading
    monkeypatch.setattr(loading, "_finish_reading", touch)
    load(model_file, cache).close()
    assert kept_files(cache) == []


# ---- where nothing can be written ----------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_folder_that_cannot_be_made_is_one_sentence(
    model_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with load(model_file, tmp_path / "file" / "cache") as model:
        bits(model)
    (sentence,) = warnings_of(caplog)
    assert "m.gguf are not kept for the next load" in sentence
    assert "Not a directory" in sentence


HEAD = """
import logging, os, resource, sys, time
from tests.python.loading.panel_loads import *
"""


def run(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program that has the functions of `panel_loads`."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", HEAD + textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        **options,
    )


# Panels of a small model take about 100 kB.
LIMITED = """
    logging.basicConfig(level=logging.WARNING)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    with load(Path(sys.argv[1]), Path(sys.argv[2])) as model:
        print(bits(model))
        time.sleep(0.2)
        assert not is_mapped(model)
"""


def test_a_full_disk_is_one_sentence_and_leaves_nothing(model_file: Path, cache: Path) -> None:
    with load(model_file, cache / "other") as model:
        expected = bits(model)
    done = run(LIMITED, model_file, cache)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{expected}\n"
    assert done.stderr.count("\n") == 1
    assert "are not kept for the next load" in done.stderr
    assert "File too large" in done.stderr
    assert [each for each in cache.iterdir() if each.is_file()] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount file systems")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_on_a_small_disk_nothing_is_written_without_being_asked_for(
    model_file: Path,
    small_disk: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE", str(small_disk / "cache"))
    monkeypatch.setattr(panels, "LEAST_BYTES", 0)
    (small_disk / "other").write_bytes(bytes(600_000))
    with sinkstream.load(model_file, window=60, max_sequences=1) as model:
        bits(model)
    (sentence,) = warnings_of(caplog)
    assert "more than a tenth of the" in sentence
    assert [each.name for each in small_disk.iterdir()] == ["other"]
    caplog.clear()
    (small_disk / "more").write_bytes(bytes(400_000))
    with load(model_file, small_disk / "cache") as model:
        bits(model)
    (sentence,) = warnings_of(caplog)
    assert "No space left on device" in sentence
    assert list((small_disk / "cache").iterdir()) == []


KILLED = """
    model = load(Path(sys.argv[1]), Path(sys.argv[2]))
    target = next(Path(sys.argv[2]).glob(".*.part"), None)
    print(target is not None, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_has_left_is_removed(model_file: Path, cache: Path) -> None:
    cache.mkdir()
    left = cache / f".{'0' * 32}.panels.sinkstream-abcdefgh.part"
    left.write_bytes(b"half")
    run(KILLED, model_file, cache)
    keep(model_file, cache)
    assert sorted(each.suffix for each in cache.iterdir()) == [".checked", ".panels"]


TOGETHER = """
    with load(Path(sys.argv[1]), Path(sys.argv[2])) as model:
        print(bits(model))
"""


def test_processes_that_load_at_the_same_time_have_the_same_bits(
    model_file: Path, tmp_path: Path
) -> None:
    expected = keep(model_file, tmp_path / "first")
    for attempt in range(3):
        cache = tmp_path / str(attempt)
        command = [sys.executable, "-c", HEAD + textwrap.dedent(TOGETHER), model_file, cache]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for process in started:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0
            assert output == f"{expected}\n"
        assert sorted(each.suffix for each in cache.iterdir()) == [".checked", ".panels"]


def test_closing_a_model_ends_the_writing(model_file: Path, cache: Path) -> None:
    for _ in range(20):
        shutil.rmtree(cache, ignore_errors=True)
        load(model_file, cache).close()
        assert not list(cache.glob(".*.part"))


# ---- which files are kept ------------------------------------------------------------------------


def test_small_models_are_not_kept_unless_a_folder_is_named(
    model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE", str(cache))
    sinkstream.load(model_file, window=60, max_sequences=1).close()
    assert not cache.exists()


def test_the_folder_is_that_of_the_variable_or_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE", "~/panels")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert panels.default_folder() == tmp_path / "panels"
    monkeypatch.delenv("SINKSTREAM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert panels.default_folder() == tmp_path / ".cache" / "sinkstream"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert panels.default_folder() == tmp_path / "xdg" / "sinkstream"
    monkeypatch.setenv("SINKSTREAM_CACHE", "")
    assert panels.default_folder() is None


def test_those_used_last_are_kept(
    tiny_gguf: Callable[[str, str], Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (tiny_gguf("llama", each) for each in ("F16", "Q8_0", "Q4_0"))
    for path in (first, second):
        keep(path, cache)
        time.sleep(0.02)
    load(first, cache).close()  # now the second is the oldest
    held = sum(kept.bytes for kept in kept_files(cache))
    monkeypatch.setenv("SINKSTREAM_CACHE_LIMIT_GB", str((held + 10_000) / 1e9))
    keep(third, cache)
    assert {kept.name for kept in kept_files(cache)} == {first.name, third.name}


def test_a_limit_that_is_not_a_number_is_refused(
    model_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINKSTREAM_CACHE_LIMIT_GB", "many")
    with pytest.raises(InvalidArgument, match=r"\$SINKSTREAM_CACHE_LIMIT_GB must be a number"):
        load(model_file, cache)


def test_a_cache_that_is_neither_a_path_nor_a_choice_is_refused(model_file: Path) -> None:
    with pytest.raises(
        TypeError, match="`cache` must be True, False or a path, but is of type int"
    ):
        sinkstream.load(model_file, cache=7)  # type: ignore[arg-type]


# ---- memory --------------------------------------------------------------------------------------


SECOND = """
    with load(Path(sys.argv[1]), Path(sys.argv[2])) as model:
        found = bits(model)
        print((is_mapped(model), found, private_bytes(next(Path(sys.argv[2]).glob("*.panels")))))
"""


def test_processes_share_the_weights(smollm2: Path, cache: Path) -> None:
    with load(smollm2, cache) as model:
        wait_until(lambda: is_mapped(model))
        expected, size = bits(model), model.capacity.weight_bytes
        resident, private = private_bytes(kept_files(cache)[0].path)
        assert resident >= 0.99 * size
        assert private >= 0.99 * size  # no other process has it
        done = run(SECOND, smollm2, cache)
        assert done.returncode == 0, done.stderr
        mapped, found, (resident, private) = eval(done.stdout)
        assert (mapped, found) == (True, expected)
        assert resident >= 0.99 * size
        assert private <= 0.05 * size


def test_locked_weights_stay_in_memory(model_file: Path, cache: Path) -> None:
    size = model_file.stat().st_size // 2
    for mapped in (False, True):
        before = locked_bytes()
        with load(model_file, cache, lock_memory=True) as model:
            assert is_mapped(model) == mapped
            assert locked_bytes() - before > size
            wait_until(lambda: is_mapped(model))
            assert locked_bytes() - before > size  # also of the file
        assert locked_bytes() == before


LOCKED = """
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
    try:
        load(Path(sys.argv[1]), Path(sys.argv[2]), lock_memory=True)
    except sinkstream.CapacityError as error:
        print(error)
"""


def test_memory_that_may_not_be_locked_is_an_error_that_names_the_limit(
    model_file: Path, cache: Path
) -> None:
    command = [sys.executable, "-c", HEAD + textwrap.dedent(LOCKED), str(model_file), str(cache)]
    if os.geteuid() == 0:  # who may lock any amount
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        command = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert "RLIMIT_MEMLOCK is 4.1 kB. Raise it, as with `ulimit -l unlimited`." in done.stdout, done
