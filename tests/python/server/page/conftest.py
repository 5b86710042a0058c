"""Servers of a tiny model, and a browser without a window."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import Running, running
from tests.python.text.reasoning_templates import OPENED, THINK, write_folder

if TYPE_CHECKING:
    from tests.python.server.page.tab import Tab


@pytest.fixture(scope="module")
def server(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server that keeps conversations."""
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, flush_s=0.01) as found:
        yield found


@pytest.fixture(scope="module")
def locked(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server with the key "right"."""
    store = str(tmp_path_factory.mktemp("store"))
    with running(tiny_folder("llama"), store=store, api_keys=("right",)) as found:
        yield found


@pytest.fixture(scope="module")
def keepless(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    """Give a server that keeps nothing."""
    with running(tiny_folder("llama"), store="none") as found:
        yield found


@pytest.fixture(scope="module")
def thinking(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Give a server whose model thinks before it replies."""
    root = tmp_path_factory.mktemp("thinking")
    folder = write_folder(tiny_folder("llama"), root / "model", OPENED, *THINK)
    with running(folder, store=str(root / "store"), flush_s=0.01) as found:
        yield found


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    """Give a tab of Chromium, or skip where there is none."""
    from tests.python.server.page.tab import Tab, open_browser

    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths:
        pytest.skip("Chromium is not installed; `apt-get install chromium chromium-driver` does it")
    browser = open_browser(*map(str, paths))
    yield Tab(browser)
    browser.quit()
