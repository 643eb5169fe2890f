"""Show the files of benchmarks/results on the site, and lead there from the pages that name them."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(RESULTS.iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolve paths as they are in the repository to pages of the site."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri.startswith("results/"):
        return markdown.replace("](../../docs/", f"]({up}")
    markdown = markdown.replace("[benchmarks/results](../benchmarks/results/)", "`benchmarks/results`")
    if page.file.src_uri == "measured.md":
        markdown = f"{markdown}\n{listed()}\n"
    markdown = re.sub(r"\]\((?:\.\./)+benchmarks/results/", f"]({up}results/", markdown)
    return re.sub(r"(?<!\[)`benchmarks/results/([\w.-]+)`", rf"[`benchmarks/results/\1`]({up}results/\1)", markdown)


def listed() -> str:
    """A link to each page of results, by its heading."""
    headings = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(RESULTS.glob("*.md"))}
    return "\n".join(f"- [{heading.removeprefix('# ')}](results/{name})" for name, heading in headings.items())
