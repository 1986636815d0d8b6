"""Pages and pictures as text: SVG, style, spheres to turn. Told numbers and words only."""
