"""Draw rooms.svg of docs/architecture.md from the import graph: `python docs/pictures/rooms.py`.

Rows are the layers in pyproject.toml. An arrow is a direct import. Imports that follow from others are left out, and
so are those of the bottom row, which every room may import.
"""

import tomllib
from pathlib import Path

import grimp

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WIDTH, ROW, BOX_WIDTH, BOX_HEIGHT = 920, 76, 112, 34
STYLE = """
  .room { fill: #eef3f9; stroke: #3b6ea8; stroke-width: 1.5 }
  .name { font-weight: 600; text-anchor: middle; fill: #1c1c1c }
  .import { stroke: #7d93ad; stroke-width: 1.2; fill: none; marker-end: url(#tip) }
"""


def layers() -> list[list[str]]:
    """Return the rooms of each layer, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = next(contract for contract in contracts if contract["type"] == "layers")
    return [[room.strip() for room in layer.split("|")] for layer in layered["layers"]]


def imports(rooms: list[str]) -> dict[str, set[str]]:
    """Return the rooms that each room imports directly."""
    graph = grimp.build_graph("mecam", exclude_type_checking_imports=True)
    direct: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = (name.split(".")[1] if "." in name else "" for name in (module, imported))
            if here in direct and there in direct and here != there:
                direct[here].add(there)
    return direct


def essential(direct: dict[str, set[str]], order: list[str]) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others; imports against the layers are left out."""
    depth = {room: number for number, room in enumerate(order)}
    down = {room: {other for other in others if depth[other] > depth[room]} for room, others in direct.items()}
    below: dict[str, set[str]] = {}
    for room in reversed(order):
        below[room] = down[room].union(*(below[other] for other in down[room]))
    return [
        (room, other)
        for room in order
        for other in sorted(down[room])
        if not any(other in below[between] for between in down[room])
    ]


def draw() -> str:
    rows = layers()
    order = [room for row in rows for room in row]
    half = (len(rows[-1]) + 1) // 2
    drawn = [*rows[:-1], rows[-1][:half], rows[-1][half:]]  # the bottom row is too long for one line
    place = {
        room: (WIDTH * (number + 1) / (len(row) + 1), ROW * index + 40)
        for index, row in enumerate(drawn)
        for number, room in enumerate(row)
    }
    height = ROW * len(drawn) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title" '
        'font-family="system-ui, sans-serif" font-size="14">',
        '<title id="title">The packages of mecam, from the command line down, and which imports which</title>',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 10 5 0 10z" fill="#7d93ad"/></marker><style>{STYLE}</style></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for upper, lower in essential(imports(order), order):
        if lower in rows[-1]:
            continue
        (x, y), (end_x, end_y) = place[upper], place[lower]
        start, end = y + BOX_HEIGHT / 2, end_y - BOX_HEIGHT / 2
        middle = (start + end) / 2
        curve = f"M{x:.0f} {start:.0f}C{x:.0f} {middle:.0f} {end_x:.0f} {middle:.0f} {end_x:.0f} {end:.0f}"
        lines.append(f'<path class="import" d="{curve}"/>')
    for room, (x, y) in place.items():
        width = max(BOX_WIDTH, 9 * len(room))
        left, top = x - width / 2, y - BOX_HEIGHT / 2
        lines.append(
            f'<rect class="room" x="{left:.0f}" y="{top:.0f}" width="{width}" height="{BOX_HEIGHT}" rx="6"/>'
            f'<text class="name" x="{x:.0f}" y="{y + 5:.0f}">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(draw(), encoding="utf-8")
