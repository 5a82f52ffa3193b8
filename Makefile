# Two commands do everything: `make demo` runs the main job, `make test` passes every test. Both set up .venv first.

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p && break; done)
TORCH := 2.13.0
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# A dot every two seconds, as long as this line's shell lives: pip is silent here.
DOTS := (while sleep 2 && kill -0 $$$$ 2>&-; do printf .; done) &
# Where an index offers a CPU build it is smaller by gigabytes; where there is a GPU it would be the wrong one.
GPU := $(shell nvidia-smi --list-gpus 2>/dev/null | grep --max-count=1 GPU)
comma := ,
SOAK := $(or $(TMPDIR),/tmp)/vllm-lite-soak

.PHONY: demo test lint soak bench phoenix clean

demo: $(VENV)/.ready
	@$(BIN)/vllm-lite trace run --demo

test: lint
	@$(BIN)/python -m pytest

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache

# The journey under load: 64 answers, 16 at a time, one slow reader, three stop strings, three callers that leave; then the
# records against what the callers saw.
soak: $(VENV)/.ready
	@rm -rf $(SOAK)
	@$(BIN)/vllm-lite trace run --requests 64 --concurrency 16 --max-tokens 200 --level 3 --slow-reader 500 --stop " the" \
		--stop "." --stop "," --stop-requests 3 --abort-after 20 --abort-requests 3 --out $(SOAK)
	@$(BIN)/vllm-lite trace check $(SOAK)

# The engine first: it refuses a busy machine, and the others would make it one.
bench: $(VENV)/.ready-dev
	@$(BIN)/python benchmarks/engine.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/death.py

# A tracing backend that is not ours, large and therefore in an environment of its own, gets our spans: docs/how-to/phoenix.md.
phoenix: $(VENV)/.ready-dev
	@$(PYTHON) -m venv $(VENV)/phoenix
	@$(VENV)/phoenix/bin/python -m pip install -qq --disable-pip-version-check arize-phoenix
	@PHOENIX_PYTHON=$(VENV)/phoenix/bin/python $(BIN)/python -m pytest --timeout 300 tests/flow/test_phoenix.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.made: Makefile
	@test -n "$(PYTHON)" || { echo "vllm-lite needs Python 3.11 or later (python3 with its venv module) on the PATH"; exit 1; }
	@echo "vllm-lite: making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@echo "vllm-lite: installing torch (200 MB, or gigabytes for a GPU; a minute or more)"
	@$(DOTS) { $(if $(GPU),,$(PIP) "torch==$(TORCH)+cpu" 2>/dev/null ||) \
		$(PIP) "torch==$(TORCH)$(if $(GPU),$(comma)!=$(TORCH)+cpu)"; } && echo
	@touch $@

$(VENV)/.ready: $(VENV)/.made pyproject.toml
	@echo "vllm-lite: installing vllm-lite and what it needs (half a minute or more)"
	@$(DOTS) $(PIP) --editable . && echo
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "vllm-lite: installing the tools that test it"
	@$(DOTS) $(PIP) --editable ".[dev]" && echo
	@touch $@
