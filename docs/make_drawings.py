"""Draw the four figures of docs/how.md as SVG: python docs/make_drawings.py"""

from __future__ import annotations

import random
from pathlib import Path

HERE = Path(__file__).with_name("_static")
RED, BLUE, INK, SOFT, FILL, GOLD = "#c0392b", "#2c6fbb", "#222", "#777", "#f3f1ec", "#e8b84a"
HEADS = {INK: "ink", RED: "red", BLUE: "blue", SOFT: "soft"}


class Drawing:
    """Shapes on a white background, written as one SVG file."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.shapes: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 14,
        fill: str = INK,
        anchor: str = "middle",
        style: str = "",
    ) -> None:
        place = f'x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        self.shapes.append(f'<text {place} style="{style}">{words}</text>')

    def title(self, x: float, y: float, words: str) -> None:
        self.text(x, y, words, style="font-weight:600")

    def symbol(self, x: float, y: float, words: str, anchor: str = "middle") -> None:
        self.text(x, y, words, 16, anchor=anchor, style="font-style:italic")

    def box(self, x: float, y: float, width: float, height: float, fill: str = FILL, edge: str = INK) -> None:
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{edge}"/>'
        )

    def labelled_box(
        self, x: float, y: float, width: float, height: float, name: str, below: str, fill: str = FILL
    ) -> None:
        self.box(x, y, width, height, fill)
        self.text(x + width / 2, y + height / 2 - 2, name, 15)
        self.text(x + width / 2, y + height / 2 + 16, below, 11, SOFT)

    def curve(self, path: str, colour: str = INK, width: float = 1.7, head: bool = True) -> None:
        end = f' marker-end="url(#{HEADS[colour]})"' if head else ""
        self.shapes.append(f'<path d="{path}" stroke="{colour}" stroke-width="{width}" fill="none"{end}/>')

    def circle(self, x: float, y: float, fill: str = "#fff") -> None:
        self.shapes.append(f'<circle cx="{x}" cy="{y}" r="15" fill="{fill}" stroke="{INK}"/>')

    def write(self, name: str, meaning: str) -> None:
        heads = "".join(
            f'<marker id="{head}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
            for colour, head in HEADS.items()
        )
        sheet = f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>'
        start = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'font-family="Helvetica, Arial, sans-serif" role="img"><title>{meaning}</title><defs>{heads}</defs>{sheet}'
        )
        (HERE / f"{name}.svg").write_text("\n".join([start, *self.shapes, "</svg>", ""]))


def draw_tape() -> None:
    sheet = Drawing(820, 290)
    sheet.title(155, 30, "the model, unmodified")
    sheet.title(590, 30, "the tape: its run on this input")
    sheet.box(14, 48, 284, 124, "#f7f7f7", "#ccc")
    lines = (
        "def forward(self, x):",
        "    y = F.relu(self.conv(x))",
        "    y += x",
        "    return self.head(y.mean((2, 3)))",
    )
    for number, line in enumerate(lines):
        style = "font-family:Menlo,Consolas,monospace;white-space:pre"
        sheet.text(24, 76 + number * 26, line, 12, anchor="start", style=style)
    sheet.curve("M306 112 L 344 112", SOFT)
    sheet.text(324, 102, "one run", 11, SOFT)
    steps = (("conv2d", "weights"), ("relu", "gate"), ("add", "sum"), ("mean", "sum"), ("linear", "weights"))
    for number, (name, kind) in enumerate(steps):
        left = 378 + number * 88
        sheet.labelled_box(left, 84, 72, 56, name, kind)
        if number:
            sheet.curve(f"M{left - 15} 112 L {left - 2} 112")
    sheet.symbol(358, 118, "x")
    sheet.curve("M365 113 L 376 113")
    sheet.curve("M360 126 C 380 200 560 200 588 143")
    sheet.text(475, 214, "the skip connection is an input of the step “add”, like any other", 12.5, SOFT)
    sheet.text(
        410,
        262,
        "Each step stores its tensors, so it can be replayed and frozen; it is named after its weights.",
    )
    sheet.write("tape", "The model runs once; every torch call on a live tensor becomes a step of the tape")


def draw_linear() -> None:
    sheet, chance = Drawing(820, 300), random.Random(4)
    sheet.title(205, 30, "a layer with a ReLU")
    sheet.title(615, 30, "the same layer, frozen at this input")
    links = [
        (i, j, RED if chance.random() > 0.45 else BLUE, 0.8 + 2.2 * chance.random())
        for i in range(3)
        for j in range(4)
    ]
    for left, frozen in ((100, False), (510, True)):
        below = [(left + 20, 85 + i * 55) for i in range(3)]
        above = [(left + 190, 66 + j * 50) for j in range(4)]
        for i, j, colour, width in links:
            if not (frozen and j == 1):
                (x, y), (u, v) = below[i], above[j]
                sheet.curve(f"M{x + 16} {y} L{u - 16} {v}", colour, width, head=False)
        for x, y in below:
            sheet.circle(x, y)
        for j, (x, y) in enumerate(above):
            sheet.circle(x, y, "#ddd" if frozen and j == 1 else "#fff")
            if frozen and j == 1:
                sheet.text(x, y + 5, "0", 13, SOFT)
        sheet.symbol(left + 20, 252, "a")
        sheet.symbol(left + 190, 252, "a′")
    sheet.curve("M345 140 L 470 140", SOFT)
    sheet.text(408, 130, "a rule", 13, SOFT)
    sheet.text(205, 284, "a′ = max(0, W a + b)", 15)
    sheet.text(615, 284, "J = diag(a′/z) ρ(W), a matrix", 15)
    sheet.write("linear", "At a fixed input a rule turns a layer into a constant matrix")


def draw_push_pull() -> None:
    sheet = Drawing(820, 330)
    sheet.title(410, 28, "one number, P[I, m], from both sides")
    places, heights = (70, 235, 390, 545, 700), (120, 96, 76, 60, 48)
    for number, (x, height) in enumerate(zip(places, heights, strict=True)):
        sheet.box(x - 16, 165 - height / 2, 32, height)
        if number:
            before, tall = places[number - 1], heights[number - 1]
            sheet.symbol((x + before) / 2, 171, f"J{'₁₂₃₄'[number - 1]}")
            top, bottom = (
                (165 - tall / 2 + 8, 165 - height / 2 + 4),
                (165 + height / 2 - 4, 165 + tall / 2 - 8),
            )
            sheet.curve(f"M{before + 20} {top[0]} C {before + 60} 92 {x - 60} 92 {x - 20} {top[1]}", RED)
            sheet.curve(
                f"M{x - 20} {bottom[0]} C {x - 60} 238 {before + 60} 238 {before + 20} {bottom[1]}", BLUE
            )
    sheet.box(54, 128, 32, 22, GOLD)
    sheet.symbol(44, 145, "I", anchor="end")
    sheet.box(684, 172, 32, 9, GOLD)
    sheet.symbol(724, 183, "m", anchor="start")
    sheet.text(70, 252, "input", 13, SOFT)
    sheet.text(700, 214, "embedding", 13, SOFT)
    sheet.text(390, 66, "push: s ← J s, once for each region I", 15, RED)
    sheet.text(390, 272, "pull: c ← Jᵀ c, once for each coordinate m", 15, BLUE)
    sheet.text(410, 312, "256 regions instead of 8192 coordinates: the same result for 1/32 of the work")
    sheet.write("push_pull", "Pushing a region forward and pulling a coordinate back give the same part")


def draw_plan() -> None:
    sheet, left = Drawing(820, 300), 70
    sheet.title(410, 28, "the plan: the cheapest schedule; every schedule is exact")
    stages = (
        ("push_windowed", "windows around regions", "#fbe3d0"), ("push_sparse", "active neurons only", "#fdf1cf"),
        ("push_dense", "full tensors", "#e6f0dc"), ("pull_dense", "coordinates, from the output", "#dbe8f5"),
    )  # fmt: skip
    for name, below, fill in stages:
        sheet.labelled_box(left, 70, 158, 70, name, below, fill)
        left += 168
    sheet.symbol(56, 110, "x", anchor="end")
    sheet.symbol(left, 110, "φ(x)", anchor="start")
    sheet.curve("M70 176 L 560 176", RED, 2.2)
    sheet.text(315, 198, "regions are pushed", 13, RED)
    sheet.curve("M732 176 L 580 176", BLUE, 2.2)
    sheet.text(662, 198, "coordinates are pulled", 13, BLUE)
    sheet.curve("M570 148 L 570 222", INK, 1.2, head=False)
    sheet.text(570, 244, "where they meet: P[I, m] = Σ s c", 14)
    sheet.text(
        410, 282, "VGG-16, layer 31, 128 px: all 8192 coordinates in the time of 7 forward passes", 13, SOFT
    )
    sheet.write(
        "plan",
        "Stages of a plan: push on windows, on active neurons and on full tensors, and pull from the other side",
    )


if __name__ == "__main__":
    for draw in (draw_tape, draw_linear, draw_push_pull, draw_plan):
        draw()
