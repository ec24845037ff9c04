# Everything a fresh machine needs, from `python3` on. `make run` and `make test` set themselves up.
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
WORKERS ?= 2
ENGINES := $(abspath $(VENV)-engines)

.PHONY: run test test-engines engines check format setup faults bench clean

run: $(STAMP)  ## run the offload matrix on the embedded engine; leaves reports/<session>/
	$(VENV)/bin/harness run

test: $(STAMP)  ## the harness's own tests, then the product suites
	$(PY) -m pytest tests -n $(WORKERS) -q
	$(PY) -m pytest suites/ -n $(WORKERS) -q

test-engines:  ## real engines without a GPU: built once, each in its own environment, then run
	$(MAKE) -j2 $(STAMP) engines
	HARNESS_VLLM_PYTHON=$(ENGINES)/vllm/bin/python \
	HARNESS_ENGINE_CACHE=$(ENGINES)/cache \
	HARNESS_ACCELERATE_PYTHON=$(ENGINES)/accelerate/bin/python \
	$(PY) -m pytest suites/engines tests/engines -n $(WORKERS) --dist loadfile -q \
		--harness-store reports/engines

engines:
	ci/engines.sh $(ENGINES)

check: $(STAMP)  ## style, types, import rules, size budgets, CI files against their schemas
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest tests/rules -q

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

faults: $(STAMP)  ## every known defect against the harness: which judge caught it
	$(VENV)/bin/harness faults

bench: $(STAMP)  ## ratios, measured in one run
	$(VENV)/bin/harness bench

setup: $(STAMP)

$(STAMP): pyproject.toml ci/constraints.txt
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint ci/constraints.txt torch
	$(PY) -m pip install --quiet --constraint ci/constraints.txt --editable '.[engine,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(VENV)-engines build dist .mypy_cache .ruff_cache .pytest_cache
