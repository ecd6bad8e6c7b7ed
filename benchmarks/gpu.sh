#!/bin/sh
# Everything that needs a CUDA GPU, one after the other; each part writes its own files to benchmarks/results/.
# A part that fails is named at the end, and does not keep the others from running.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON="${PYTHON:-.venv/bin/python}"

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "benchmarks/gpu.sh needs a CUDA GPU, and torch finds none." >&2
    exit 2
fi

failed=""
for part in gpu_precision recipe_input planted; do
    echo "== $part"
    "$PYTHON" -m "benchmarks.$part" || failed="$failed $part"
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
