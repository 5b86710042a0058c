"""After requests, no object of ours is left, no task, and no free memory that is kept."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.residency import Resident
from sinkstream.server import admission, process_settings
from sinkstream.server.responses import live_responses
from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running, running

REPEATS = 8
WAIT_S = 30
OPTIONS: dict[str, Any] = {"max_tokens": 3, "seed": 1, "ignore_eos": True}


def residents() -> list[object]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is Resident]


@pytest.fixture(scope="module")
def others() -> list[object]:
    """Give the sessions of servers that earlier tests have started in this process."""
    gc.unfreeze()
    return residents()


@pytest.fixture(scope="module")
def server(
    others: list[object],
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        # What is remembered of the latest requests is bounded. Here, the bounds are soon reached.
        patch.setattr(live_responses, "_KEPT", 2)
        patch.setattr(live_responses, "_UNSTORED", 2)
        patch.setattr(admission, "_REMEMBERED", 2)
        with running(tiny_folder("llama"), store=store, sequences=3) as found:
            yield found


def ask_everything(server: Running, number: int) -> None:
    """Send a request of each kind; those that name something name something new."""
    name = f"{number:08d}"
    chat = {"messages": HELLO, **OPTIONS, "cache_salt": name, "user": name}
    kept = server.post(CHAT, chat, **{"X-Session-Id": name}).json
    server.post(CHAT, {**chat, "stream": True, "logprobs": True, "n": 2})
    server.post(CHAT, {**chat, "store": False})
    server.post(CHAT, {**chat, "messages": []})
    server.post(CHAT, {"messages": 1})
    server.ask("POST", CHAT, b"{", {"X-Request-Id": name})
    server.post(COMPLETIONS, {"prompt": f"text {name}", **OPTIONS})
    server.post(COMPLETIONS, {"prompt": name, **OPTIONS, "temperature": -1.0})
    response = {"input": name, "max_output_tokens": 3, "seed": 1, "ignore_eos": True}
    made = server.post("/v1/responses", response).json
    server.post("/v1/responses", {**response, "stream": True, "store": False})
    server.ask("GET", f"/v1/responses/{made['id']}?stream=true")
    server.ask("DELETE", f"/v1/responses/{made['id']}")
    server.post("/tokenize", {"content": name})
    for path in ("/health", "/metrics", "/v1/models", f"/v1/{name}", "/v1/sessions"):
        server.ask("GET", path, None, {"X-Api-Key": name})
    session = kept["usage"]["sinkstream"]["session"]
    server.ask("GET", f"/v1/sessions/{session}/turns")
    if number % 2:
        server.ask("DELETE", f"/v1/sessions/{session}")
    for body in ({**chat, "max_tokens": 1 << 30, "stream": True}, {**chat, "max_tokens": 4000}):
        server.begin(CHAT, body).close()  # the client leaves


def is_cancelled(one: object) -> bool:
    """Return whether an object is a cancelled timer: an event loop keeps up to a hundred.

    `isinstance` would ask OpenAI's lazy objects for their class, and so load what they stand for.
    """
    return type(one) is asyncio.TimerHandle and one.cancelled()


def objects_of_ours(server: Running) -> Counter[str]:
    """Count what is alive once all replies have ended."""
    server.wait_until(lambda: server.metric("sinkstream_open_replies") == 0, "replies end")
    server.wait_until(lambda: server.metric("sinkstream_open_connections") <= 1, "clients left")
    gc.collect()
    kinds = (type(one) for one in gc.get_objects() if not is_cancelled(one))
    counts = Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    ours = ("sinkstream.", "_asyncio.", "asyncio.", "uvicorn.", "starlette.", "pydantic.", "re.")
    return Counter({name: n for name, n in counts.items() if name.startswith(ours)})


def test_requests_of_every_kind_leave_no_object(server: Running, others: list[object]) -> None:
    numbers = iter(range(10_000))

    def ask() -> None:
        for _ in range(REPEATS):
            ask_everything(server, next(numbers))

    gc.unfreeze()  # the server's own objects are counted, too
    ask()
    before = objects_of_ours(server)
    ask()

    def left() -> dict[str, int]:
        """Return what there is more of; what is left of each request is there that many times."""
        grown = objects_of_ours(server) - before
        return {name: count for name, count in grown.items() if count >= REPEATS / 2}

    def kept() -> int:
        return sum(all(one is not other for other in others) for one in residents())

    end = time.monotonic() + WAIT_S
    while (left() or kept() > 3) and time.monotonic() < end:
        time.sleep(0.2)  # tasks of clients that have left are ending
    assert left() == {}
    assert 1 <= kept() <= 3, "the counts contain the server's own objects"


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_free_memory_is_returned() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    size, count = 64_000, 1000  # smaller than what malloc maps by itself
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    before = private_kib()
    process_settings.trim()
    assert private_kib() < before - size * count / 1024 / 2
    libc.free(blocks[-1])


def private_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def test_memory_is_trimmed_again_and_again() -> None:
    calls: list[Any] = []

    async def main() -> None:
        done = asyncio.Event()

        async def run(call: Callable[[], None]) -> None:
            calls.append(call)
            if len(calls) == 3:
                done.set()

        task = asyncio.create_task(process_settings.trim_repeatedly(run, 0.001))
        await done.wait()
        task.cancel()

    asyncio.run(main())
    assert set(calls) == {process_settings.trim}


def printed(code: str, how: str, **environment: str) -> int:
    """Return the number that a program prints, without this process's settings of the heap."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    kept.pop("GLIBC_TUNABLES", None)
    command = [sys.executable, "-c", code, how]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=kept | environment)
    return int(done.stdout)


def test_all_threads_allocate_from_one_heap() -> None:
    code = """
import ctypes, sys, threading
from sinkstream.server.process_settings import keep_heap_small
if sys.argv[1] == "one":
    keep_heap_small()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.open_memstream.restype = ctypes.c_void_p
together = threading.Barrier(4)
def allocate():
    together.wait()
    libc.malloc(ctypes.c_size_t(1000))
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
text, size = ctypes.c_char_p(), ctypes.c_size_t()
file = ctypes.c_void_p(libc.open_memstream(ctypes.byref(text), ctypes.byref(size)))
libc.malloc_info(0, file)
libc.fclose(file)
print(text.value.count(b"<heap nr="))
"""
    assert printed(code, "one") == 1 < printed(code, "many")
    assert printed(code, "one", MALLOC_ARENA_MAX="3") > 1, "the user's setting remains"


def test_large_blocks_leave_no_gaps_in_the_heap() -> None:
    code = """
import ctypes, sys
from sinkstream.server.process_settings import LARGE_BYTES, keep_heap_small
if sys.argv[1] == "kept":
    keep_heap_small()
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.mallinfo2.restype = Info
libc.free(ctypes.c_void_p(libc.malloc(ctypes.c_size_t(100 * LARGE_BYTES))))  # glibc learns from it
before = libc.mallinfo2().hblks
for _ in range(100):
    libc.malloc(ctypes.c_size_t(LARGE_BYTES))
print(libc.mallinfo2().hblks - before)
"""
    assert printed(code, "kept") > 90  # the first ones fill gaps
    assert printed(code, "not") == 0
    for setting in (
        {"MALLOC_MMAP_THRESHOLD_": "10000000"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=10000000"},
    ):
        assert printed(code, "kept", **setting) == 0, "the user's setting remains"
