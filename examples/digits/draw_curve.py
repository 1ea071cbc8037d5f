"""Draws the loss of a run, and its evaluations, from the log of `espalier run --log`. Standard library only.

    python examples/digits/draw_curve.py log.jsonl -o curve.svg
"""

import argparse
import json
import math
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 56, 56, 44, 40
TRAINED, EVALUATED, OUTPUT, GRID, TEXT = "#9ab8d6", "#1f5f99", "#c0632b", "#e3e3e3", "#444444"
CHECKPOINT = "#5a8f3c"


def read(log):
    """Steps, evaluations and checkpoints; of what was done twice after a resume, the later."""
    kinds = {"step": {}, "evaluation": {}, "checkpoint": {}}
    for line in log.read_text().splitlines():
        row = json.loads(line)
        if row["event"] in kinds:
            kinds[row["event"]][row["step"]] = row
    return [[rows[step] for step in sorted(rows)] for rows in kinds.values()]


def ticks(low, high, count=5):
    unit = 10 ** math.floor(math.log10((high - low) / count))
    unit *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (unit * factor) <= count)
    first = math.ceil(low / unit)
    return [round(i * unit, 10) for i in range(first, math.floor(high / unit) + 1)]


class Canvas:
    def __init__(self, title):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
                      f'font-size="12" fill="{TEXT}">',
                      f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
                      f'<text x="{LEFT}" y="20" font-size="14">{title}</text>']

    def line(self, points, colour, width=1.6, dash=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"'
                          + (f' stroke-dasharray="{dash}"' if dash else "") + "/>")

    def dots(self, points, colour):
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>' for x, y in points]

    def text(self, x, y, text, anchor="middle", colour=TEXT):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>')

    def write(self, path):
        path.write_text("\n".join([*self.parts, "</svg>", ""]))


def draw(steps, evaluations, checkpoints, title, path):
    last = max(row["step"] for row in steps)
    high = 1.05 * max(row["loss"] for row in [*steps, *evaluations])
    bottom = HEIGHT - BOTTOM

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value, top=high, low=0.0):
        return bottom - (bottom - TOP) * (value - low) / (top - low)

    canvas = Canvas(title)
    for value in ticks(0, high):
        canvas.line([(LEFT, y(value)), (WIDTH - RIGHT, y(value))], GRID, 1)
        canvas.text(LEFT - 6, y(value) + 4, f"{value:g}", "end")
    for step in ticks(0, last, 8):
        canvas.text(x(step), bottom + 16, f"{step:g}")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "step")
    for row in checkpoints:
        canvas.line([(x(row["step"]), bottom - 7), (x(row["step"]), bottom)], CHECKPOINT, 3)
    canvas.line([(x(row["step"]), y(row["loss"])) for row in steps], TRAINED, 1.1)
    legend = [("loss of each batch", TRAINED)]
    if evaluations:
        points = [(x(row["step"]), y(row["loss"])) for row in evaluations]
        canvas.line(points, EVALUATED)
        canvas.dots(points, EVALUATED)
        legend.append(("loss on held-out data", EVALUATED))
        for name in evaluations[0].get("outputs", {}):
            points = [(x(row["step"]), y(row["outputs"][name], 1.0)) for row in evaluations]
            canvas.line(points, OUTPUT)
            canvas.dots(points, OUTPUT)
            legend.append((f"{name} on it (right)", OUTPUT))
            for value in (0, 0.25, 0.5, 0.75, 1):
                canvas.text(WIDTH - RIGHT + 6, y(value, 1.0) + 4, f"{value:g}", "start", OUTPUT)
    if checkpoints:
        legend.append(("checkpoint", CHECKPOINT))
    for i, (name, colour) in enumerate(legend):
        canvas.line([(LEFT + 170 * i, TOP - 12), (LEFT + 170 * i + 18, TOP - 12)], colour, 2)
        canvas.text(LEFT + 170 * i + 24, TOP - 8, name, "start", colour)
    canvas.write(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the loss of a run, and its evaluations.")
    parser.add_argument("log", type=Path, help="what `espalier run --log` wrote")
    parser.add_argument("-o", "--output", type=Path, default=Path("curve.svg"), metavar="FILE")
    parser.add_argument("--title", default="Digits, three branches on two workers")
    arguments = parser.parse_args()
    rows = read(arguments.log)
    if not rows[0]:
        parser.error(f"{arguments.log}: has no steps")
    draw(*rows, arguments.title, arguments.output)
    print(f"wrote {arguments.output}")
