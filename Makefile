# `make demo` shows it working, `make test` proves it without a GPU, `make test-gpu` with one.
# Each sets up what it needs, from nothing, in $(VENV). With VENV=system the machine's own python3
# and packages serve, and nothing but vdnn_alloc itself is installed (no network needed).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:  # one step after the other, the first failure stops; each step uses all $(JOBS)
.PHONY: demo test test-gpu setup lint types format native cuda-check tidy pytest wheel clean

VENV ?= .venv
BASE_PYTHON ?= python3
CUDA_HOME ?= /usr/local/cuda
JOBS ?= $(shell nproc)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

demo: setup
	$(PYTHON) bench/demo.py

test: setup lint types native pytest cuda-check tidy

test-gpu: setup
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit( \
	  "make test-gpu needs a GPU that torch can use, and there is none; make test needs none.")'
	@# The allocator of a process can be set once, so each file has a process of its own.
	for file in tests/gpu/test_*.py; do $(PYTHON) -m pytest -m gpu "$$file"; done

# --- set-up -----------------------------------------------------------------------------------

ifeq ($(VENV),system)
PYTHON := $(BASE_PYTHON)
STATE := build/system
INSTALL := $(PYTHON) -m pip install -qq --break-system-packages

$(STATE)/requirements:
	mkdir -p $(STATE)
	touch $@
else
PYTHON := $(VENV)/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)
STATE := $(VENV)/state
INSTALL := $(PYTHON) -m pip install -qq

$(STATE)/requirements: constraints.txt
	@$(BASE_PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "The versions in constraints.txt need Python 3.11; name one with BASE_PYTHON=...")'
	@echo "Setting up $(VENV): the first time this downloads torch."
	$(BASE_PYTHON) -m venv $(VENV)
	$(INSTALL) -r constraints.txt
	mkdir -p $(STATE)
	touch $@
endif

# Editable: Python sources serve where they are; what is compiled is installed again when it, or
# the list of files, has changed.
$(STATE)/installed: $(STATE)/requirements pyproject.toml allocator allocator/torch_glue \
    $(wildcard allocator/* allocator/torch_glue/*)
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

setup: $(STATE)/installed

# --- the steps of `make test`, in order -------------------------------------------------------

CXX_FILES = $(wildcard allocator/*.[ch]pp allocator/*.h allocator/torch_glue/*.[ch]pp \
    allocator/torch_glue/*.h tests/*/*.[ch]pp)

lint: setup
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $(CXX_FILES)

types: setup
	mypy

# The native tests in three builds: as shipped, with address and undefined-behaviour checks, and
# with data-race checks. TSan's shadow memory does not fit every layout that ASLR draws.
FIXED_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)
ctest = ctest --test-dir build/$(1) --output-on-failure --no-tests=error --parallel $(JOBS)

native: build/plain/build.ninja build/address/build.ninja build/thread/build.ninja
	cmake --build build/plain --parallel $(JOBS)
	VDNN_CHECK=3 $(call ctest,plain)
	cmake --build build/address --parallel $(JOBS) --target test_programs
	$(call ctest,address)
	cmake --build build/thread --parallel $(JOBS) --target test_programs
	TSAN_OPTIONS=halt_on_error=1 $(FIXED_LAYOUT) $(call ctest,thread)

build/address/%: SANITIZE := address
build/thread/%: SANITIZE := thread
build/%/build.ninja: | $(STATE)/requirements
	cmake -S allocator -B build/$* -G Ninja --log-level=WARNING -DVDNN_BUILD_TESTS=ON \
	  -DVDNN_SANITIZE=$(SANITIZE)

pytest: setup
	VDNN_CHECK=3 $(PYTHON) -m pytest -m "not gpu"

# What only a GPU machine runs must at least compile wherever NVIDIA's headers are. A torch for the
# CPU lacks one generated header of c10/cuda; with an empty one the others serve.
CUDA_SOURCES = $(wildcard allocator/torch_glue/*cuda*.cpp tests/native/check_cuda_*.cpp)
EMPTY_HEADER := build/cuda-check/c10/cuda/impl/cuda_cmake_macros.h
cuda-check: setup
	@if [ ! -e $(CUDA_HOME)/include/cuda.h ]; then \
	  echo "cuda-check: no CUDA headers in $(CUDA_HOME), so there is nothing to check"; exit; \
	fi; \
	mkdir -p $(dir $(EMPTY_HEADER)); touch $(EMPTY_HEADER); \
	torch=$$($(PYTHON) -c 'import torch; print(torch.__path__[0])'); \
	for file in $(CUDA_SOURCES); do \
	  echo "cuda-check: $$file"; \
	  $(CXX) -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Iallocator \
	    -isystem "$$torch/include" -isystem $(CUDA_HOME)/include -isystem build/cuda-check "$$file"; \
	done

tidy: build/plain/build.ninja
	printf '%s\n' allocator/*.cpp | \
	  xargs -P $(JOBS) -n 1 clang-tidy -p build/plain --quiet

# --- helpers ----------------------------------------------------------------------------------

format: setup
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FILES)

wheel: setup
	$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .

clean:
	rm -rf build $(STATE)
