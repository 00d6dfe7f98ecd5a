#!/usr/bin/env bash
# Sets up, builds and runs all tests. Arguments go to ctest, for example: tools/test.sh -R kernels
# Where nvcc is, the CUDA kernels are compiled too, for one architecture.
set -euo pipefail
cd "$(dirname "$0")/.."

configure() {
  cmake --preset "$1" >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
  rm -f build-configure.log
}

tools/setup.sh
configure release
cmake --build --preset release -j "$(nproc)"
if command -v nvcc >/dev/null; then
  configure cuda
  cmake --build --preset cuda -j "$(nproc)" --target strata_kernels_cuda
fi
ctest --test-dir build/release --output-on-failure -j "$(nproc)" "$@"
