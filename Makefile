# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

MINUTES ?= 30

KATEX := 0.19.1

.PHONY: demo test test-slow test-browser docs docs-serve gallery screenshots dist soak lint types format clean

demo: .venv/.installed
	$(BIN)/determinax demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not browser"

test-slow: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

# the site, a report and a sphere in a headless browser
test-browser: docs
	$(BIN)/python -m pytest -n 0 -m browser tests/browser

# wheel and sdist, tried in clean environments
dist: .venv/.installed
	$(BIN)/python tools/check_dist.py

# every picture of the gallery that takes seconds; the others come from benchmarks and examples
gallery: .venv/.installed
	$(BIN)/python tools/gallery.py

# pictures of the home page, a report and a sphere, as a browser shows them
screenshots: docs
	$(BIN)/python tools/screenshots.py

# the site, in site/
docs: .venv/.installed docs/assets/katex/katex.min.css
	$(BIN)/python tools/build_site.py

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

# formulas: the fonts and the style go into the site, the script only sets them while it is built
docs/assets/katex/katex.min.css: Makefile
	@command -v npm >/dev/null || { echo "the site's formulas are set by KaTeX: install Node.js with npm"; exit 1; }
	npm install --silent --no-save --no-package-lock --prefix .npm katex@$(KATEX)
	mkdir -p docs/assets/katex/fonts
	cp .npm/node_modules/katex/dist/katex.min.js docs/assets/katex/
	cp .npm/node_modules/katex/dist/fonts/*.woff2 docs/assets/katex/fonts/
	sed -E 's/,url\([^)]*\.(woff|ttf)\) format\("[a-z]+"\)//g' .npm/node_modules/katex/dist/katex.min.css > $@

# broken files, kills and busy cores: not a part of the tests
soak: .venv/.installed
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/basedpyright --warnings

format: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# constraints.txt pins every version, the build's included
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs,release]'
	touch $@

clean:
	rm -rf .venv .npm .pytest_cache .ruff_cache .hypothesis site dist docs/assets/katex
