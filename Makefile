# Every target installs what it needs into virtual environments inside this directory; nothing else is assumed.
#   make demo                 the main job on the embedded server, with the real AISBench
#   make check ROOM=planning  lint, types and unit tests of one room; needs neither torch nor AISBench
#   make lint                 ruff, vulture (code that nothing calls), import-linter (the laws between rooms)
#   make typecheck            mypy, of the source and the tests
#   make test                 lint, types and all tests that need no real server
#   make test-real            the tests against real servers on the CPU
#   make test-real-vllm, make test-real-sglang    those against one of them
#   make test-versions        what needs no AISBench, with the oldest and the newest Python and libraries (OLDEST=, NEWEST=)
#   make fuzz SECONDS=600     hostile inputs with new seeds, for so long or until one fails
#   make sbom                 dist/sbom.cdx.json: what a user's installation is made of (CycloneDX)
#   make audit                the same against a database of known vulnerabilities, which must be reachable
#   make bench                benchmarks; results are printed as ratios
# docs/contributing.md says how long each takes.

PYTHON ?= python3
OLDEST ?= python3.10
NEWEST ?= python3.13
VENV := .venv
VLLM_VENV := .venv-vllm
SGLANG_VENV := .venv-sglang
AIPERF_VENV := .venv-aiperf
CHECK_VENV := .venv-check
RELEASE_VENV := .venv-release
RUN := $(VENV)/bin/python
CHECK_RUN := $(CHECK_VENV)/bin/python
INSTALLED := $(VENV)/.installed

.PHONY: install demo lint typecheck check test test-real test-real-vllm test-real-sglang test-versions test-oldest test-newest fuzz sbom audit bench clean

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
	$(VENV)/bin/vulture
	$(VENV)/bin/lint-imports --no-logo

typecheck: $(INSTALLED)
	$(RUN) -m mypy

test: lint typecheck
	$(RUN) -m pytest -m "not real" -n 2 --dist worksteal

$(CHECK_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CHECK_VENV)
	$(CHECK_RUN) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

ROOM_SOURCE = src/ais_bench_prefix_cache/$(ROOM)
ROOM_TESTS = $(wildcard tests/unit/$(ROOM))
check: $(CHECK_VENV)/.installed
	@test -n "$(ROOM)" -a -d "$(ROOM_SOURCE)" || { echo "name a room: make check ROOM=$$(cd src/ais_bench_prefix_cache && ls -d [a-z]*/ | tr -d '/' | paste -sd '|')"; exit 2; }
	$(CHECK_RUN) -m ruff check $(ROOM_SOURCE) $(ROOM_TESTS)
	$(CHECK_RUN) -m mypy --cache-dir $(CHECK_VENV)/mypy $(ROOM_SOURCE) $(ROOM_TESTS)
	$(if $(ROOM_TESTS),$(CHECK_RUN) -m pytest -q -m "not aisbench and not slow" -n 2 $(ROOM_TESTS),@echo "no unit tests; docs/architecture.md says where it is tested:"; grep '`$(ROOM)/[^|]*|$$' docs/architecture.md)

# The parts of the suite that need neither AISBench nor a real server.
WITHOUT_AISBENCH := -m "not aisbench and not real" tests/unit tests/golden tests/property

.venv-oldest/.installed: pyproject.toml tests/versions/oldest.txt
	$(OLDEST) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install -q --disable-pip-version-check -c tests/versions/oldest.txt -e '.[dev]'
	touch $@

# A model class that transformers 4.51 does not know (kv names the keys then), a message that it words otherwise, caches
# that it keeps otherwise, and a type of column that the oldest pyarrow does not write.
OF_NEWER_LIBRARIES := \
	--ignore tests/property/test_cache_sizes_of_transformers.py \
	--deselect "tests/unit/datasets/images/test_mmmu_parquet.py::test_cells_of_every_type_of_bytes_are_read[binary_view]" \
	--deselect "tests/unit/datasets/images/test_mmmu_parquet.py::test_cells_of_every_type_of_bytes_are_read[struct<height: int32, bytes: binary_view, tags: list<item: string>>]" \
	--deselect "tests/unit/calculators/test_model_config.py::test_a_public_model[OLMo-Hybrid-7B]" \
	--deselect tests/unit/exact_text/test_tokenizer.py::test_the_package_that_a_sentencepiece_model_needs_is_named

test-oldest: .venv-oldest/.installed
	.venv-oldest/bin/python -m pytest -q -n 2 $(WITHOUT_AISBENCH) $(OF_NEWER_LIBRARIES)

.venv-newest/.installed: pyproject.toml
	$(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python -m pip install -q --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev]'
	touch $@

test-newest: .venv-newest/.installed
	.venv-newest/bin/python -m pytest -q -n 2 $(WITHOUT_AISBENCH)

test-versions: test-oldest test-newest

$(VLLM_VENV)/.installed: tests/real/install_vllm.py tests/real/vllm_constraints.txt
	$(PYTHON) tests/real/install_vllm.py $(VLLM_VENV)
	touch $@

$(SGLANG_VENV)/.installed: tests/real/install_sglang.py tests/real/sglang_requirements.txt tests/real/kernel_stub/sgl_kernel/__init__.py
	$(PYTHON) tests/real/install_sglang.py $(SGLANG_VENV)
	touch $@

$(AIPERF_VENV)/.installed:
	$(PYTHON) -m venv $(AIPERF_VENV)
	$(AIPERF_VENV)/bin/python -m pip install -q --disable-pip-version-check aiperf==0.13.0
	touch $@

test-real: test-real-vllm test-real-sglang

test-real-vllm: $(INSTALLED) $(VLLM_VENV)/.installed $(AIPERF_VENV)/.installed
	$(RUN) -m pytest tests/real -m "real and not sglang" -n 2

test-real-sglang: $(INSTALLED) $(SGLANG_VENV)/.installed
	$(RUN) -m pytest tests/real -m "real and sglang" -n 2

SECONDS ?= 600
EXAMPLES ?= 60
fuzz: $(INSTALLED)
	AISBENCH_PREFIX_CACHE_FUZZ_EXAMPLES=$(EXAMPLES) $(RUN) -m tests.fuzz.for_seconds $(SECONDS)

# What a user installs, and apart from it the tools that look at it.
EXTRAS ?= aisbench,server,report,multimodal
$(RELEASE_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt '.[$(EXTRAS)]'
	$(PYTHON) -m venv $(RELEASE_VENV)/tools
	$(RELEASE_VENV)/tools/bin/python -m pip install -q --disable-pip-version-check cyclonedx-bom pip-audit
	touch $@

sbom: $(RELEASE_VENV)/.installed
	mkdir -p dist
	$(RELEASE_VENV)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json $(RELEASE_VENV)/bin/python

audit: $(RELEASE_VENV)/.installed
	$(RELEASE_VENV)/bin/python -m pip list --format freeze --exclude ais-bench-prefix-cache > $(RELEASE_VENV)/packages.txt
	$(RELEASE_VENV)/tools/bin/pip-audit --strict --no-deps --disable-pip -r $(RELEASE_VENV)/packages.txt

bench: $(INSTALLED)
	$(RUN) -m tests.benchmarks.run_all

clean:
	rm -rf $(VENV) $(CHECK_VENV) $(RELEASE_VENV) $(VLLM_VENV) $(SGLANG_VENV) $(AIPERF_VENV) .venv-oldest .venv-newest
