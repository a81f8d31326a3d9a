# The short way: each target installs what is missing, configures, builds and runs. CMake and its presets do the work;
# docs/building.md has the options.
JOBS ?= $(shell nproc)
# Extra arguments of the configure step, e.g. CMAKE_ARGS=-DMEGAMLA_CUDA=OFF
CMAKE_ARGS ?=
# make python: anything here tests megamla.torch, too
TORCH ?=
PROGRAM := build/release/apps/megamla/megamla
DEMO := $(PROGRAM) replay examples/demo_trace.jsonl --layers 2,20 --max-requests 3 --verify 0.02

# Looked up when a recipe runs: the bootstrap may just have installed it.
generator = $(if $(wildcard build/$(1)/CMakeCache.txt),,$(if $(shell command -v ninja),-G Ninja))
golden = $(if $(MEGAMLA_GOLDEN_DIR),-DMEGAMLA_GOLDEN_DIR=$(MEGAMLA_GOLDEN_DIR))
configure = cmake --preset $(1) $(call generator,$(1)) $(golden) $(CMAKE_ARGS)
# The flags of this make are not for the build tool that CMake starts.
build = env -u MAKEFLAGS -u MFLAGS cmake --build build/$(1) -j $(JOBS)

.PHONY: help bootstrap bootstrap-lint bootstrap-checks bootstrap-python bootstrap-aarch64 build demo test asan tsan fuzz \
  valgrind python ptx aarch64 format tidy clean

help:
	@echo 'make demo     replay a small trace through the whole layer, verified against the reference'
	@echo 'make test     build and run every test'
	@echo 'make build    build the library, the program and the tests (build/release)'
	@echo 'make asan     build and run every test under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan     build and run the tests with threads under ThreadSanitizer (clang)'
	@echo 'make fuzz     run every fuzz target for FUZZ_SECONDS, default 60 (clang)'
	@echo 'make valgrind a very small replay under memcheck'
	@echo 'make python   build the Python wheel and test it in a virtual environment (pip downloads its requirements);'
	@echo '              TORCH=1: with PyTorch, and the tests of megamla.torch'
	@echo 'make ptx      run the GPU kernels on the CPU: nvcc'"'"'s PTX, interpreted and checked (without nvcc: pip downloads it)'
	@echo 'make aarch64  cross-build for 64-bit ARM and run the tests under QEMU; by hand: it takes long'
	@echo 'make format   format every source in place'
	@echo 'make tidy     clang-tidy over src and apps'
	@echo 'make clean    remove build/'

bootstrap:
	@$(if $(MEGAMLA_NO_BOOTSTRAP),:,scripts/bootstrap.sh)

bootstrap-lint:
	@$(if $(MEGAMLA_NO_BOOTSTRAP),:,scripts/bootstrap.sh --lint)

bootstrap-python:
	@$(if $(MEGAMLA_NO_BOOTSTRAP),:,scripts/bootstrap.sh --python)

bootstrap-aarch64:
	@$(if $(MEGAMLA_NO_BOOTSTRAP),:,scripts/bootstrap.sh --aarch64)

bootstrap-checks:
	@$(if $(MEGAMLA_NO_BOOTSTRAP),:,scripts/bootstrap.sh --checks)

build: bootstrap
	$(call configure,release)
	$(call build,release)

demo: bootstrap
	$(call configure,release)
	$(call build,release) --target megamla_program
	$(DEMO)

test: build
	ctest --preset release -j $(JOBS)

asan: bootstrap
	$(call configure,asan)
	$(call build,asan)
	ctest --preset asan -j $(JOBS)

tsan: bootstrap-checks
	$(call configure,tsan)
	$(call build,tsan) --target threaded_tests
	ctest --preset tsan -j $(JOBS)

fuzz: bootstrap-checks
	$(call configure,fuzz)
	$(call build,fuzz) --target fuzz_programs
	scripts/fuzz.sh

valgrind: bootstrap-checks
	$(call configure,release)
	$(call build,release) --target megamla_program
	scripts/valgrind.sh $(PROGRAM)

python: bootstrap-python
	JOBS=$(JOBS) CMAKE_ARGS='$(CMAKE_ARGS)' TORCH='$(TORCH)' scripts/python.sh

ptx: bootstrap-python
	JOBS=$(JOBS) CMAKE_ARGS='$(golden) $(CMAKE_ARGS)' scripts/ptx.sh

aarch64: bootstrap-aarch64
	scripts/aarch64_sysroot.sh
	$(call configure,aarch64)
	$(call build,aarch64)
	ctest --preset aarch64 -j $(JOBS)

format: bootstrap-lint
	scripts/format.sh

tidy: bootstrap-lint
	scripts/tidy.sh

clean:
	rm -rf build
