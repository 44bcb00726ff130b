"""`make pictures`: docs/diagram.svg, a spec that becomes a bundle, and the bundle's start on each tier.

The files in the picture are those of real bundles. Its colours are readable on a light page and on a dark one, and its
letters on a phone. `--check` fails if the file is not current.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/diagram.svg"

# For each tier: the file of the bundle that starts the job, the tier, the program that starts it there, the machines.
TIERS = [
    ("local.sh", "local", "torchrun", "this machine"),
    ("hosts/", "hosts", "ssh", "your machines"),
    ("slurm.sbatch", "slurm", "sbatch", "a cluster"),
    ("sky.yaml", "sky", "SkyPilot", "spot machines"),
]
FOR_ALL = [("train/", "the training"), ("code/", "your files"), ("bundle.json", "hashes")]

WIDTH, HEIGHT, GAP = 640, 464, 12
TIER_WIDTH = (WIDTH - 3 * GAP) / 4
STYLE = """\
text { font: 17px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #fff }
text.title { font-weight: 600; font-size: 19px }
.file { font: 16px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
text.middle { text-anchor: middle }
text.outside { fill: #7d8590 }
rect.end { fill: #4a5568 } rect.bundle { fill: #34489c } rect.file-box { fill: #5468bd } rect.tier { fill: #0b6b63 }
.arrow { stroke: #7d8590; stroke-width: 2.5; fill: none; marker-end: url(#tip) }"""

ARROW_HEAD = """\
<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#7d8590"/></marker>"""


def main() -> int:
    missing = {name.rstrip("/") for name, *_ in (*TIERS, *FOR_ALL)} - names_of_bundles()
    if missing:
        sys.exit(f"no bundle has {', '.join(sorted(missing))}; correct tools/diagram.py")
    drawn = "\n".join(picture()) + "\n"
    if "--check" in sys.argv:
        return int(PICTURE.read_text() != drawn)
    PICTURE.write_text(drawn)
    return 0


def names_of_bundles() -> set[str]:
    """Return the names in two bundles: one for all tiers, and one with code of the user."""
    names = set()
    for spec in ("gpt", "own_model"):
        with tempfile.TemporaryDirectory() as place:
            words = ["render", f"examples/{spec}.yaml", "--target", "all", "-o", f"{place}/bundle"]
            command = [sys.executable, "-m", "ddpgen", *words]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            names |= {path.name for path in Path(place, "bundle").iterdir()}
    return names


def picture() -> list[str]:
    """Return the lines of the SVG, from the top of the picture downwards."""
    middle = WIDTH / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<style>\n{STYLE}\n</style>",
        ARROW_HEAD,
        box("end", 170, 0, 300, 40),
        text(middle, 26, "one job spec, gpt.yaml", "title middle"),
        arrow(middle, 40, 76),
        text(middle + 16, 65, "ddpgen render", "file outside"),
        box("bundle", 0, 80, WIDTH, 152),
        text(middle, 108, "one bundle, build/gpt/", "title middle"),
    ]
    for x, (name, content) in zip((16, 226, 436), FOR_ALL, strict=True):
        lines.append(f'<text x="{x}" y="140"><tspan class="file">{name}</tspan> {content}</text>')
    lines.append(text(16, 171, "and the start on each tier:"))
    for i, (name, tier, way, machines) in enumerate(TIERS):
        left = i * (TIER_WIDTH + GAP)
        x = left + TIER_WIDTH / 2
        lines += [
            box("file-box", left + 8, 182, TIER_WIDTH - 16, 38),
            text(x, 206, name, "file middle"),
            arrow(x, 220, 268),
            box("tier", left, 272, TIER_WIDTH, 90),
            text(x, 298, tier, "title middle"),
            text(x, 324, way, "middle"),
            text(x, 348, machines, "middle"),
            arrow(x, 362, 396),
        ]
    lines += [
        box("end", 0, 400, WIDTH, 64),
        text(middle, 427, "the same weights, to the bit", "title middle"),
        text(middle, 452, "on any number of processes, after any kill", "middle"),
        "</svg>",
    ]
    return lines


def box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{words}</text>'


def arrow(x: float, top: float, bottom: float) -> str:
    return f'<path class="arrow" d="M{x:g} {top:g}V{bottom:g}"/>'


if __name__ == "__main__":
    sys.exit(main())
