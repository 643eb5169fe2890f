"""The site builds without a warning and loads nothing from elsewhere; scripts beside its pictures draw them."""

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from mecam import averaging, data, methods, models, optim, runs, serving, training, virtual
from mecam.benchmark.settings import registry
from mecam.recipe import Recipe
from tests.docs.pages import ROOT

PICTURES = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"
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


class Page(HTMLParser):
    """What a page makes a browser fetch, where it links to, its anchors, and its pictures without a description."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.undescribed: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img" and not given.get("alt"):
            self.undescribed.append(given["src"])
        elsewhere = tag == "link" and given.get("rel") in ("canonical", "prev", "next", "alternate")
        if (address := given.get(LOADING.get(tag, ""))) and not elsewhere:
            self.loads.append(address)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path) for path in site.rglob("*.html")}
    assert len(found) > 70
    return found


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        assert page.loads
        for address in page.loads:
            assert not re.match(r"(https?:)?//", address), f"{path.name} loads {address}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name


def test_files_and_anchors_of_all_links_exist(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses are those of the site's root
            continue
        for address in (*page.loads, *page.links):
            if re.match(r"https?:|mailto:|data:", address):
                continue
            to, _, anchor = unquote(address).partition("#")
            target = (path.parent / to.partition("?")[0]).resolve() if to else path
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append(f"{path.relative_to(site)}: {address}")
    assert broken == []


def test_pictures_have_descriptions(site: Path, pages: dict[Path, Page]) -> None:
    assert {path.relative_to(site): page.undescribed for path, page in pages.items() if page.undescribed} == {}


def test_the_reference_is_complete(site: Path, pages: dict[Path, Page]) -> None:
    parts = {"methods": "method", "optimizers": "optimizer", "virtual": "virtual", "averagings": "averaging"}
    for name, part in parts.items():
        assert set(registry(part)) <= pages[site / "reference" / f"{name}.html"].anchors
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    entries = (site / "reference" / "recipe.html").read_text(encoding="utf-8")
    for field in fields(Recipe):
        assert f"<code>{field.name}</code>" in entries
    assert "root/&lt;domain&gt;/&lt;class&gt;/&lt;image&gt;" in entries
    assert "constant | cosine | linear | inverse_sqrt" in entries
    for words in ("--wanted-precision", "mecam data pack", "--lr-schedule"):
        assert words in commands
    formulas = (site / "reference" / "optimizers.html").read_text(encoding="utf-8")
    assert "g ← (1 − α − β) ∇f(θ) + α ∇f(θ+δ) + β ∇m(θ−δ)" in formulas


def test_docstrings_are_in_the_reference(site: Path) -> None:
    assert "m is f on a virtual unseen domain" in (site / "api" / "optim.html").read_text(encoding="utf-8")
    pages = [page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")]
    anchors = {name for page in pages for name in re.findall(r'id="mecam\.[\w.]*?(\w+)"', page)}
    public = [averaging, data, methods, models, optim, runs, serving, training, virtual]
    offered = {name for room in public for name in room.__all__ if inspect.getdoc(getattr(room, name))}
    assert offered - anchors - {"METHODS", "AVERAGINGS", "OPTIMIZERS", "DOMAINS", "BACKBONES", "Weights"} == set()


@pytest.mark.parametrize("script", ["how_mecam_works.py", "choosing.py", "pacs.py"])
def test_pictures_are_drawn_by_their_scripts(script: str, tmp_path: Path) -> None:
    runpy.run_path(str(PICTURES / script))["main"](tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn
    pages = [*(ROOT / "docs").glob("*.md"), *RESULTS.glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("](../../docs/", "](")
    for name in drawn:
        assert (PICTURES / name).is_file()
        assert f"(pictures/{name})" in text


def test_the_verdicts_are_of_the_records() -> None:
    names = runpy.run_path(str(PICTURES / "pacs.py"))
    for file in names["PAGES"]:
        page = file.read_text(encoding="utf-8")
        assert names["written"](page) == page, "run python docs/pictures/pacs.py"
    page = (RESULTS / "pacs.md").read_text(encoding="utf-8")
    assert f"varies by {names['spread']():.1f} points" in page


READ = [page for page in sorted(RESULTS.glob("*.md")) if page.stem != "torture"]  # a list of attacks, to search


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_a_page_of_results_is_read_to_its_end(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) <= 900


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def test_from_a_folder_the_site_searches_and_asks_nobody(site: Path, browser: Any) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("quadratic")
    page.locator(".md-search-result__item", has_text="How MeCAM works").wait_for(state="attached", timeout=60_000)
    assert asked
    assert all(address.startswith("file:") for address in asked)


def test_no_page_is_wider_than_a_phone(site: Path, pages: dict[Path, Page], browser: Any) -> None:
    """A page that fits there fits a screen, where its column is wider."""
    width = 390
    page, wide = browser.new_page(viewport={"width": width, "height": 800}), {}
    for path in pages:
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        needed = page.evaluate("document.documentElement.scrollWidth")
        if needed > width:
            wide[path.relative_to(site).as_posix()] = needed
    assert wide == {}
