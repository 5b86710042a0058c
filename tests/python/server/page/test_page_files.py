"""The page's files: their size, headers and caching, and who may have them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sinkstream.server.page_route import FILES, FOLDER
from tests.python.server.http.running_server import Running, running

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'none'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'none'",
}
MOST_BYTES = 96 * 1024  # a third of it for Markdown, a fifth for the window and each word's odds


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


SCRIPTS = sorted(path.name for path in FOLDER.glob("*.js"))


def test_the_page_is_a_few_small_files() -> None:
    found = {path.name for path in FOLDER.iterdir()}
    assert found == {name for name, _ in FILES.values()}
    assert found == {"index.html", "style.css", *SCRIPTS}
    assert sum((FOLDER / name).stat().st_size for name in found) < MOST_BYTES


def test_nothing_in_the_html_is_inline_or_from_elsewhere() -> None:
    html = text_of("index.html")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<base|<iframe|<img", html)
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL) == [""]
    links = re.findall(r'\s(?:src|href|action)="([^"]*)"', html)
    assert {f"/{link}" for link in links} == {"/page/style.css", "/page/controls.js"}


@pytest.mark.parametrize("name", [*SCRIPTS, "style.css"])
def test_no_file_names_another_site(name: str) -> None:
    assert not re.search(r"//[\w-]+\.|https?:|url\(|@import|eval\(|Function\(", text_of(name))


def test_only_relative_addresses_are_asked() -> None:
    """A proxy may serve the page below a path."""
    code = "".join(map(text_of, SCRIPTS))
    asked = re.findall(r"(?<![.\w])(?:request|get)\([\"`]([^\"`$]*)", code)
    assert asked
    assert all(address.startswith("v1/") for address in asked)
    assert code.count("fetch(") == 1


def test_only_one_small_file_keeps_anything_and_it_never_sees_the_key() -> None:
    assert [name for name in SCRIPTS if "Storage" in text_of(name)] == ["kept.js"]
    assert "import" not in text_of("kept.js")
    assert not re.search(r"\bkey\b", text_of("kept.js").partition("\n")[2])
    assert "kept.js" not in text_of("api.js")


@pytest.mark.parametrize("name", SCRIPTS)
def test_text_never_becomes_html(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|setHTML"
    assert not re.search(forbidden, text_of(name))


@pytest.mark.parametrize("path", FILES)
def test_a_file_has_a_strict_policy_and_its_type(server: Running, path: str) -> None:
    answer = server.ask("GET", path)
    name, kind = FILES[path]
    assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
    assert answer.headers["content-type"] == kind
    assert "charset=utf-8" in kind
    policy = answer.headers["content-security-policy"]
    assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    head = server.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.body))
    assert server.ask("POST", path, {}).status == 405


@pytest.mark.parametrize("path", FILES)
def test_a_file_that_is_known_is_not_sent_again(server: Running, path: str) -> None:
    first = server.ask("GET", path)
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = server.ask("GET", path, None, {"If-None-Match": known})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    assert server.ask("GET", path, None, {"If-None-Match": '"other"'}).status == 200


def test_the_page_needs_no_key_but_what_it_asks_for_does(locked: Running) -> None:
    for path in FILES:
        assert locked.ask("GET", path).status == 200
        assert locked.ask("POST", path, {}).status == 401
    for path in ("/page/", "/page", "/page/index.html", "/page/../v1/models", "/page/chat.js/",
                 "//page/chat.js", "/page/%63hat.js", "/v1/", "/v1/page/chat.js"):  # fmt: skip
        assert locked.ask("GET", path).status == 401, path
    for path in ("/v1/models", "/v1/sessions", "/v1/sessions/sess_1/turns"):
        assert locked.ask("GET", path).status == 401, path


def test_the_page_is_for_this_host_alone(server: Running) -> None:
    assert server.raw("GET / HTTP/1.1\r\nHost: evil.example\r\n")[0] == 403
    assert server.ask("GET", "/", None, {"Origin": "https://evil.example"}).status == 403


@pytest.fixture
def without_page(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    with running(tiny_folder("llama"), api_keys=("right",), no_page=True) as found:
        yield found


def test_a_server_may_have_no_page(without_page: Running) -> None:
    for path in FILES:
        assert without_page.ask("GET", path).status == 401
        assert without_page.ask("GET", path, None, {"X-Api-Key": "right"}).status == 404
