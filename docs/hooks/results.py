"""Show the files of benchmarks/results on the site, and lead there from the pages that name them."""

import csv
import io
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(RESULTS.iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
        if tables := raw_numbers(path):
            files.append(File.generated(config, f"results/{path.stem}.csv", content=tables))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve paths as they are in the repository to pages of the site."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri.startswith("results/"):
        path = RESULTS / Path(page.file.src_uri).name
        link = f"\n[The tables of this page as CSV]({path.stem}.csv)\n" if raw_numbers(path) else ""
        return markdown.replace("](../../docs/", f"]({up}") + link
    markdown = markdown.replace("[benchmarks/results](../benchmarks/results/)", "`benchmarks/results`")
    if page.file.src_uri == "measured.md":
        markdown = f"{markdown}\n{listed()}\n"
    markdown = re.sub(r"\]\((?:\.\./)+benchmarks/results/", f"]({up}results/", markdown)
    return re.sub(r"(?<!\[)`benchmarks/results/([\w.-]+)`", rf"[`benchmarks/results/\1`]({up}results/\1)", markdown)


def listed() -> str:
    """A link to each page of results, by its heading."""
    headings = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(RESULTS.glob("*.md"))}
    return "\n".join(f"- [{heading.removeprefix('# ')}](results/{name})" for name, heading in headings.items())


def raw_numbers(path: Path) -> str:
    """The tables of a page as CSV, an empty line between two; "" for a page that links its own numbers."""
    markdown = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
    if re.search(r"\]\([\w-]+\.(csv|json)\)", markdown):
        return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for table in re.findall(r"(?:^\|.*\n)+", f"{markdown}\n", flags=re.M):
        rows = [[cell.strip(" *`") for cell in line.strip("|").split("|")] for line in table.splitlines()]
        writer.writerows([rows[0], *rows[2:], []])
    return out.getvalue()
