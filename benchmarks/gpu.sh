#!/bin/sh
# Measure on one CUDA GPU what this project claims about GPUs, in stages of at most eight minutes each.
#
#   benchmarks/gpu.sh first --out DIR      run one stage and write its results to DIR
#   TINY=1 benchmarks/gpu.sh               run every stage on a CPU, at sizes that only show that it works
#   benchmarks/gpu.sh --help               list the stages and the other options
#
# Run the stages in this order: first, table, overhead, planted, rest, compare. With half an hour on a GPU the first four fit.
# PYTHON names the interpreter (default: that of .venv, else python3). Nothing is downloaded.
set -eu
cd "$(dirname "$0")/.."
[ -n "${PYTHON:-}" ] || { [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; } || PYTHON=python3
exec "$PYTHON" -m benchmarks.gpu ${TINY:+--tiny} "$@"
