# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

MINUTES ?= 30

.PHONY: demo test test-slow soak lint types format clean

demo: .venv/.installed
	$(BIN)/determinax demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-slow: .venv/.installed
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

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
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
