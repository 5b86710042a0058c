"""A notebook's stop button ends a stream at once, and the next cell generates again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

# A waiting reader checks for signals every 0.2 s. The rest allows for the kernel's round trip on a
# shared machine; a hang would take longer.
PROMPTLY_S = 20.0


class Kernel:
    """A running kernel that executes cells one by one."""

    def __init__(self, folder: Path) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder))

    def start(self, code: str) -> str:
        """Start a cell; return its id. Its failure does not cancel the next cell."""
        return str(self.client.execute(code, store_history=False, stop_on_error=False))

    def reply_to(self, cell: str, timeout: float = 60) -> dict[str, Any]:
        """Wait for the end of a cell; return its reply."""
        end = time.monotonic() + timeout
        while True:
            reply = self.client.get_shell_msg(timeout=max(0.0, end - time.monotonic()))
            if reply["parent_header"]["msg_id"] == cell:
                return dict(reply["content"])

    def run(self, code: str) -> str:
        """Run a cell that must not fail; return its output."""
        cell = self.start(code)
        reply = self.reply_to(cell)
        assert reply["status"] == "ok", reply
        return self.output_of(cell)

    def output_of(self, cell: str, until: str | None = None) -> str:
        """Return the output of a cell until `until` appears, or until its end."""
        text = ""
        while until is None or until not in text:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "stream":
                text += message["content"]["text"]
            elif message["content"].get("execution_state") == "idle":
                break
        return text

    def interrupt(self, code: str) -> float:
        """Run a cell that prints "begun", and interrupt it; return the seconds that this took."""
        cell = self.start(code)
        assert "begun" in self.output_of(cell, until="begun")
        time.sleep(0.3)  # until the code after the print runs
        begin = time.monotonic()
        self.manager.interrupt_kernel()
        reply = self.reply_to(cell)
        seconds = time.monotonic() - begin
        assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt"), reply
        return seconds

    def stop(self) -> None:
        """End the kernel's process."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    running = Kernel(tmp_path)
    yield running
    running.stop()


def check(kernel: Kernel, model: Path) -> None:
    """Interrupt a loop, a wait for a result, and events; the model works after each."""
    kernel.run(f"import sinkstream, time; model = sinkstream.load({str(model)!r}, window=60)")
    endless = 'model.stream("The sea", ignore_eos=True, max_tokens=None)'
    for code in (
        f'print("begun")\nfor text in {endless}: pass',
        f'stream = {endless}\nprint("begun")\nstream.result()',
        f'with {endless} as stream:\n    print("begun")\n    for event in stream.events(): pass',
    ):
        seconds = kernel.interrupt(code)
        print(f"{seconds * 1000:.0f} ms")
        assert seconds < PROMPTLY_S, code
        after = 'model.generate("The land", max_tokens=8, ignore_eos=True)'
        assert kernel.run(f"print({after}.finish_reason)") == "length\n"
        # Nothing keeps running, although the notebook holds the traceback and `stream`.
        assert kernel.run("while model.stats()['running']: time.sleep(0.01)") == ""


def test_the_stop_button_ends_a_stream_at_once(
    kernel: Kernel, tiny_folder: Callable[[str], Path]
) -> None:
    check(kernel, tiny_folder("llama"))


@pytest.mark.full
def test_the_stop_button_ends_a_stream_of_a_real_model_at_once(
    kernel: Kernel, smollm2: Path
) -> None:
    check(kernel, smollm2)
