"""The page in a real browser: what a reader sees and can do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import mecam
from mecam.benchmark import results, tables
from mecam.recipe import Recipe
from mecam.report import write
from mecam.report.commands import command
from mecam.report.content import gather
from mecam.report.page import render
from mecam.runs import RunError, RunFolder
from mecam.storage.checksums import digest, seal
from tests.report.runs import CLASSES, write_run

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
FLAGS += ["--enable-unsafe-swiftshader"]  # WebGL without a GPU
HACK = "</script><script>window.hacked = true</script>"
DOMAINS = ["<img src=x onerror='window.hacked = true'>", 'say "hi" & bye', HACK]
WRONG = [(0, 0, 0.9), (0, 2, 0.8), (1, 2, 0.99), (2, 2, 0.7), (1, 1, 0.6)]


@dataclass
class Page:
    """A page that is open, and what it asked for and complained of."""

    tab: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.tab.locator(selector).all_text_contents()]

    def names(self) -> list[str]:
        """The visible rows of the leaderboard, top down."""
        return [text.strip() for text in self.tab.locator("#board tbody:not([hidden]) .open").all_inner_texts()]

    def overflow(self) -> int:
        return int(self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs with names that would like to be markup, sweeps, an unfinished run, measurements; and a trained one."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(out / "cache"))
        common: dict[str, Any] = {"data": "nowhere", "domains": DOMAINS}
        for seed in (0, 1):
            for place, target in enumerate(DOMAINS):
                for optimizer, accuracy in (("adam", 0.5), ("sam", 0.6), ("gsam", 0.55)):
                    shown = None if (optimizer, place, seed) == ("gsam", 2, 1) else accuracy + place / 10 + seed / 50
                    write_run(out, shown, target=target, optimizer=optimizer, seed=seed, predicted=WRONG, **common)
                for alpha in (0.1, 0.2):
                    for beta in (0.1, 0.3):
                        settings = {"alpha": alpha, "beta": beta}
                        accuracy = 0.3 + alpha + beta / 10
                        same: dict[str, Any] = {"target": target, "seed": seed, "optimizer": "mecam", **common}
                        write_run(out, accuracy, optimizer_settings=settings, **same)
                for rho in (0.01, 0.5):
                    same = {"target": target, "seed": seed, "optimizer": "asam", **common}
                    write_run(out, 0.4 + rho / 10, optimizer_settings={"rho": rho}, **same)
        measure(next(out.glob("nowhere-*-sam-none-seed0-*")))
        mecam.train(Recipe(target="art", steps=2, evaluate_every=2), out, device="cpu")
        damaged = write_run(out, 0.5, target="photo", domains=["photo", "art"])
        damaged.records_file.write_text("{}\n")
        yield out


def measure(folder: Path) -> None:
    side = [-1.0, 0.0, 1.0]
    loss: list[list[float | None]] = [[x * x + y * y for x in side] for y in side]
    loss[0][0] = None
    (folder / "landscape.json").write_text(json.dumps({"split": HACK, "x": side, "y": side, "loss": loss}))
    curvature = {"split": "in", "loss": 0.1, "gradient_norm": 0.2, "rho": [0.05], "numerator": [-3e-3]}
    (folder / "curvature.json").write_text(json.dumps({**curvature, "curvature": [3e-3]}))


@pytest.fixture(scope="module")
def file(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(out, tmp_path_factory.mktemp("page") / "page.html", title=f"Title {HACK}")


@pytest.fixture(scope="module")
def flat(out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as it is where plotly is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "plotly.offline", None)
        return write(out, tmp_path_factory.mktemp("flat") / "page.html", title=f"Title {HACK}")


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Page]:
    yield from visit(browser, file)


def visit(browser: Any, file: Path, **settings: Any) -> Iterator[Page]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
    context.set_default_timeout(8000)
    page = Page(context.new_page())
    page.tab.on("request", lambda request: page.requests.append(request.url))
    page.tab.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.tab.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.tab.goto(file.as_uri())
    yield page
    context.close()


def choose(page: Page, label: str, option: str) -> None:
    page.tab.get_by_label(label, exact=True).select_option(option)


def scroll_through(page: Page) -> None:
    height = page.tab.evaluate("document.documentElement.scrollHeight")
    for top in range(0, height, 700):
        page.tab.evaluate(f"scrollTo(0, {top})")
        page.tab.wait_for_timeout(30)


def test_everything_is_drawn_and_nothing_is_fetched(opened: Page, file: Path, tmp_path: Path) -> None:
    scroll_through(opened)
    opened.tab.wait_for_selector("[data-drawn=solid]", timeout=20_000)
    opened.tab.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000
    assert [url for url in opened.requests if not url.startswith("data:")] == [file.as_uri()]
    assert opened.complaints == []


def test_names_are_text(browser: Any, flat: Path) -> None:
    for page in visit(browser, flat):
        choose(page, "data", "nowhere")
        assert page.tab.title() == f"Title {HACK}"
        assert set(DOMAINS) <= set(page.texts("#board thead button > span:first-child"))
        assert set(DOMAINS) <= set(page.texts("#bars figcaption"))
        page.tab.get_by_role("button", name="sam", exact=True).first.click()
        page.tab.locator(".behind .link").first.click()
        assert page.texts(".confusion .upright") == CLASSES
        assert HACK in page.tab.inner_text("#environments")
        scroll_through(page)
        assert HACK in page.tab.inner_text("#surfaces")
        assert page.tab.evaluate("window.hacked") is None
        assert page.complaints == []


def test_the_verdict_is_on_top(browser: Any, opened: Page, tmp_path: Path) -> None:
    sam, incomplete = opened.texts("#verdicts .expected")
    assert sam.startswith("sam: 71.0 % on unseen domains, 95 % interval ")
    assert incomplete == "No combination has a finished run on every unseen domain yet."
    for target in ("a", "b"):
        for optimizer, accuracy, seconds in (("adam", 0.5, 75), ("sam", 0.4, 9000)):
            common: dict[str, Any] = {"target": target, "data": "nowhere", "domains": ["a", "b"]}
            folder = write_run(tmp_path, accuracy, optimizer=optimizer, **common)
            (folder.path / "timing.json").write_text(json.dumps({"seconds": seconds, "steps": 10}))
    for page in visit(browser, write(tmp_path, tmp_path / "page.html")):
        assert page.tab.locator("main section").first.get_attribute("id") == "conclusion"
        assert "Cost: 1:15 per run." in page.texts("#verdicts li")
        assert page.texts("#verdicts pre")[0].endswith("--out model")
        assert "1:15" in page.texts("#board td.number .mean")
        assert "120 × adam" in page.texts("#board td.number .runs")
        assert "50 % of the images of an unseen domain are scored" in page.tab.inner_text("#leaderboard-about")


def test_leaderboard_is_the_table(opened: Page, out: Path) -> None:
    choose(opened, "data", "nowhere")
    rows = [row for row in tables.rows(results.read(out)[0]) if row.key.data == "nowhere"]
    ranked = sorted(rows, key=lambda row: -(row.cells["average"].mean or 0))
    assert [name.split("\n")[0] for name in opened.names()] == [row.key.optimizer for row in ranked]
    sam = next(row for row in rows if row.key.optimizer == "sam")
    line = opened.tab.locator("#board tbody", has=opened.tab.get_by_role("button", name="sam", exact=True))
    words = [f"{cell.mean:.1f} ± {cell.spread:.1f}" for cell in sam.cells.values()]
    assert line.locator(".mean").all_text_contents() == words
    gsam = opened.tab.locator("#board tbody", has=opened.tab.get_by_role("button", name="gsam", exact=True))
    assert gsam.locator(".missing").all_text_contents() == ["1 of 2 runs", "5 of 6 runs"]


def test_balanced_accuracy_has_a_column_where_it_differs(browser: Any, tmp_path: Path) -> None:
    for target in DOMAINS:
        for optimizer, balanced in (("adam", 0.61), ("sam", 0.72)):
            common: dict[str, Any] = {"data": "nowhere", "domains": DOMAINS, "target": target}
            write_run(tmp_path / "runs", 0.8, optimizer=optimizer, balanced=balanced, **common)
    for page in visit(browser, write(tmp_path / "runs", tmp_path / "page.html")):
        page.tab.get_by_role("button", name="balanced").click()
        assert page.names() == ["sam", "adam"]
        assert page.texts("#board td.number")[::3] == ["72", "61"]


def test_sorting_by_pointer_and_keyboard(opened: Page) -> None:
    choose(opened, "data", "nowhere")
    before = opened.names()
    average = opened.tab.locator("#board thead th").filter(has_text="average")
    assert average.get_attribute("aria-sort") == "descending"
    average.get_by_role("button").click()
    assert average.get_attribute("aria-sort") == "ascending"
    assert opened.names() == before[::-1]
    name = opened.tab.locator("#board thead th").first
    name.get_by_role("button").focus()
    opened.tab.keyboard.press("Enter")
    assert name.get_attribute("aria-sort") == "ascending"
    assert average.get_attribute("aria-sort") is None
    assert opened.names() == sorted(before)
    opened.tab.keyboard.press("Space")
    assert opened.names() == sorted(before, reverse=True)


def test_filtering(opened: Page) -> None:
    choose(opened, "data", "nowhere")
    assert len(opened.names()) == 9
    choose(opened, "optimizer", "mecam")
    assert len(opened.names()) == 4
    opened.tab.get_by_label("filter by text").fill("ALPHA=0.2 beta=0.3")
    assert len(opened.names()) == 1
    assert opened.tab.inner_text("#shown") == "1 of 9 combinations"
    opened.tab.get_by_label("filter by text").fill("")
    choose(opened, "optimizer", "")
    choose(opened, "averaging", "none")
    choose(opened, "method", "erm")
    assert len(opened.names()) == 9
    choose(opened, "data", "")
    assert opened.texts("#board thead button > span:first-child") == [
        "combination",
        "nowhere",
        "shapes",
        "average",
        "runs",
    ]


def test_charts_follow_the_ticks(opened: Page) -> None:
    choose(opened, "data", "nowhere")
    ticked = opened.tab.locator("#board input:checked").count()
    assert opened.tab.locator("#bars rect.bar").count() == ticked * (len(DOMAINS) + 1)
    opened.tab.get_by_label("Compare sam in the charts", exact=True).set_checked(ticked == 0)
    opened.tab.get_by_label("Compare asam (rho=0.5) in the charts").check()
    now = opened.tab.locator("#board input:checked").count()
    assert opened.tab.locator("#bars rect.bar").count() == now * (len(DOMAINS) + 1)
    opened.tab.locator("#curves").scroll_into_view_if_needed()
    opened.tab.wait_for_selector("#curves .chart")
    assert opened.tab.locator("#curves .panel:first-child .line").count() == 2 * now
    assert "accuracy" in opened.tab.locator("#curves .chart").first.get_attribute("aria-label")
    opened.tab.get_by_label("loss", exact=True).check()
    opened.tab.wait_for_selector("#curves .chart[aria-label*=': loss against steps']")


def test_schedules(browser: Any, opened: Page, tmp_path: Path) -> None:
    assert opened.tab.get_by_label("learning rate", exact=True).count() == 0  # nothing is scheduled there
    common: dict[str, Any] = {"data": "nowhere", "domains": DOMAINS, "steps": 20, "warmup": 4}
    for target in DOMAINS:
        for name in ("constant", "cosine"):
            write_run(tmp_path, 0.5, target=target, optimizer="sam", lr_schedule=name, **common)
    for page in visit(browser, write(tmp_path, tmp_path / "page.html")):
        page.tab.get_by_label("learning rate", exact=True).check()
        page.tab.locator("#curves").scroll_into_view_if_needed()
        page.tab.wait_for_selector("#curves .chart[aria-label*='learning rate against steps']")
        assert page.tab.locator("#curves .panel").count() == 1
        assert page.tab.locator("#curves .line").count() == 2
        assert page.tab.get_by_label("rho", exact=True).count() == 0


def test_bars_have_the_lengths_of_the_means(opened: Page) -> None:
    choose(opened, "data", "nowhere")
    bars = opened.tab.locator("#bars .panel:last-child .bar")
    widths = [float(bar.get_attribute("width")) for bar in bars.all()]
    means = [float(text.split(" ±")[0]) for text in opened.texts("#bars .panel:last-child .value")]
    assert len(means) >= 3
    for width, mean in zip(widths, means, strict=True):
        assert width / widths[0] == pytest.approx(mean / means[0], abs=2e-3)


def test_hyperparameters(opened: Page) -> None:
    heat = opened.tab.locator("#sweeps .heat")
    assert heat.count() == 1
    assert heat.locator("td").all_text_contents() == ["41.0± 0.0", "43.0± 0.0", "51.0± 0.0", "53.0 best± 0.0"]
    assert heat.locator("tbody th").all_text_contents() == ["0.1", "0.2"]
    assert "40.1 at 0.01, 45.0 at 0.5" in opened.tab.locator("#sweeps svg.chart").get_attribute("aria-label")


def test_points_of_a_sweep_are_averaged_over_the_targets_that_all_have(browser: Any, tmp_path: Path) -> None:
    for rho, target, accuracy in ((0.01, "a", 0.5), (0.5, "a", 0.6), (0.5, "b", 0.9)):
        settings = {"optimizer_settings": {"rho": rho}}
        write_run(
            tmp_path, accuracy, target=target, optimizer="sam", data="nowhere", domains=["a", "b", "c"], **settings
        )
    for page in visit(browser, write(tmp_path, tmp_path / "page.html")):
        label = page.tab.locator("#sweeps svg.chart").get_attribute("aria-label")
        assert "50.0 at 0.01, 60.0 at 0.5" in label
        assert "Mean over a: the other targets are incomplete." in page.texts("#sweeps p.small")


def test_measurements(opened: Page) -> None:
    assert opened.tab.evaluate("window.Plotly") is None
    assert opened.tab.locator("#surfaces [data-drawn]").count() == 0
    assert opened.tab.locator("#curvature-table .mean").all_text_contents() == ["0.003"]
    assert opened.tab.locator("#curvature-table .runs").all_text_contents() == ["-0.003"]
    opened.tab.locator("#surfaces").scroll_into_view_if_needed()
    opened.tab.wait_for_selector("#surfaces [data-drawn=solid] canvas", timeout=20_000)
    assert "1 point not finite" in opened.tab.inner_text("#surfaces")


def test_surfaces_without_plotly_are_flat(browser: Any, flat: Path) -> None:
    for page in visit(browser, flat):
        page.tab.locator("#surfaces").scroll_into_view_if_needed()
        page.tab.wait_for_selector("#surfaces [data-drawn=flat] canvas")
        assert "mecam[report]" in page.tab.inner_text("#note-list")
        assert page.complaints == []


def test_figures_of_the_paper(opened: Page) -> None:
    shown = opened.texts("#figure-list figcaption")
    assert [words.partition(".")[0] for words in shown] == [
        "Figure 1", "Figure 2", "Figure 3", "Figure 4", "Supplementary Figure I(a)", "Supplementary Figure I(b)",
    ]  # fmt: skip
    images = opened.tab.locator("#figure-list img")
    widths = images.evaluate_all("images => Promise.all(images.map((i) => i.decode().then(() => i.naturalWidth)))")
    assert len(widths) == 3
    assert min(widths) > 300
    # what the page draws itself is not drawn twice
    hrefs = opened.tab.locator("#figure-list a").evaluate_all("links => links.map((link) => link.hash)")
    assert hrefs == ["#landscape", "#settings", "#settings"]
    assert opened.tab.locator("#figures-absent").is_hidden()


def test_figures_that_are_missing_have_their_commands(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path, 0.5, target="a", data="nowhere", domains=["a", "b"])
    for page in visit(browser, write(tmp_path, tmp_path / "page.html")):
        page.tab.locator("#figures-absent summary").click()
        assert [words for words in page.texts("#figures-absent code") if "rho" in words] == [
            f"mecam bench recipes/figure_rho.toml --out {tmp_path}"
        ]
        assert len(page.texts("#figures-absent li")) == 3


def test_one_run(opened: Page, out: Path) -> None:
    """The run that was really trained: its predictions, images, command."""
    choose(opened, "data", "shapes")
    opened.tab.locator("#board .open").first.click()
    opened.tab.get_by_role("button", name="Recipe and mistakes of shapes-art").click()
    folder = RunFolder(next(out.glob("shapes-art-*")))
    columns = folder.read_predictions()
    matrix = torch.zeros(7, 7, dtype=torch.int64)
    matrix.index_put_((columns["label"], columns["predicted"]), torch.tensor(1), accumulate=True)
    shown = [int(text) for text in opened.texts(".confusion td:not(.share)")]
    assert shown == matrix.flatten().tolist()
    wrong = columns["confidence"][columns["label"] != columns["predicted"]]
    assert f"{100 * wrong.max():.0f} % sure" in opened.texts(".mistakes li")[0]
    opened.tab.locator(".mistakes img").last.scroll_into_view_if_needed()
    opened.tab.wait_for_function("[...document.querySelectorAll('.mistakes img')].every((i) => i.naturalWidth === 32)")
    assert opened.tab.locator("#samples img").count() == 4 * 7
    assert opened.texts("#run pre")[0] == command(results.read(out)[0][-2].recipe)
    assert opened.tab.evaluate("document.activeElement.id") == "run-title"


def test_what_is_wrong_is_reported(opened: Page) -> None:
    notes = opened.tab.inner_text("#note-list")
    assert "shapes-photo" in notes
    assert "records.jsonl is damaged" in notes
    assert "No images: " in opened.tab.inner_text("#sample-sets")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone(browser: Any, flat: Path, scheme: str, tmp_path: Path) -> None:
    for page in visit(browser, flat, viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True):
        choose(page, "data", "nowhere")
        page.tab.locator("#board .open").first.click()
        scroll_through(page)
        assert page.overflow() == 0
        page.tab.screenshot(path=tmp_path / f"{scheme}.png")
        ink, paper = page.tab.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        assert contrast(ink, paper) > 7
        muted = page.tab.evaluate("getComputedStyle(document.querySelector('.muted')).color")
        assert contrast(muted, paper) > 4.5


CUT = """[...document.querySelectorAll('.scroll')].filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth)
    .map((e) => e.innerText)"""


def test_no_column_is_cut_on_a_phone(browser: Any, flat: Path) -> None:
    for page in visit(browser, flat, viewport={"width": 390, "height": 844}, has_touch=True):
        choose(page, "data", "nowhere")
        page.tab.locator("#board .open").first.click()
        page.tab.locator("#curve-numbers summary").click()
        scroll_through(page)
        assert page.tab.evaluate(CUT) == []
        assert page.overflow() == 0
        cell = page.tab.locator("#board tbody:first-of-type tr:first-child td").first
        assert cell.evaluate("e => getComputedStyle(e, '::before').content") == json.dumps(min(DOMAINS))


def test_the_page_of_one_run_fits_a_phone(browser: Any, tmp_path: Path) -> None:
    classes = [f"a class with a long name {number}" for number in range(12)]
    wrong = [(label, (label + 1) % 12, 0.5) for label in range(12)]
    run = write_run(tmp_path, 0.5, target="a", data="nowhere", domains=["a", "b"], predicted=wrong, classes=classes)
    (run.path / "verdict.json").write_bytes(seal({"lines": ["expected accuracy: 50 %", "weakest class: one"]}))
    file = write(run.path, tmp_path / "page.html")
    for page in visit(browser, file, viewport={"width": 390, "height": 844}):
        assert page.tab.evaluate(CUT) == []
        assert page.overflow() == 0
        assert page.texts("strong") == ["expected accuracy: 50 %"]
        page.tab.get_by_role("link", name="1", exact=True).first.click()
        assert page.tab.evaluate("location.hash") == "#confusion-0-1"
        assert {"unseen, scored", "unseen, not scored"} <= set(page.texts("td"))
        assert page.complaints == []
    for page in visit(browser, file):
        assert page.tab.locator(".matrix").is_visible()
        assert page.tab.locator(".calibration circle").count() == 1


def test_a_confusion_shows_its_mistakes(browser: Any, tmp_path: Path) -> None:
    wrong = [(0, 1, 0.50 + 0.001 * number) for number in range(12)] + [(1, 2, 0.3), (2, 2, 0.9)]
    for target in ("a", "b"):
        write_run(tmp_path, 0.1, target=target, data="nowhere", domains=["a", "b"], predicted=wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mecam.report.images.MISTAKES", 10)
        file = write(tmp_path, tmp_path / "page.html")
    for page in visit(browser, file):
        assert page.texts(".mistakes li strong") == [CLASSES[1]] * 8
        page.tab.get_by_role("button", name="Show all 10").click()
        assert len(page.texts(".mistakes li")) == 10
        page.tab.get_by_role("button", name=f"{CLASSES[0]} taken for {CLASSES[1]}: 12 images").click()
        assert (
            page.tab.evaluate("document.activeElement.textContent") == f"{CLASSES[0]} taken for {CLASSES[1]}: 12 images"
        )
        assert len(page.texts(".mistakes li")) == 10
        assert "2 less confident ones left out of this page." in page.texts("#run-view p.small")
        page.tab.get_by_role("button", name=f"{CLASSES[1]} taken for {CLASSES[2]}: 1 image").click()
        assert page.texts(".mistakes li") == []
        assert "1 less confident one left out of this page." in page.texts("#run-view p.small")
        page.tab.get_by_role("button", name="Back to the most confident mistakes").click()
        assert len(page.texts(".mistakes li")) == 8
        assert page.tab.locator(".calibration circle").count() == 3
        assert "14 images of a, the 50 % of the images that are scored." in page.tab.inner_text(".confusion caption")
        assert page.complaints == []


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it, of two rgb() colours."""

    def luminance(colour: str) -> float:
        shares = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_controls_have_names(opened: Page) -> None:
    nameless = """[...document.querySelectorAll('button, input, select, img, svg[role=img], canvas')].filter((e) =>
        e.checkVisibility() && !(e.getAttribute('aria-label') || e.alt || e.innerText?.trim() ||
        e.labels?.[0]?.innerText.trim())).map((e) => e.outerHTML)"""
    assert opened.tab.evaluate(nameless) == []


def test_a_folder_without_runs(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(RunError, match=r"there is no run in .*none; give the --out of mecam bench or mecam train"):
        write(tmp_path / "none", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    (tmp_path / "page.html").write_text(render(gather(tmp_path / "none", title="none")), encoding="utf-8")
    for page in visit(browser, tmp_path / "page.html"):
        assert "no run with an unseen domain" in page.tab.inner_text("#notes")
        assert page.complaints == []


def test_a_thousand_runs(browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    out.mkdir()
    domains = ["art", "cartoon", "photo", "sketch"]
    first = write_run(out, 0.5, domains=domains, evaluations=51, predicted=WRONG * 20, target="art")
    base, result = first.read_run(), first.read_result()
    shared = ("records.jsonl", "model.safetensors", "predictions.safetensors")
    checksums = {name: digest((first.path / name).read_bytes()) for name in shared}
    for number in range(999):
        settings = {"rho": 0.001 * (number // 8 + 1)}
        values = {
            "target": domains[number % 4],
            "seed": number // 4 % 2,
            "optimizer": "sam",
            "optimizer_settings": settings,
        }
        recipe = Recipe(**values)
        folder = out / recipe.run_id
        folder.mkdir()
        run = seal({**base, "id": recipe.run_id, "recipe": recipe.to_dict()})
        reached = {**result, "target_accuracy": 0.3 + 0.0005 * number}
        (folder / "run.json").write_bytes(run)
        (folder / "done.json").write_bytes(seal({"result": reached, "sha256": {**checksums, "run.json": digest(run)}}))
        for name in shared:
            os.link(first.path / name, folder / name)
    file = write(out, tmp_path / "page.html")
    assert file.stat().st_size < 15_000_000
    for page in visit(browser, file):
        assert len(page.names()) == 126
        timing = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        assert page.tab.evaluate(timing) < 5000  # 2 s on an idle machine; tests run beside others
        assert page.complaints == []
