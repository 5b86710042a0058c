"""A tab of a real browser, as a user would work it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.python.server.http.running_server import Running

WORDS = {str(token_id): 100 for token_id in range(259, 286)}
"""Of the tiny model's tokens, these are words. Its logits are random: without this bias, a reply
ends early or is not text."""
# Counts what the policy has stopped, from the first script on.
_PREPARE = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`);
});
const ask = window.fetch;
window.cuts = [];  // each ends a response that is being read
window.fetch = (place, options) => {
  if (window.isOffline) return Promise.reject(new TypeError("offline"));
  const cut = new AbortController();
  window.cuts.push(() => cut.abort());
  options = { ...options, signal: cut.signal };
  if (place === "v1/responses") {
    const fixed = { ignore_eos: true, logit_bias: window.bias ?? WORDS };
    options.body = JSON.stringify({ ...JSON.parse(options.body), ...fixed });
  }
  return ask(place, options);
};
""".replace("WORDS", json.dumps(WORDS))
_WAIT_S = 60.0


def open_browser(chromium: str, driver: str) -> Chrome:
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return Chrome(options, ChromeService(driver))


class Tab:
    """The page in one tab; asks like a user, and reads what is shown."""

    def __init__(self, browser: Chrome) -> None:
        self.browser = browser
        self._prepared: set[str] = set()
        self._enter = ""  # what sends a message
        self.width = 0

    def open(
        self, server: Running, *, width: int = 1200, height: int = 800, fragment: str = ""
    ) -> None:
        """Load the page anew, as a desktop, or with a small width as a phone."""
        self.width = width
        touch = {"enabled": width < 600, "maxTouchPoints": 1}
        self.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touch)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        if (handle := self.browser.current_window_handle) not in self._prepared:
            self._prepared.add(handle)
            script = {"source": _PREPARE}
            self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        self.browser.get("about:blank")
        origin = f"http://127.0.0.1:{server.port}"
        kept = {"origin": origin, "storageTypes": "local_storage"}
        self.browser.execute_cdp_cmd("Storage.clearDataForOrigin", kept)
        self._enter = Keys.CONTROL + Keys.ENTER if width < 600 else Keys.ENTER
        self.browser.get(f"{origin}/{fragment}")
        self._until_started()

    def reload(self) -> None:
        self.browser.refresh()
        self._until_started()

    def _until_started(self) -> None:
        self.until(lambda: self.text("#facts") or self.is_shown("#unlock"), "it has started")
        self.set(seed=1, max_output_tokens=24)

    # ---- reading ---------------------------------------------------------------------------------

    def run(self, script: str, *values: Any) -> Any:
        return self.browser.execute_script(script, *values)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(self.run(script, selector))

    def is_shown(self, selector: str) -> bool:
        return self.one(selector).is_displayed()

    def messages(self, role: str) -> list[str]:
        """Return the texts of messages, as they are in the document."""
        script = """
            const found = document.querySelectorAll(`article.${arguments[0]}`);
            return [...found].map((one) => [...one.querySelectorAll(".block")]
              .map((block) => block.textContent).join(""));
        """
        texts: list[str] = self.run(script, role)
        return texts

    def titles(self) -> list[str]:
        script = """return [...document.querySelectorAll("#conversations a")]
          .map((link) => link.firstChild.textContent)"""
        titles: list[str] = self.run(script)
        return titles

    @property
    def focused(self) -> str:
        """Return the name of what has the focus, or its id or element."""
        script = "const e = document.activeElement; return e.ariaLabel || e.id || e.tagName"
        return str(self.run(script))

    @property
    def session(self) -> str:
        """Return the id of the open conversation."""
        return str(self.run("return location.hash.slice(1)"))

    # ---- working ---------------------------------------------------------------------------------

    def set(self, **fields: object) -> None:
        """Fill in settings."""
        for name, value in fields.items():
            self.run("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a point of the window; with `click`, press and release its button."""
        event = {"x": x, "y": y, "button": "left" if click else "none", "clickCount": int(click)}
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.browser.execute_cdp_cmd("Input.dispatchMouseEvent", {**event, "type": kind})

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def begin(self, text: str) -> None:
        """Send a message."""
        self.one("#message").send_keys(text + self._enter)

    def say(self, text: str) -> None:
        """Send a message, and wait for the end of the reply."""
        self.run("document.getElementById('spoken').textContent = ''")
        self.begin(text)
        self.until(lambda: self.text("#spoken").startswith("The reply has ended"), "it has ended")
        self.until_idle()

    def click(self, label: str, role: str, index: int = -1) -> None:
        """Click a button of a message."""
        article = self.browser.find_elements(By.CSS_SELECTOR, f"article.{role}")[index]
        for button in article.find_elements(By.TAG_NAME, "button"):
            if label in (button.text, button.get_attribute("aria-label")):
                self.run("arguments[0].click()", button)
                return
        raise AssertionError(f"there is no button {label!r}")

    def until_idle(self) -> None:
        self.until(lambda: self.is_shown("#send") and not self.is_shown("#stop"), "it is idle")

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.text('body')[:2000]}"
            time.sleep(0.02)

    def check_clean(self) -> None:
        """Check that no script has failed, and that the policy has stopped nothing."""
        assert self.run("return window.violations") == []
        logged = self.browser.get_log("browser")
        assert [one for one in logged if one["source"] != "network"] == []
