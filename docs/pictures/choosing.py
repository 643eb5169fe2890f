"""Draws the pictures of docs/measured.md and docs/choosing.md: methods.svg, step_time.svg and accuracy_cost.svg.

python docs/pictures/choosing.py
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
mpl.rcParams["svg.hashsalt"] = "mecam"  # equal figures, equal bytes


def tables(file: Path) -> list[dict[str, list[str]]]:
    """Every table of a Markdown file: the cells after the first of each row, by the first; the heading is row ''."""
    found: list[dict[str, list[str]]] = []
    inside = False
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not inside:
                found.append({"": cells})
            elif not set(cells[0]) <= {"-", ":"}:
                found[-1][cells[0]] = cells[1:]
        inside = line.startswith("|")
    return found


def methods(path: Path) -> None:
    """Accuracy on the unseen style, with standard errors."""
    table = next(each for each in tables(RESULTS / "methods.md") if "unseen domain" in each[""])
    column = table[""].index("unseen domain") - 1
    rows = [(name, *map(float, cells[column].split(" ± "))) for name, cells in table.items() if name]
    rows.sort(key=lambda row: row[1])
    figure = Figure(figsize=(7, 5.5), layout="constrained")
    axes = figure.add_subplot(xlabel="accuracy on sketch, not trained on: percent, mean ± standard error over 3 seeds")
    colours = ["tab:orange" if name == "erm" else "tab:blue" for name, *_ in rows]
    axes.barh([name for name, *_ in rows], [mean for _, mean, _ in rows], xerr=[e for *_, e in rows], color=colours)
    axes.tick_params(axis="y", labelsize=8)
    figure.savefig(path, metadata={"Date": None})


def step_time(path: Path) -> None:
    """Cost of a step of every optimizer, from the widest of the tables."""
    table = max((each for each in tables(RESULTS / "step_time.md") if "ratio" in each[""]), key=len)
    ratio, quartiles = (table[""].index(name) - 1 for name in ("ratio", "quartiles"))
    rows = [
        (name, float(cells[ratio]), *map(float, cells[quartiles].split(" to ")))
        for name, cells in table.items()
        if name and "." not in name
    ]
    rows.sort(key=lambda row: -row[1])
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot(xlabel="steps of plain Adam: median and quartiles (H200, fused Adam, nonfinite=skip)")
    around = [[middle - low for _, middle, low, _ in rows], [high - middle for _, middle, _, high in rows]]
    axes.barh([name for name, *_ in rows], [row[1] for row in rows], xerr=around, color="tab:blue")
    axes.tick_params(axis="y", labelsize=8)
    figure.savefig(path, metadata={"Date": None})


def accuracy_cost(path: Path) -> None:
    """Accuracy on PACS against training time, from the table of docs/measured.md."""
    table = next(each for each in tables(HERE.parent / "measured.md") if "second half" in each[""])
    rows = [(name.replace("`", ""), float(cells[0]), float(cells[2])) for name, cells in table.items() if name]
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot(
        xlabel="training time, relative to Adam", ylabel="target accuracy on PACS, percent", xlim=(0.8, 3.9)
    )
    for name, accuracy, time in rows:
        if "--virtual" in name or "CORAL" in name:  # as MeCAM, within 0.3 points
            continue
        ours = name.startswith("mecam")
        axes.scatter(time, accuracy, color="tab:orange" if ours else "tab:blue")
        label = "mecam, late" if "start" in name else name
        below = -12 if "MixStyle" in name else 4
        axes.annotate(label, (time, accuracy), xytext=(6, below), textcoords="offset points", fontsize=8)
    axes.margins(y=0.12)
    figure.savefig(path, metadata={"Date": None})


def main(folder: Path = HERE) -> None:
    methods(folder / "methods.svg")
    step_time(folder / "step_time.svg")
    accuracy_cost(folder / "accuracy_cost.svg")


if __name__ == "__main__":
    main()
