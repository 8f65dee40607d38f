# make run, make test, make check, make bench: each sets up what it needs.
PYTHON ?= python3
PORT ?=
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-ready
DEV_STAMP := $(VENV)/.dev-ready

.PHONY: run test test-fast test-rest test-conformance test-console test-container test-compose test-monitoring chromium check-console test-clients test-model check bench survive resume crash budget cluster profile matrix map caching tour clients-page prices vocabulary lock clean

run: $(RUN_STAMP)
	@$(BIN)/dragoman serve $(if $(PORT),--port $(PORT))

# Many tests wait rather than compute: four processes keep two cores busy. PROCESSES=0 runs all tests in one process.
PROCESSES ?= 4
# Python's bytecode is written even where the environment says otherwise: every process would compile every test file.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --durations=10
PARALLEL = -n $(PROCESSES) --dist worksteal
test: $(DEV_STAMP) chromium
	@$(PYTEST) $(PARALLEL) -m "not rest"
	@echo "Not run: make test-rest, test-container, test-compose, test-monitoring, test-model and test-conformance." >&2

# The pure core and the configuration by themselves: no process, no socket.
UNIT := $(addprefix tests/,translate config operate/prices test_laws.py test_linear*.py test_any_*.py test_deletion.py)
test-fast: $(DEV_STAMP)
	@$(PYTEST) $(PARALLEL) -m "not rest" --in-process $(UNIT)

# $(call install,PROGRAMS,PACKAGES): Debian's packages, unless the programs are there. Fails if that is not possible.
define install
command -v $(1) >/dev/null || { echo "Installing $(2) (once)..."; \
  apt-get install -y -q --no-install-recommends $(2) >/dev/null 2>&1 \
  || { apt-get update -q >/dev/null 2>&1; apt-get install -y -q --no-install-recommends $(2) >/dev/null 2>&1; } \
  || { echo "NOT RUN: this needs $(2), which could not be installed. Run as root: apt-get install $(2)" >&2; exit 1; }; }
endef

# What is exhaustive, or slow by its nature: whole products, kills, long waits, every client installed, HAProxy and nginx.
test-rest: PROCESSES := 3
test-rest: $(DEV_STAMP) chromium
	@$(call install,haproxy,haproxy)
	@$(call install,nginx,nginx-light)
	@$(PYTEST) $(PARALLEL) -m rest

# Builds the image without a registry and sees it answer: two minutes the first time, half a minute later.
test-container: $(DEV_STAMP)
	@$(call install,buildah,buildah podman runc mmdebstrap)
	@$(BIN)/python -m pytest tests/deployment/test_container.py

# Starts the services of compose.yaml, kills a gateway, and asks the other one.
test-compose: $(DEV_STAMP)
	@$(call install,buildah,buildah podman runc mmdebstrap)
	@$(BIN)/python -m pytest tests/deployment/test_compose.py

# Starts Prometheus with our configuration, and runs every query of our Grafana board.
test-monitoring: $(DEV_STAMP)
	@$(call install,prometheus,prometheus)
	@$(BIN)/python -m pytest tests/deployment/test_prometheus.py

test-clients: $(DEV_STAMP)
	@$(BIN)/python -m pytest tests/clients/smoke tests/clients/all

test-model: $(DEV_STAMP)
	@$(BIN)/python -m pytest tests/model

# OPEN_RESPONSES: a checkout of the Open Responses suite in which `npm install --no-save tsx zod@3` was run
# LLM_COMPLY: the command of llm-comply 0.5.0, for example in a virtual environment of its own
test-conformance: $(DEV_STAMP)
	@OPEN_RESPONSES=$(OPEN_RESPONSES) LLM_COMPLY=$(LLM_COMPLY) $(BIN)/python -m pytest -q -rA \
	  $(if $(OPEN_RESPONSES),tests/conformance/test_open_responses.py) \
	  $(if $(LLM_COMPLY),tests/conformance/test_llm_comply.py) \
	  $(if $(OPEN_RESPONSES)$(LLM_COMPLY),,tests/conformance)

check: $(DEV_STAMP)
	@$(BIN)/ruff check src tests bench tools
	@$(BIN)/ruff format --check src tests bench tools
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.rules
	@$(MAKE) --no-print-directory check-console

# The types of the console's scripts. Without node this is not checked, and said.
CONSOLE_TOOLS := tools/console/node_modules/.package-lock.json
check-console:
	@if ! command -v npm >/dev/null; then \
	  echo "NOT CHECKED: the types of the console's scripts, because node and npm are not installed." >&2; \
	elif $(MAKE) -s --no-print-directory $(CONSOLE_TOOLS); then \
	  node tools/console/node_modules/typescript/bin/tsc -p tools/console; \
	else \
	  echo "NOT CHECKED: the types of the console's scripts, because npm could not install TypeScript." >&2; \
	fi

$(CONSOLE_TOOLS): tools/console/package-lock.json
	@cd tools/console && npm ci --silent --ignore-scripts
	@touch $@

# The browser of the console's tests: installed if that is possible, else the tests fail and say so.
chromium:
	@command -v chromium >/dev/null || { echo "Installing chromium for the console's tests (once)..."; \
	  apt-get install -y -q --no-install-recommends chromium >/dev/null 2>&1 \
	  || { apt-get update -q >/dev/null 2>&1; apt-get install -y -q --no-install-recommends chromium >/dev/null 2>&1; } \
	  || echo "chromium could not be installed: the tests of the console in a browser will fail." >&2; }

test-console: $(DEV_STAMP) chromium
	@$(BIN)/python -m pytest tests/console

# What a request costs here, with nginx and with LiteLLM; BESIDE=commit measures dragoman of another commit in turn.
bench: $(DEV_STAMP)
	@$(BIN)/python -m bench --crowd $(if $(BESIDE),--beside $(BESIDE))
	@$(BIN)/python -m bench.start
	@$(BIN)/python -m bench.observers
	@$(BIN)/python -m bench.admin_queries

# What hostile requests, upstreams and readers cost everybody else; BEFORE=commit compares with an earlier one.
survive: $(DEV_STAMP)
	@$(BIN)/python -m bench.survival $(if $(BEFORE),--before $(BEFORE))

# 50 agents on one budget: by how much it is overspent; POSTGRES=URL with {run} in the database's name: there, too.
budget: $(DEV_STAMP)
	@$(BIN)/python -m bench.budget $(if $(POSTGRES),--postgres $(POSTGRES))

# 1,000 clients of every protocol that drop at a random byte and resume; SEED=number repeats an earlier run,
# REPLICAS=number: each client comes back to another one of so many gateways, which share a Valkey.
resume: $(DEV_STAMP)
	@PYTHONPATH=tests $(BIN)/python -m bench.resume $(if $(SEED),--seed $(SEED)) $(if $(REPLICAS),--replicas $(REPLICAS))

# kill -9 while 50 background responses and 50 stored streams run; POSTGRES=url of an empty database: there too.
crash: $(DEV_STAMP)
	@$(BIN)/python -m bench.crash $(if $(POSTGRES),--postgres $(POSTGRES))

# 3 replicas with 50 agents each, with Valkey and without: how exact limits are, what faults do, a rolling restart. Nine minutes.
cluster: $(DEV_STAMP)
	@$(call install,haproxy,haproxy)
	@$(call install,faketime,faketime)
	@$(call install,ip,iproute2)
	@PYTHONPATH=tests $(BIN)/python -m bench.cluster

profile: $(DEV_STAMP)
	@$(BIN)/python -m bench.profile

# Writes docs/compatibility.md from what the tests prove.
matrix: $(DEV_STAMP)
	@DRAGOMAN_WRITE_PAGES=1 $(BIN)/python -m pytest -x tests/e2e/test_matrix.py tests/e2e/test_page.py

# Writes the measured map of docs/architecture.md.
map: $(DEV_STAMP)
	@DRAGOMAN_WRITE_PAGES=1 $(BIN)/python -m pytest tests/e2e/test_path_map.py

# Writes docs/caching.md and its picture: what recorded sessions of real clients read from prompt caches.
caching: $(DEV_STAMP)
	@DRAGOMAN_WRITE_PAGES=1 $(BIN)/python -m pytest tests/translate/caching/test_recorded_sessions.py -k every_client

# Writes the screenshots of the console in README.md, from echo traffic.
tour: $(DEV_STAMP) chromium
	@DRAGOMAN_WRITE_PAGES=1 $(BIN)/python -m pytest tests/console/test_tour.py

# Writes docs/clients.md from what the client tests prove.
clients-page: $(DEV_STAMP)
	@DRAGOMAN_CLIENTS_PAGE=1 $(BIN)/python -m pytest tests/clients/smoke tests/clients/all

# Writes the vocabulary that ships with the gateway from that of a package.
vocabulary: $(DEV_STAMP)
	@$(BIN)/python tools/write_vocabulary.py

# Writes the price sheet that ships with the gateway from the prices of a package.
prices: $(DEV_STAMP)
	@$(BIN)/python tools/write_prices.py

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header --group build pyproject.toml
lock: $(DEV_STAMP)
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/$(COMPILE) --extra yaml -o requirements.lock
	@$(BIN)/$(COMPILE) --extra cluster --extra yaml -o requirements-cluster.lock
	@$(BIN)/$(COMPILE) --group dev -o requirements-dev.lock

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-python .venv-bench-beside .clients dist build

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
