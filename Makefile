# The two main targets are `make demo` and `make test`. Every target sets up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# oneDNN uses AMX for bfloat16, and some virtual machines that report AMX kill the process.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: demo docs test test-slow test-oldest attack lint format coverage bench wheels clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Build the documentation in out/docs and run its code blocks (unchanged pages are cached in out/docs-blocks).
docs: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -b html -W --keep-going -q docs out/docs
	@echo out/docs/index.html

# Run after every change: lint, types and the quick tests, at most ten minutes on two cores.
test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

# The rest: studies, browser, documentation, Ray, killed processes, run-time type checks, attack.
test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow
	BILRP_CHECK_TYPES=1 $(BIN)/python -m pytest -n 2 -m "not slow" tests/rules tests/findings tests/evaluation tests/test_groups.py
	PYTHONPATH=src:tests OMP_NUM_THREADS=1 $(BIN)/python -m attack --jobs 2

# Random tests of the promises in SECURITY.md, with new seeds each round, for SECONDS.
SECONDS ?= 240
attack: $(STAMP)
	PYTHONPATH=src:tests OMP_NUM_THREADS=1 $(BIN)/python -m attack --seconds $(SECONDS) --jobs 2

# Run TESTS with the oldest supported versions, in a separate environment. Uses a CPU build of the oldest torch if the index has
# one, else (on Linux) the CUDA build, which needs the CUDA libraries: 3 GB to download, 6 GB on disk, once.
OLDEST := .venv-oldest
TESTS  ?= tests/engine tests/rules tests/trace tests/collection tests/cli/test_start.py tests/test_laws.py tests/test_package.py tests/test_golden_numbers.py
test-oldest: $(OLDEST)/.installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 -W default -W ignore::DeprecationWarning $(TESTS)

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	torch=$$(sed -n 's/^torch==//p' constraints-oldest.txt); \
	$(OLDEST)/bin/python -m pip install --quiet "torch==$$torch+cpu" 2>/dev/null || \
		echo "no index offers torch $$torch for CPUs alone: downloading the build with CUDA, 3 GB"
	$(OLDEST)/bin/python -m pip install --quiet -c constraints-oldest.txt -e ".[studies,text,vision,collection,video]" \
		pytest pytest-xdist hypothesis beartype pyyaml hatchling
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tests/javascript_types.py
	$(BIN)/python tests/javascript_format.py --check

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tests/javascript_format.py --write
	$(BIN)/python docs/make_rules.py

# Explain every model type of transformers and write docs/coverage.md; continues an interrupted run.
coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python docs/make_coverage.py

bench: $(STAMP)
	$(BIN)/bilrp bench

# The source distribution and the wheels of all systems, in dist/, checked. Compiles with Zig: no other machine is needed.
wheels: $(STAMP)
	rm -rf dist
	$(BIN)/python -m pip install --quiet -c constraints.txt ziglang twine
	$(BIN)/python tools/build_wheels.py dist
	$(BIN)/python -m twine check --strict dist/*

# Install the pinned torch first, so that no dependency selects a CUDA build.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard src/bilrp/native/*.c)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	# A test oracle, without its dependencies: it requires torchvision, which does not import with a CPU-only torch.
	$(BIN)/python -m pip install --quiet --no-deps "zennit>=0.5.1" || echo "zennit did not install: its tests will be skipped"
	# The documentation compares with it. Its dependencies are already installed.
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps captum || echo "captum did not install: the documentation says so"
	# A test oracle: LEACE by its authors.
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps concept-erasure || echo "concept-erasure did not install: its test will be skipped"
	# The text encoder that most tests of texts compare with.
	$(BIN)/python -c 'import bilrp; bilrp.encoders.sentence("minilm")' || echo "MiniLM could not be downloaded: its tests will be skipped"
	# Optional: half a minute, 240 MB, and not available for every Python.
	$(BIN)/python -m pip install --quiet -c constraints.txt "ray>=2.40" || echo "ray did not install: its tests will be skipped"
	# Optional: 72 MB, for the widget tests.
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[jupyter]" || echo "JupyterLab did not install: its test will be skipped"
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) out dist
