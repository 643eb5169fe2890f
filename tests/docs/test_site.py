"""The site builds without a warning and loads nothing from elsewhere; scripts beside its pictures draw them."""

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mecam import averaging, data, methods, models, optim, runs, serving, training, virtual
from tests.docs.pages import ROOT

PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Loads(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next", "alternate"):
            return
        address = given.get(LOADING.get(tag, ""))
        if address:
            self.found.append(address)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.found
        for address in parser.found:
            assert not re.match(r"(https?:)?//", address), f"{page.name} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name


def test_every_file_that_a_page_loads_is_there(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its addresses are those of the site's root
            continue
        parser = Loads()
        parser.feed(page.read_text(encoding="utf-8"))
        for address in parser.found:
            assert (page.parent / re.split(r"[?#]", address)[0]).exists() or address.startswith("data:"), address


def test_docstrings_are_in_the_reference(site: Path) -> None:
    assert "m is f on a virtual unseen domain" in (site / "api" / "optim.html").read_text(encoding="utf-8")
    pages = [page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")]
    anchors = {name for page in pages for name in re.findall(r'id="mecam\.[\w.]*?(\w+)"', page)}
    public = [averaging, data, methods, models, optim, runs, serving, training, virtual]
    offered = {name for room in public for name in room.__all__ if inspect.getdoc(getattr(room, name))}
    assert offered - anchors - {"METHODS", "AVERAGINGS", "OPTIMIZERS", "DOMAINS", "BACKBONES", "Weights"} == set()


@pytest.mark.parametrize("script", ["how_mecam_works.py", "choosing.py"])
def test_pictures_are_drawn_by_their_scripts(script: str, tmp_path: Path) -> None:
    runpy.run_path(str(PICTURES / script))["main"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name in drawn:
        assert (PICTURES / name).is_file()
        assert f"(pictures/{name})" in text


def test_on_a_quadratic_the_update_is_the_gradient_and_elsewhere_as_the_page_says() -> None:
    names = runpy.run_path(str(PICTURES / "how_mecam_works.py"))
    far = names["departure"]
    assert all(far(names["quadratic"], rho, 0.1, 0.1) < 1e-13 for rho in (0.01, 0.5))

    def twice(problem: str, alpha: float) -> float:
        """How many times farther it is at twice the radius."""
        near, farther = (far(names[problem], rho, alpha, 0.1) for rho in (0.01, 0.02))
        return float(farther / near)

    assert twice("quadratic", 0.2) == pytest.approx(2, rel=1e-6)
    assert twice("network", 0.1) == pytest.approx(4, rel=0.02)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_from_a_folder_the_site_searches_and_asks_nobody(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("quadratic")
        page.locator(".md-search-result__item", has_text="How MeCAM works").wait_for(state="attached", timeout=60_000)
        browser.close()
    assert asked
    assert all(address.startswith("file:") for address in asked)
