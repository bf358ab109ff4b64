# Two commands: `make demo` and `make test`. Each sets up .venv when needed and then does its job.
# `make test-browser` tests the pages in Chromium, `make test-hostile` every verb on everything hostile.
PYTHON ?= python3
BIN := .venv/bin

# Everything is installed by version and SHA-256 (requirements*.lock). With `make demo LOCKED=no` by version alone: for a
# torch of another index, or a platform that the lock does not know.
LOCKED ?= yes
PIP := $(BIN)/python -m pip install --quiet
TOOLS := .venv/tools/bin

.PHONY: demo test test-browser test-hostile lint format clean lock sbom audit

demo: .venv/ready
	$(BIN)/turnaround demo

# Tests start hundreds of processes: bytecode is kept, also where the environment says otherwise.
test test-browser test-hostile: export PYTHONDONTWRITEBYTECODE =

# Without those in a browser: Chromium is not everywhere, and takes minutes of computing, as the thousand calls of the
# hostile inputs do. .ci/run runs both.
test: .venv/ready-test
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder -m "not browser and not hostile"
	@echo "Left out: the pages in a browser (make test-browser) and the hostile inputs (make test-hostile)."

test-browser:
	bash .ci/browser

test-hostile: .venv/ready-test
	$(BIN)/python -m pytest --numprocesses auto -m hostile tests/cli/test_hostile.py

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

# What the lock files hold, for every platform and every Python that we support; versions come from constraints.txt.
COMPILE = $(TOOLS)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url

lock: .venv/tools/ready
	echo 'setuptools>=77' | $(COMPILE) --constraint constraints.txt -o requirements.lock pyproject.toml -
	echo 'setuptools>=77' | $(COMPILE) --constraint constraints.txt -o requirements-test.lock --extra test pyproject.toml -
	printf 'uv\npip-audit\ncyclonedx-bom\n' | $(COMPILE) -o requirements-tools.lock -

# A CycloneDX bill of materials of what `make demo` installs.
sbom: .venv/tools/ready
	$(TOOLS)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --of JSON -o sbom.json

audit: .venv/tools/ready
	$(TOOLS)/python .ci/audit requirements-test.lock

# The stamps are touched last, so an interrupted installation is repeated.
.venv/ready: pyproject.toml constraints.txt requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
ifeq ($(LOCKED),yes)
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) --constraint constraints.txt --editable .
endif
	touch $@

.venv/ready-test: .venv/ready requirements-test.lock
ifeq ($(LOCKED),yes)
	$(PIP) --require-hashes --requirement requirements-test.lock
else
	$(PIP) --constraint constraints.txt --editable '.[test]'
endif
	touch $@

.venv/tools/ready: requirements-tools.lock
	test -x $(TOOLS)/python || $(PYTHON) -m venv .venv/tools
	$(TOOLS)/python -m pip install --quiet --require-hashes --requirement requirements-tools.lock
	touch $@
