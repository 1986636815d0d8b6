"""A page with a globe to turn: one file, nothing is fetched from elsewhere."""

import base64
import html

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ margin: 0; font: 16px system-ui, sans-serif; background: #111; color: #ddd; text-align: center; }}
canvas {{ touch-action: none; cursor: grab; width: min(560px, 92vmin); }}
.bar {{ display: inline-block; width: 12em; height: .7em; margin: 0 .6em;
  background: linear-gradient(to right, #440154, #482878, #3e4a89, #31688e,
    #26828e, #1f9e89, #35b779, #6ece58, #b5de2b, #fde725); }}
</style></head><body>
<h1 style="font-size: 1.1em">{title}</h1>
<canvas id="globe" width="560" height="560" tabindex="0"
  aria-label="A globe: drag it, or turn it by the arrow keys"></canvas>
<p>{low}<span class="bar"></span>{high} times the uniform density (logarithmic)</p>
<p>{caption}</p><p>Drag the globe, or turn it by the arrow keys.</p>
<img id="map" alt="" style="display: none" src="data:image/png;base64,{picture}">
<script>
const canvas = document.getElementById("globe"), pen = canvas.getContext("2d");
const dense = Math.min(3, window.devicePixelRatio || 1);
canvas.width = canvas.height = Math.round(560 * dense);
const size = canvas.width, half = size / 2, radius = half - 4;
const map = document.getElementById("map");
let turn = {longitude}, tilt = {latitude}, texture = null, width = 0, height = 0;
function load() {{
  const sheet = document.createElement("canvas");
  width = sheet.width = map.naturalWidth; height = sheet.height = map.naturalHeight;
  const brush = sheet.getContext("2d");
  brush.drawImage(map, 0, 0);
  texture = brush.getImageData(0, 0, width, height).data;
  draw();
}}
function draw() {{
  if (!texture) return;
  const image = pen.createImageData(size, size), out = image.data;
  const s = Math.sin(tilt), c = Math.cos(tilt);
  for (let j = 0; j < size; j++) for (let i = 0; i < size; i++) {{
    const x = (i - half) / radius, y = (half - j) / radius, rest = 1 - x * x - y * y;
    if (rest < 0) continue;
    const z = Math.sqrt(rest), up = y * c + z * s, ahead = z * c - y * s;
    const lon = turn + Math.atan2(x, ahead), lat = Math.asin(Math.max(-1, Math.min(1, up)));
    const part = lon / (2 * Math.PI) + 0.5;
    const across = (part - Math.floor(part)) * width - 0.5, down = (0.5 - lat / Math.PI) * height - 0.5;
    const left = Math.floor(across), top = Math.floor(down), u = across - left, v = down - top;
    const columns = [(left + width) % width, (left + 1) % width];
    const rows = [Math.max(0, top), Math.min(height - 1, top + 1)], to = 4 * (j * size + i);
    for (let k = 0; k < 4; k++) {{
      const at = (r, q) => texture[4 * (rows[r] * width + columns[q]) + k];
      out[to + k] = (1 - v) * ((1 - u) * at(0, 0) + u * at(0, 1)) + v * ((1 - u) * at(1, 0) + u * at(1, 1));
    }}
  }}
  pen.putImageData(image, 0, 0);
}}
function move(dx, dy) {{
  turn -= dx; tilt = Math.max(-1.57, Math.min(1.57, tilt + dy));
  requestAnimationFrame(draw);
}}
canvas.addEventListener("pointerdown", e => canvas.setPointerCapture(e.pointerId));
canvas.addEventListener("pointermove", e => {{
  if (e.buttons) move(2 * e.movementX / canvas.clientWidth, 2 * e.movementY / canvas.clientWidth);
}});
canvas.addEventListener("keydown", e => {{
  const steps = {{ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1]}};
  const step = steps[e.key];
  if (step) {{ e.preventDefault(); move(...step); }}
}});
if (map.complete) load(); else map.onload = load;
</script></body></html>
"""


def page(
    picture: bytes,
    *,
    title: str,
    caption: str,
    centre: tuple[float, float],
    ends: tuple[float, float],
) -> str:
    """The page around a map: a PNG of longitudes (-180 to 180) by latitudes (90 to -90).

    `centre` is the longitude and latitude, in radians, that is seen first; `ends` are
    the densities at both ends of the colours.
    """
    return _PAGE.format(
        title=html.escape(title),
        caption=html.escape(caption),
        picture=base64.b64encode(picture).decode(),
        low=f"{ends[0]:.2g}",
        high=f"{ends[1]:.3g}",
        longitude=f"{centre[0]:.4f}",
        latitude=f"{centre[1]:.4f}",
    )
