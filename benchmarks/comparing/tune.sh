#!/bin/sh
# What `lightning-perf tune` finds on the recipe (ResNet-18 on the synthetic set), within ten minutes on a quiet machine.
# Writes benchmarks/results/tune.md and tune.json.
set -eu
cd "$(dirname "$0")/../.."
PYTHON="${PYTHON:-.venv/bin/python}"
RESULTS=benchmarks/results
"$PYTHON" -m lightning_perf tune recipes.signlang.tune:resnet18 --minutes "${MINUTES:-10}" \
    --markdown "$RESULTS/tune.md.new" --json > "$RESULTS/tune.json.new"
{
    echo '# What `lightning-perf tune` finds on the recipe'
    echo
    echo "Written by \`benchmarks/comparing/tune.sh\`: ResNet-18 on the synthetic set at 64 px, batches of 32."
    echo "$("$PYTHON" -c 'from benchmarks.versions import versions_text; print(versions_text())')."
    echo
    cat "$RESULTS/tune.md.new"
} > "$RESULTS/tune.md"
rm "$RESULTS/tune.md.new"
mv "$RESULTS/tune.json.new" "$RESULTS/tune.json"
