# make run, make test, make check, make bench: each sets up what it needs.
PYTHON ?= python3
PORT ?=
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-ready
DEV_STAMP := $(VENV)/.dev-ready

.PHONY: run test test-clients test-model check bench survive profile matrix clients-page prices lock clean

run: $(RUN_STAMP)
	@$(BIN)/dragoman serve $(if $(PORT),--port $(PORT))

# Many tests wait rather than compute: three processes keep two cores busy. PROCESSES=0 runs all tests in one process.
PROCESSES ?= 3
test: $(DEV_STAMP)
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal

test-clients: $(DEV_STAMP)
	@$(BIN)/python -m pytest tests/clients/smoke tests/clients/all

test-model: $(DEV_STAMP)
	@$(BIN)/python -m pytest tests/model

check: $(DEV_STAMP)
	@$(BIN)/ruff check src tests bench tools
	@$(BIN)/ruff format --check src tests bench tools
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/size_check.py

bench: $(DEV_STAMP)
	@$(BIN)/python -m bench --crowd
	@$(BIN)/python -m bench.observers

# What hostile requests, upstreams and readers cost everybody else; BEFORE=commit compares with an earlier one.
survive: $(DEV_STAMP)
	@$(BIN)/python -m bench.survival $(if $(BEFORE),--before $(BEFORE))

profile: $(DEV_STAMP)
	@$(BIN)/python -m bench.profile

# Writes docs/compatibility.md from what the tests prove.
matrix: $(DEV_STAMP)
	@DRAGOMAN_WRITE_PAGES=1 $(BIN)/python -m pytest tests/e2e/test_matrix.py tests/e2e/test_page.py

# Writes docs/clients.md from what the client tests prove.
clients-page: $(DEV_STAMP)
	@DRAGOMAN_CLIENTS_PAGE=1 $(BIN)/python -m pytest tests/clients/smoke tests/clients/all

# Writes the price sheet that ships with the gateway from the prices of a package.
prices: $(DEV_STAMP)
	@$(BIN)/python tools/write_prices.py

lock: $(DEV_STAMP)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --group build pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --group build --group dev pyproject.toml -o requirements-dev.lock

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-python .clients dist build

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing dragoman (once)..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock pyproject.toml | $(BIN)/python
	@echo "Installing test dependencies (once)..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@ $(RUN_STAMP)
