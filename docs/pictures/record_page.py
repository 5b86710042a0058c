"""Takes docs/pictures/page.png: a chat on the page of `sinkstream serve`, past its window.

    python -m docs.pictures.record_page

Needs the extra `serve`, selenium, Pillow, and Chromium with its driver.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.python.server.page.tab import open_browser

TARGET = Path(__file__).parent / "page.png"
PORT = 8765
SERVE = [
    *(sys.executable, "-m", "sinkstream", "serve", "smollm2"),
    *("--port", str(PORT), "--window", "156"),
]
QUESTIONS = (
    "Write one sentence about the sea.",
    "Write a table of three rivers and their countries.",
    "Write a short poem about the sea.",
)
SETTINGS = {"temperature": "0", "max_output_tokens": "110"}
SIZE = (960, 1060)
COLORS = 64  # enough for text; a tenth of the bytes


def talk(browser: Chrome) -> None:
    """Ask the questions, and wait for each reply."""
    for name, value in SETTINGS.items():
        script = """const field = document.getElementById(arguments[0]);
          field.value = arguments[1];
          field.dispatchEvent(new Event("input", { bubbles: true }));"""
        browser.execute_script(script, name, value)
    for question in QUESTIONS:
        browser.execute_script("document.getElementById('spoken').textContent = ''")
        browser.find_element(By.ID, "message").send_keys(question + Keys.ENTER)
        wait_for(browser, "return document.getElementById('spoken').textContent.includes('ended')")


def wait_for(browser: Chrome, script: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + 120
    while not browser.execute_script(script):
        if time.monotonic() > deadline:
            raise SystemExit(f"record_page: this never became true: {script}")
        time.sleep(0.1)


def main() -> None:
    """Serve, chat, and take the picture."""
    with tempfile.TemporaryDirectory() as store:
        shot = picture([*SERVE, "--store", store])
    shot.quantize(COLORS).save(TARGET, optimize=True)


def picture(command: list[str]) -> Image.Image:
    """Run a server, and return what its page shows after the talk."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        while "Listening" not in (line := server.stdout.readline()):
            if not line:
                raise SystemExit("record_page: the server has not started.")
        browser = open_browser(*(shutil.which(one) or "" for one in ("chromium", "chromedriver")))
        try:
            browser.set_window_size(*SIZE)
            browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            browser.get(f"http://127.0.0.1:{PORT}/")
            wait_for(browser, "return document.getElementById('status').textContent !== ''")
            talk(browser)
            time.sleep(1)
            return Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
        finally:
            browser.quit()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
