# Every target installs what it needs into .venv first; the second time that costs nothing.
SHELL := bash
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --quiet --disable-pip-version-check
EDITABLE := $(PIP) install --constraint constraints.txt --no-build-isolation \
  --config-settings=build-dir=build/core --editable
NATIVE := $(shell find native -name '*.[ch]pp' -o -name CMakeLists.txt)
NATIVE_TESTS := $(wildcard tests/native/test_*.cpp)
PYTEST := $(BIN)/python -m pytest

.PHONY: help run test test-quick test-torch bench validate peers soak sanitize sanitize-ranks fuzz coverage mutants lint format docs pages wheel size install clean always
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: install ## the whole loop on this machine: weft tour
	@$(BIN)/weft tour

install: .venv/.core ## everything into .venv, the native core built

.venv/bin/python:
	$(PYTHON) -m venv .venv

# torch goes first and exactly as pinned: a range would take the newest build and all its GPU packages.
.venv/.dependencies: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) install $$(grep '^torch==' constraints.txt)
	$(PIP) install --constraint constraints.txt scikit-build-core nanobind cmake ninja
	$(EDITABLE) '.[dev]'
	@touch $@

# An editable install remembers where each module was, so a moved one asks for a new install.
.venv/.modules: always | .venv/bin/python
	@find src -name '*.py' | sort > $@.new; cmp -s $@.new $@ || cp $@.new $@

.venv/.core: .venv/.dependencies .venv/.modules $(NATIVE)
	$(EDITABLE) . --no-deps
	@$(BIN)/python -m compileall -q src # as pip does for what it copies; an editable install is not copied
	@touch $@

# Tests that start ranks need the cores for themselves; the others share them.
RANKS := multiprocess or netns or browser
test: install ## every test but the slow ones
	$(PYTEST) -q -n 2 -m 'not (slow or $(RANKS))'
	$(PYTEST) -q -m '($(RANKS)) and not slow'

test-quick: install ## only tests that need nothing special and have few cases: a minute on two cores
	$(PYTEST) -q -n 2 -m 'not (multiprocess or torch or triton or data or netns or browser or thorough or slow)'

test-torch: install ## PyTorch's own distributed tests on Gloo and on weft, 2 to 4 ranks: 8 minutes on two quiet cores
	$(BIN)/python -m tests.torch_suite $(ARGS)

# All questions but `collectives`, whose cases `figures` asks next to others; 40 minutes on two cores that are left alone. The
# calibration, which comes first if there is none, sets when copies bypass the caches; `planned` plans for what it describes.
NAME ?= schedules simulator startup sharding plan kv codecs capture traces monitor replay report idle_engines figures ddp hosts \
  fused broadcast weight_updates zero c3_here here embedding sharding_here planned predict tour
bench: install ## every benchmark on this machine, or those of NAME=.. with ARGS=..; results are appended
	@$(BIN)/weft platforms here >/dev/null 2>&1 || $(BIN)/weft calibrate --anyway
	@failed=; for name in $(NAME); do $(BIN)/python -m benchmarks $$name $(ARGS) || failed="$$failed $$name"; done; \
	  [ -z "$$failed" ] || { echo "not ended well:$$failed"; exit 1; }

validate: install ## every published figure, compared with what weft computes
	@$(BIN)/python -m validation $(NAMES)

peers: install ## the environments of OpenMPI and MPICH that benchmarks need, in the user's cache
	@$(BIN)/python -m benchmarks.environments

MINUTES ?= 60
soak: install ## the slow tests, bounded to ten minutes each, then MINUTES=60 of mixed traffic and trouble
	$(PYTEST) -m slow --timeout 600 || [ $$? -eq 5 ] # 5: there is none
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

sanitize: $(foreach kind,address thread,$(NATIVE_TESTS:tests/native/%.cpp=build/sanitize/%.$(kind))) ## native tests under address, undefined and thread sanitizers
	@for program in $^; do echo "$$program"; $(STILL) "$$program" || exit 1; done
	@echo "sanitize: $(words $^) programs passed"

# The thread sanitizer of older compilers cannot live with randomised addresses.
STILL := $(if $(shell command -v setarch),setarch -R)
SANITIZE = $(CXX) -std=c++20 -g -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror=psabi -Inative -Itests/native -pthread

build/sanitize/%.address: tests/native/%.cpp $(wildcard tests/native/*.hpp) $(NATIVE)
	@mkdir -p $(@D)
	$(SANITIZE) -fsanitize=address,undefined -fno-sanitize-recover=all $< -o $@

build/sanitize/%.thread: tests/native/%.cpp $(wildcard tests/native/*.hpp) $(NATIVE)
	@mkdir -p $(@D)
	$(SANITIZE) -fsanitize=thread $< -o $@

# Tests that start ranks, with a native core under sanitizers; Python itself is not built with them. What the thread sanitizer
# sees of a race is inside a rank: its threads. Between ranks tests/native has threads in the place of processes.
PRELOAD = $(foreach name,$(1) libstdc++.so,$(shell $(CXX) -print-file-name=$(name)))
SANITIZED = PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/tests/sanitize WEFT_SANITIZED=$(CURDIR)/build/$(1) $(STILL) \
  $(PYTEST) -q -p no:cacheprovider --timeout 900
ASAN_TESTS ?= tests/runtime tests/fused tests/torch/test_collectives.py tests/torch/test_apply.py \
  tests/torch/test_embedding.py tests/benchmarks/test_planned.py tests/compress/test_codecs.py tests/trace
TSAN_TESTS ?= tests/runtime/test_threads.py tests/runtime/test_engines.py tests/runtime/test_commands.py tests/runtime/test_block_allocator.py tests/runtime/test_world.py
sanitize-ranks: build/asan/.core build/tsan/.core ## tests with ranks, by native cores under address + undefined and thread sanitizers
	LD_PRELOAD="$(call PRELOAD,libasan.so)" ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
	  $(call SANITIZED,asan) -m 'not (slow or triton)' $(ASAN_TESTS)
	LD_PRELOAD="$(call PRELOAD,libtsan.so)" TSAN_OPTIONS=abort_on_error=1:halt_on_error=1:suppressions=$(CURDIR)/tests/sanitize/thread.supp \
	  $(call SANITIZED,tsan) -m 'not (slow or triton)' $(TSAN_TESTS)
	LD_PRELOAD="$(call PRELOAD,libtsan.so)" TSAN_OPTIONS=abort_on_error=1:halt_on_error=1:suppressions=$(CURDIR)/tests/sanitize/thread.supp \
	  $(call SANITIZED,tsan) -k million_operations tests/runtime/test_threads.py

build/asan/.core: SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
build/tsan/.core: SANITIZERS := -fsanitize=thread
build/asan/.core build/tsan/.core: .venv/.core $(NATIVE)
	$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -S native -B $(@D) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DSKBUILD_PROJECT_VERSION=sanitized \
	  -Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir) \
	  -DCMAKE_CXX_FLAGS='$(SANITIZERS) -fno-omit-frame-pointer'
	$(BIN)/cmake --build $(@D)
	@touch $@

# Readers of the native core: targets in tests/fuzz/native, driven by coverage (-fsanitize-coverage).
FUZZ_TARGETS := $(patsubst tests/fuzz/native/%.cpp,build/fuzz/%,$(wildcard tests/fuzz/native/fuzz_*.cpp))
FUZZ := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all

SECONDS ?= 600
fuzz: install $(FUZZ_TARGETS) ## every reader and decoder, for SECONDS=600 in all; counts are appended to the results
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

COUNT ?= 40
mutants: install ## COUNT=40 small wrong changes of schedule, simulator, step and planner each: do tests notice?
	$(BIN)/python -m tests.mutation --count $(COUNT)

# Ranks, too: coverage writes itself into every process that inherits its variable.
coverage: install ## lines of the Python packages that tests run, by package
	$(PIP) install --constraint constraints.txt coverage
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml PYTHONPATH=$(CURDIR)/tests/coverage \
	  $(PYTEST) -q -m "not slow" $(TESTS) || true # what failed is said; lines are counted all the same
	$(BIN)/coverage combine --quiet
	$(BIN)/python tests/coverage/packages.py

build/fuzz/fuzz_%: tests/fuzz/native/fuzz_%.cpp $(wildcard tests/fuzz/native/*.hpp) build/fuzz/driver.o $(NATIVE)
	$(SANITIZE) $(FUZZ) -fsanitize-coverage=trace-pc $< build/fuzz/driver.o -o $@

build/fuzz/driver.o: tests/fuzz/native/driver.cpp tests/fuzz/native/target.hpp
	@mkdir -p $(@D)
	$(SANITIZE) $(FUZZ) -c $< -o $@

CPP := $(shell find native tests benchmarks -name '*.[ch]pp')
lint: install ## ruff, mypy and clang-format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy

format: install ## rewrite in the one format
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

.venv/.site: constraints.txt pyproject.toml | .venv/bin/python
	$(PIP) install --constraint constraints.txt mkdocs mkdocs-material 'mkdocstrings[python]'
	@touch $@

docs: install .venv/.site ## the site, from docs/, README and results, into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open build/site/index.html"

# With an empty environment: no compiler on the path, no torch, and not in the folder of the sources.
wheel: install ## a wheel in build/wheel, tried by weft predict and weft analyze in an environment of its own
	@rm -rf build/wheel build/scratch
	$(PIP) wheel --no-deps --no-build-isolation --config-settings=build-dir=build/core --wheel-dir build/wheel .
	@$(BIN)/python -m venv build/scratch
	build/scratch/bin/pip --quiet --disable-pip-version-check install --constraint constraints.txt build/wheel/*.whl
	@$(BIN)/python -c "from benchmarks.synthetic_trace import *; write_events(Path('build/scratch/trace.json.gz'), 2000)"
	@cd build/scratch && for question in '--version' 'predict gpt2 --on a100-8 --set batch=64' 'analyze trace.json.gz'; do \
	  env -i PATH=$$PWD/bin weft $$question > answer.txt || exit 1; head -1 answer.txt; done
	@! build/scratch/bin/python -c 'import torch' 2> /dev/null || { echo "torch came with the wheel"; exit 1; }

pages: install ## the pages made from results: docs/accuracy.md (fits are made again where WEFT_DATA is), docs/performance.md, screenshots (with Chromium)
	$(BIN)/python -m validation -o docs/accuracy.md > /dev/null
	$(BIN)/python -m benchmarks -o docs/performance.md
	$(BIN)/python -m benchmarks.screenshots docs/plots

size: ## lines per package
	@for package in src/weft/*/ src/weft/*.py native tests; do \
	  case $$package in *__pycache__*) continue;; esac; \
	  printf '%6d  %s\n' $$(find $$package -name '*.py' -o -name '*.[ch]pp' -o -name '*.toml' | xargs cat | wc -l) $$package; \
	done

clean: ## remove what was built, and .venv
	rm -rf .venv build
