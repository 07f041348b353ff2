# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` are all that most people need; see `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
export CMAKE_COLOR_DIAGNOSTICS ?= ON

PRESET ?= release
JOBS ?= $(shell nproc)
# `make demo` asks the bundled model about a sum and about a picture; with MODEL, PROMPT or IMAGE of your own, that question alone.
bundled := models/demo-gdn-vl
MODEL ?= $(bundled)
sum := Anna has 36 marbles. She buys 4 bags with 12 marbles in each and gives 15 marbles to Tom. How many marbles does Anna have now?
build_dir := build/$(PRESET)
# Rooms land as folders: a new CMakeLists.txt must configure again.
cmake_files := CMakeLists.txt CMakePresets.json $(wildcard cmake/* src/*/CMakeLists.txt src/*/*/CMakeLists.txt \
                 tests/CMakeLists.txt fuzz/CMakeLists.txt bench/CMakeLists.txt)

.PHONY: help
help:  ## this list
	@echo "Fluvial: make targets"
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

.PHONY: bootstrap
bootstrap:  # quick when nothing is missing
	@scripts/bootstrap

.PHONY: demo
demo: bootstrap program  ## install what is needed, build, and answer a question with the bundled model
ifneq ($(PROMPT)$(IMAGE),)
	@scripts/demo $(build_dir)/fluvial "$(MODEL)" "$(or $(PROMPT),What do you see?)" "$(IMAGE)"
else ifneq ($(MODEL),$(bundled))
	@scripts/demo $(build_dir)/fluvial "$(MODEL)" "What is a river?"
else
	@scripts/demo $(build_dir)/fluvial "$(MODEL)" "$(sum)"
	@echo
	@scripts/demo $(build_dir)/fluvial "$(MODEL)" "What do you see?" $(bundled)/demo.png
endif

.PHONY: test
test: build  ## build everything and run every test
	@scripts/run_tests $(build_dir)

.PHONY: sanitize
sanitize: bootstrap  ## address+undefined and thread sanitizers on the tests not labelled slow
	@scripts/sanitize $(JOBS)

SECONDS_PER_TARGET ?= 30
.PHONY: fuzz
fuzz:  ## run the fuzz targets with clang-19 (SECONDS_PER_TARGET=30)
	@scripts/fuzz $(SECONDS_PER_TARGET)

.PHONY: bench
bench: build  ## kernel benchmarks of this machine
	@scripts/bench $(build_dir)

.PHONY: build
build: bootstrap $(build_dir)/.configured  ## program, tests and benchmarks: build/release (or PRESET=cpu, dev, asan, tsan, cuda)
	@ninja -C $(build_dir) -j $(JOBS)

.PHONY: program
program: bootstrap $(build_dir)/.configured
	@ninja -C $(build_dir) -n fluvial | grep -q 'no work to do' || ninja -C $(build_dir) -j $(JOBS) fluvial

$(build_dir)/.configured: $(cmake_files) | bootstrap
	@cmake --preset $(PRESET)
	@touch $@

.PHONY: lint
lint:  ## formatting, import arrows, project rules, clang-tidy
	@scripts/lint

.PHONY: format
format:  ## rewrite sources with clang-format-19
	@git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format-19 -i

.PHONY: clean
clean:  ## remove every build folder
	@rm -rf build
