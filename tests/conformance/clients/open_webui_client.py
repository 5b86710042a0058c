"""Open WebUI as its users install it, in headless Chromium.

Ten turns past the window, with its own tools, titles, tags and follow-ups; then edit, regenerate,
stop and Continue. It passes if every message has a reply that is no error, and the server has
refused nothing. Needs `chromium` and `chromedriver` on the path.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.common.exceptions import (
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

TURNS = 10
LIMIT_S = 900
"""Of each step, the longest of which reads the tools on a busy machine."""
LONG = "I walked along the harbour, saw the boats come in, and felt the wind from the sea. " * 15
SETTINGS = {
    "ENABLE_OLLAMA_API": "false",
    "OFFLINE_MODE": "true",
    "OPENAI_API_CONFIGS": json.dumps({"0": {"provider": "llama.cpp"}}),
    "OPENAI_API_KEY": "none",
}
"""What docs/guides/open_webui.md says, and no network: no downloads, no other server."""
REPLY = "#response-content-container"
STOP = 'button[aria-label="Stop"]'
ERRORS = """return (async () => {
    const headers = {Authorization: `Bearer ${localStorage.token}`};
    const id = location.pathname.split("/").at(-1);
    const {chat} = await (await fetch(`/api/v1/chats/${id}`, {headers})).json();
    return Object.values(chat.history.messages).map(message => message.error).filter(Boolean);
})()"""
"""Gives the errors that a chat shows in place of replies."""


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open_webui(folder, base_url) as address, browser(folder) as driver:
            chat = Chat(driver)
            chat.sign_up(address)
            for turn in range(TURNS):
                chat.say(f"Day {turn}. {LONG}Reply with one short sentence.")
            evicted = sum(metrics(base_url, "sinkstream_evicted_tokens_total").values())
            assert evicted > 0, "the window has not been passed"
            chat.edit("And at dawn?")
            chat.regenerate()
            chat.stop("Write a long story about the sea.")
            chat.go_on()
            assert not chat.errors(), chat.errors()
    counts = metrics(base_url, "sinkstream_http_responses_total")
    refused = [one for one in counts if not re.search(r'code="(2..|499)"', one)]
    assert not refused, refused
    print(f"{TURNS} turns, {evicted:.0f} tokens evicted")


class Chat:
    """What a person does, and what a person sees."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver
        lost = (IndexError, StaleElementReferenceException, ElementNotInteractableException)
        self._wait = WebDriverWait(driver, LIMIT_S, 0.1, ignored_exceptions=lost)

    def sign_up(self, address: str) -> None:
        """Become the first user, and close the news."""
        self._driver.get(address)
        self._press("Get started")
        self._write("input[autocomplete=name]", "A")
        self._write("#email", "a@example.org")
        self._write("#password", "a long password", Keys.ENTER)
        self._press("Okay, Let's Go!")
        self._until(lambda: bool(self._all("#chat-input")), "the chat is shown")

    def say(self, text: str) -> None:
        """Send a message, and wait for the reply."""
        self._send(text)
        self._await_reply()

    def edit(self, text: str) -> None:
        """Send another message in place of the last one."""
        self._replace_last(".edit-user-message-button", text)

    def regenerate(self) -> None:
        """Ask for another reply to the last message."""
        self._replace_last(".regenerate-response-button")

    def stop(self, text: str) -> None:
        """Stop a reply that has begun. It keeps its text."""
        self._send(text)
        self._until(lambda: bool(self._last().text), "the reply begins")
        self._click(STOP)
        self._await_reply()

    def go_on(self) -> None:
        """Continue the last reply: it grows."""
        before = self._last().text
        self._click("#continue-response-button")
        self._until(lambda: len(self._last().text) > len(before), "the reply grows")
        self._await_reply()
        assert self._last().text[:20] == before[:20], (before, self._last().text)

    def errors(self) -> Any:
        """Return the errors that are shown in place of replies."""
        return self._driver.execute_script(ERRORS)

    def _send(self, text: str) -> None:
        before = self._last_id()
        field = self._all("#chat-input")[-1]
        # Pasted: keys of a long text take minutes on a busy machine.
        paste = "arguments[0].focus(); document.execCommand('insertText', false, arguments[1])"
        self._driver.execute_script(paste, field, text)
        self._write("#chat-input", Keys.ENTER)
        self._until(lambda: self._last_id() != before, "the message is shown")

    def _replace_last(self, button: str, text: str = "") -> None:
        before = self._last_id()
        self._click(button)
        if text:
            field = "textarea[id^=message-edit-]"
            self._write(field, Keys.CONTROL + "a" + Keys.NULL, text)
            self._click("#confirm-edit-message-button")
        self._until(lambda: self._last_id() != before, "another reply begins")
        self._await_reply()

    def _await_reply(self) -> None:
        """Wait until nothing is being written."""
        self._until(lambda: not self._all(STOP), "the reply is complete")
        assert self._last().text, "an empty reply"

    def _last(self) -> WebElement:
        return self._all(REPLY)[-1]

    def _last_id(self) -> Any:
        """Return the id of the last message; only the latest ones are in the page."""
        script = "return arguments[0]?.closest('[id^=message-]').id"
        return self._driver.execute_script(script, *self._all(REPLY)[-1:])

    def _all(self, selector: str) -> list[WebElement]:
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def _write(self, selector: str, *keys: str) -> None:
        def write() -> bool:
            self._all(selector)[-1].send_keys(*keys)
            return True

        self._until(write, f"{selector} takes text")

    def _click(self, selector: str) -> None:
        """Press the last button of a kind. Some appear only under a pointer."""
        self._until(lambda: bool(self._all(selector)), f"{selector} is shown")
        self._driver.execute_script("arguments[0].click()", self._all(selector)[-1])

    def _press(self, words: str) -> None:
        """Press the button with these words."""
        found = f'//button[contains(normalize-space(.), "{words}")]'
        self._until(lambda: bool(self._driver.find_elements(By.XPATH, found)), f"{words} is shown")
        button = self._driver.find_element(By.XPATH, found)
        self._driver.execute_script("arguments[0].click()", button)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        self._wait.until(lambda _: condition(), what)


@contextmanager
def open_webui(folder: Path, base_url: str) -> Iterator[str]:
    """Start Open WebUI with its data in a folder; give its address once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    environment = {
        **os.environ,
        **SETTINGS,
        "DATA_DIR": str(folder / "data"),
        "HOME": str(folder),
        "OPENAI_API_BASE_URL": base_url,
        "WEBUI_SECRET_KEY": secrets.token_hex(16),
    }
    command = [str(Path(sys.executable).parent / "open-webui"), "serve"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + LIMIT_S
        while not answers(address):
            assert process.poll() is None, "Open WebUI has ended"
            assert time.monotonic() < end, f"Open WebUI has not started within {LIMIT_S} s"
            time.sleep(0.5)
        yield address
    except Exception:
        print((folder / "log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(60)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def browser(folder: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={folder / 'chromium'}")
    driver = Chrome(options, Service(shutil.which("chromedriver")))
    driver.command_executor.client_config.timeout = LIMIT_S
    try:
        yield driver
    finally:
        driver.quit()


def metrics(base_url: str, name: str) -> dict[str, float]:
    """Return the values of a metric, by its labels."""
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    named = (line.removeprefix(name).rpartition(" ") for line in lines if line.startswith(name))
    return {labels: float(value) for labels, _, value in named}


if __name__ == "__main__":
    main(sys.argv[1])
