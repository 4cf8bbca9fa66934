# From a fresh clone, `make demo` and `make test` do all set-up themselves.
PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# One thread per process: several slow each other down as soon as anything else runs.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export GOMP_SPINCOUNT ?= 0
# Compiled modules are kept, or every process of the tests compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test browser bench docs dist results integrations audit

install: .venv/.installed

# torch first and pinned, so that no dependency pulls in another build of it.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --no-compile -c constraints.txt torch
	$(PIP) install --no-compile -c constraints.txt -e ".[dev]"
	$(BIN)/python -m compileall -qq --workers 0 .venv/lib || true  # as pip does, but on all cores; templates may fail
	touch $@

# What a user installs, without the tools of the tests.
.venv/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e ".[all]"
	touch $@

demo:
	@test -e .venv/.installed || $(MAKE) --no-print-directory .venv/.demo
	$(BIN)/tood demo --full

test: install browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python benchmarks/size.py
	@mkdir -p build
	@echo "mypy, beside the tests"; $(BIN)/mypy > build/mypy.txt 2>&1 & mypy=$$!; \
	  $(BIN)/pytest -n 2 --dist worksteal --cov=tood --cov-report=term --cov-fail-under=91; tests=$$?; \
	  wait $$mypy; types=$$?; cat build/mypy.txt; exit $$((tests || types))

# The page is tested in a real browser: one that is there, or Debian's when root in a container. TOOD_BROWSER=skip refuses.
browser:
	@if [ "$(TOOD_BROWSER)" != skip ] && [ "$$(id -u)" = 0 ] && [ -n "$(CI)$(wildcard /.dockerenv /run/.containerenv)" ] \
	    && ! command -v chromium >/dev/null && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; (apt-get update -qq && apt-get install -y -qq chromium) >/dev/null 2>&1 || true; fi

bench: install
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/detectors.py
	$(BIN)/python benchmarks/score_stream.py

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/pytest -q tests/test_documents.py tests/test_examples.py  # the examples print what the pages show
	@echo "site/index.html"

# The results pages from the committed measurements.
results: install
	PYTHONPATH=docs/results $(BIN)/python -m results_pages docs/results/metrics docs/results README.md

# The wheel must calibrate and score in an empty environment with the core dependencies only.
dist: install
	rm -rf dist build/wheel-venv
	$(PIP) install -c constraints.txt build
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/pip --disable-pip-version-check --quiet install dist/*.whl
	cd build && ../build/wheel-venv/bin/python ../tests/core_only.py
	cd build && wheel-venv/bin/tood --version

# Each peer (pytorch-ood, Avalanche, OpenOOD, MLflow, W&B) in its own environment, and our adapter inside it.
# Some only: make integrations PEERS="avalanche mlflow"
integrations:
	sh tests/integrations/environments.sh $(PYTHON) $(PEERS)

# Known vulnerabilities of the installed versions; pip-audit, in an environment of its own, asks pypi.org. A mirror
# without the installed versions would let it find nothing in anything.
audit: install
	test -x build/audit-venv/bin/pip-audit || { $(PYTHON) -m venv build/audit-venv && \
	  build/audit-venv/bin/pip --disable-pip-version-check --quiet install -c constraints.txt pip-audit; } || \
	  { echo "make audit: pip-audit cannot be installed: no connection to the package index"; exit 1; }
	@$(BIN)/python -c "import numpy, urllib.request as r; r.urlopen(f'https://pypi.org/pypi/numpy/{numpy.__version__}/json', timeout=9)" 2>/dev/null || \
	  { echo "make audit: pypi.org does not answer about the installed versions: they were not compared with known vulnerabilities"; exit 1; }
	build/audit-venv/bin/pip-audit --path $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") --skip-editable
