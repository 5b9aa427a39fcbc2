# Every target installs what it needs into virtual environments inside this directory; nothing else is assumed.
#   make demo       the main job on the embedded server, with the real AISBench
#   make test       lint, types and all tests that need no real vLLM
#   make test-real  the tests against a real vLLM on the CPU
#   make bench      benchmarks; results are printed as ratios

PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: install demo test lint typecheck test-real bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[aisbench,server,dev]'
	touch $@

demo: $(INSTALLED)
	$(VENV)/bin/ais-bench-prefix-cache demo

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

typecheck: $(INSTALLED)
	$(RUN) -m mypy

test: lint typecheck
	$(RUN) -m pytest -m "not real" -n 2 --dist loadgroup

$(VLLM_VENV)/.installed: tests/real/install_vllm.py tests/real/vllm_constraints.txt
	$(PYTHON) tests/real/install_vllm.py $(VLLM_VENV)
	touch $@

test-real: $(INSTALLED) $(VLLM_VENV)/.installed
	$(RUN) -m pytest -m real

bench: $(INSTALLED)
	$(RUN) -m tests.benchmarks.run_all

clean:
	rm -rf $(VENV) $(VLLM_VENV)
