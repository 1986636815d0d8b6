(() => {
  const data = JSON.parse(document.getElementById("sphere-data").textContent);
  const stops = ["440154", "482878", "3e4a89", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
    .map(h => [0, 2, 4].map(i => parseInt(h.slice(i, i + 2), 16)));
  const colours = new Uint8Array(768);
  for (let v = 0; v < 256; v++) {
    const x = v / 255 * (stops.length - 1), i = Math.min(stops.length - 2, x | 0);
    for (let c = 0; c < 3; c++) colours[3 * v + c] = stops[i][c] + (x - i) * (stops[i + 1][c] - stops[i][c]);
  }
  const unpack = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const globes = [...document.querySelectorAll("canvas.globe")].map((canvas, i) =>
    ({ canvas, frames: data.maps[i].frames.map(unpack) }));
  const slider = document.getElementById("sphere-layer"), named = document.getElementById("sphere-named");
  let yaw = data.yaw ?? -1, pitch = data.pitch ?? 0.35, waiting = false;

  function draw({ canvas, frames }) {
    const size = canvas.width, half = size / 2, radius = half - 2, pen = canvas.getContext("2d");
    const map = frames[Math.min(slider ? +slider.value : frames.length - 1, frames.length - 1)];
    const image = pen.createImageData(size, size), { rows, cols } = data;
    const cy = Math.cos(yaw), sy = Math.sin(yaw), cp = Math.cos(pitch), sp = Math.sin(pitch);
    for (let py = 0, at = 0; py < size; py++) for (let px = 0; px < size; px++, at += 4) {
      const a = (px + 0.5 - half) / radius, b = (half - py - 0.5) / radius, r = a * a + b * b;
      if (r > 1) continue;
      const d = Math.sqrt(1 - r), forward = cp * d - sp * b, z = sp * d + cp * b;
      const x = cy * forward - sy * a, y = sy * forward + cy * a;
      let v = (0.5 - Math.asin(Math.max(-1, Math.min(1, z))) / Math.PI) * rows - 0.5;
      let u = (Math.atan2(y, x) / (2 * Math.PI) + 0.5) * cols - 0.5;
      const i = Math.floor(v), j = Math.floor(u); v -= i; u -= j;
      const top = Math.max(0, i) * cols, low = Math.min(rows - 1, i + 1) * cols;
      const left = (j + cols) % cols, right = (j + 1) % cols;
      const value = (1 - v) * ((1 - u) * map[top + left] + u * map[top + right]) + v * ((1 - u) * map[low + left] + u * map[low + right]);
      const c = 3 * Math.round(value), shade = 0.72 + 0.28 * d;
      for (let k = 0; k < 3; k++) image.data[at + k] = colours[c + k] * shade;
      image.data[at + 3] = 255 * Math.min(1, (1 - Math.sqrt(r)) * radius);
    }
    pen.putImageData(image, 0, 0);
    const turn = (x, y, z) => {
      const forward = cy * x + sy * y, a = cy * y - sy * x;
      return [half + radius * a, half - radius * (cp * z - sp * forward), cp * forward + sp * z];
    };
    pen.strokeStyle = "rgba(255,255,255,.22)"; pen.lineWidth = size / 400;
    const ring = point => {
      pen.beginPath();
      for (let t = 0, down = false; t <= 72; t++) {
        const [a, b, d] = turn(...point(t * Math.PI / 36));
        if (d > 0) { down ? pen.lineTo(a, b) : pen.moveTo(a, b); } down = d > 0;
      }
      pen.stroke();
    };
    for (let k = 0; k < 6; k++) ring(t => [Math.cos(t) * Math.cos(k * Math.PI / 6), Math.cos(t) * Math.sin(k * Math.PI / 6), Math.sin(t)]);
    for (let k = -2; k < 3; k++) ring(t => [Math.cos(k * Math.PI / 6) * Math.cos(t), Math.cos(k * Math.PI / 6) * Math.sin(t), Math.sin(k * Math.PI / 6)]);
    pen.fillStyle = "rgba(255,255,255,.85)";
    for (let k = 0; k < data.points.length; k += 3) {
      const [a, b, d] = turn(data.points[k] / 1000, data.points[k + 1] / 1000, data.points[k + 2] / 1000);
      if (d > 0) pen.fillRect(a - size / 400, b - size / 400, size / 200, size / 200);
    }
  }
  const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; globes.forEach(draw); }); } };
  const move = (dx, dy) => { yaw -= dx; pitch = Math.max(-1.5, Math.min(1.5, pitch + dy)); redraw(); };
  for (const { canvas } of globes) {
    let from = null;
    canvas.addEventListener("pointerdown", e => { from = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", e => {
      if (!from) return;
      move((e.clientX - from[0]) / 110, (e.clientY - from[1]) / 110); from = [e.clientX, e.clientY];
    });
    canvas.addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("keydown", e => {
      const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[e.key];
      if (step) { e.preventDefault(); move(...step); }
    });
  }
  if (slider) slider.addEventListener("input", () => { named.textContent = data.labels[+slider.value]; redraw(); });
  const bar = document.getElementById("sphere-bar"), ink = bar.getContext("2d");
  for (let v = 0; v < 256; v++) { ink.fillStyle = `rgb(${colours[3 * v]},${colours[3 * v + 1]},${colours[3 * v + 2]})`; ink.fillRect(v, 0, 1, 12); }
  redraw();
})();
