"""Spheres to turn: a canvas for each density, and the script that draws them."""

import functools
import html
import json
import pathlib
from typing import Any

# of the scale, where numbers stand
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_SCRIPT = pathlib.Path(__file__).with_name("sphere.js")


@functools.cache
def script() -> str:
    """What turns the spheres."""
    return _SCRIPT.read_text()


def globes(data: dict[str, Any]) -> str:
    """The spheres with their scale, and a slider where there are several frames."""
    figures = "".join(_globe(found["name"]) for found in data["maps"])
    slider = ""
    if len(data["labels"]) > 1:
        last = len(data["labels"]) - 1
        slider = (
            '<p class="slider"><label for="sphere-layer">layers of the flow</label>'
            f'<input id="sphere-layer" type="range" min="0" max="{last}" value="{last}">'
            f'<output id="sphere-named">{html.escape(data["labels"][-1])}</output></p>'
        )
    numbers = "".join(f"<span>{share * data['top']:.3g}</span>" for share in _SHARES)
    scale = (
        '<div class="scale"><canvas id="sphere-bar" width="256" height="12"></canvas>'
        f'<p class="numbers">{numbers}</p><p>times the uniform density</p></div>'
    )
    # "</" would end the block: JSON may escape the slash
    stored = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    block = f'<script type="application/json" id="sphere-data">{stored}</script>'
    return f'<div class="globes">{figures}</div>{slider}{scale}{block}'


def _globe(name: str) -> str:
    words = html.escape(name)
    canvas = f'<canvas class="globe" width="480" height="480" tabindex="0" aria-label="{words}"></canvas>'
    return f"<figure>{canvas}<figcaption>{words}</figcaption></figure>"
