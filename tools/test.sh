#!/usr/bin/env bash
# Sets up, builds and runs all tests. Arguments go to ctest, for example: tools/test.sh -R kernels
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup.sh
cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
cmake --build --preset release -j "$(nproc)"
ctest --test-dir build/release --output-on-failure -j "$(nproc)" "$@"
