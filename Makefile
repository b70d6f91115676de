# `make serve` installs and runs a server, `make test` installs the tools and runs the tests.

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS    ?=

.DEFAULT_GOAL := help
.PHONY: help serve test lint proof bench pipeline-demo outage-demo lock sbom audit images proto docs clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.run ## Install into .venv and run the server (make serve ARGS="--store sqlite:other.db")
	@$(BIN)/tape serve $(ARGS)

test: $(VENV)/.dev lint ## Install what the tests need and run them all (about 25 minutes)
	@failed=$$(mktemp); TAPE_FAILED_TESTS=$$failed $(BIN)/python -m pytest -n 3 $(ARGS) || $(BIN)/python scripts/rerun_failed.py $$failed

lint: $(VENV)/.dev ## Check style, types and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/dialect.py

proof: $(VENV)/.dev ## Run the slow proofs and the property tests with thousands of examples
	$(BIN)/python -m pytest -m 'proof or hypothesis' --hypothesis-profile proof $(ARGS)

bench: $(VENV)/.bench ## Run the benchmarks, side by side with peers, and plot growth (make bench ARGS="append")
	$(BIN)/python -m bench $(ARGS)

pipeline-demo: $(VENV)/.dev ## Run archive, rollup, backtest and report on a generated journal, on Spark (make pipeline-demo ARGS="--open")
	@$(BIN)/tape pipeline demo $(ARGS)

outage-demo: $(VENV)/.dev ## Show how messages are spooled and replayed in order during an outage of a downstream
	@$(BIN)/python scripts/outage_demo.py $(ARGS)

lock: $(VENV)/.dev ## Resolve the dependencies and write the lock files
	$(BIN)/uv pip compile $(LOCK) --all-extras --group dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile $(LOCK) --extra postgres --extra server -c requirements-dev.lock pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile $(LOCK) $(DEPLOYED:%=--extra %) -c requirements-dev.lock pyproject.toml -o deploy/requirements.lock

sbom: $(VENV)/.dev ## Write the bill of materials of the locked dependencies to build/sbom.cdx.json (CycloneDX)
	@$(BIN)/python scripts/sbom.py $(ARGS)

audit: $(VENV)/.dev ## Look up known vulnerabilities of the locked dependencies (make audit ARGS=--required)
	@$(BIN)/python scripts/audit.py $(ARGS)

images: $(VENV)/.dev ## Compare the digests of the container images in deploy/ with their tags (make images ARGS=--write)
	@$(BIN)/python scripts/images.py $(ARGS)

proto: $(VENV)/.dev ## Generate Python from tape.proto
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src tape/proto/tape.proto

docs: $(VENV)/.dev ## Generate the reference pages from the code
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/events.py
	$(BIN)/python scripts/document_fields.py
	$(BIN)/python scripts/access_table.py

clean: ## Remove the virtual environments and caches
	rm -rf $(VENV) .venv-bench .mypy_cache .ruff_cache .hypothesis build dist

DEPLOYED := amqp gcp http kafka mqtt nats objects otel postgres pubsub server sqs
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tape needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ...")'
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "Installing Tape (only the first time, and when its dependencies change)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "Installing Tape and the tools its tests need"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(PIP) install --no-deps -e .
	@touch $@ $(VENV)/.run

# Peers and their clients have an environment of their own, so that Tape does not depend on them.
$(VENV)/.bench: $(VENV)/.dev bench/requirements-peers.txt bench/npm-peers.txt
	@$(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip --disable-pip-version-check --quiet install -r bench/requirements-peers.txt
	@! command -v npm > /dev/null || npm install --silent --prefix .venv-bench $$(cat bench/npm-peers.txt)
	@touch $@
