# Two commands: `make demo` and `make test`. Each sets up .venv when needed and then does its job.
# `make test-browser` tests the pages in Chromium.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-browser lint format clean

demo: .venv/ready
	$(BIN)/turnaround demo

# Tests start hundreds of processes: bytecode is kept, also where the environment says otherwise.
test test-browser: export PYTHONDONTWRITEBYTECODE =

# Without those in a browser: Chromium is not everywhere, and takes minutes of computing.
test: .venv/ready-test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder -m "not browser"
	@echo "The pages in a browser were left out: make test-browser tests them."

test-browser:
	bash .ci/browser

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

# The stamps are touched last, so an interrupted installation is repeated.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/ready-test: .venv/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
