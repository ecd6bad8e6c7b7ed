#!/bin/sh
# What `lightning-perf tune` finds on the recipe (ResNet-18 on the synthetic set), within ten minutes on a quiet machine.
# Writes benchmarks/results/tune.md and tune.json.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-.venv/bin/python}"
"$PYTHON" -m lightning_perf tune recipes.signlang.tune:resnet18 --minutes "${MINUTES:-10}" \
    --markdown benchmarks/results/tune.md --json > benchmarks/results/tune.json.new
mv benchmarks/results/tune.json.new benchmarks/results/tune.json
