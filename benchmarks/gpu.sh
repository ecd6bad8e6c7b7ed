#!/bin/sh
# Everything that needs a CUDA GPU, one after the other. Results go to benchmarks/results/ (what no CPU can measure) and
# benchmarks/results/gpu/ (what was measured on a CPU, too). DATA names pictures to train on, as the Kaggle zip; without
# it the synthetic set is used. A part that fails is named at the end, and does not keep the others from running.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON="${PYTHON:-.venv/bin/python}"
OUT=benchmarks/results/gpu
SCRATCH="$(mktemp -d)"
trap 'rm -rf "$SCRATCH"' EXIT

if ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "benchmarks/gpu.sh needs a CUDA GPU, and torch finds none." >&2
    exit 2
fi
mkdir -p "$OUT"

failed=""
part() {
    name="$1"
    shift
    echo "== $name"
    "$PYTHON" -m "$@" || failed="$failed $name"
}

# The article's setting: ResNet-50, 200 px, batches of 32, five epochs; true FP32, TF32 and mixed precision.
set -- --model resnet50 --image-size 200 --batch-size 32 ${DATA:+--data "$DATA"}
part gpu_precision benchmarks.gpu_precision
part planted benchmarks.planted
part recipe_input benchmarks.recipe_input --results "$OUT" --model resnet50 --image-size 200 ${DATA:+--data "$DATA"}
part train recipes.signlang "$@" --epochs 5 --log-dir "$SCRATCH/logs"
part infer recipes.signlang infer --log-dir "$SCRATCH/logs" --device cuda \
    --markdown "$OUT/inference.md" --plot "$OUT/inference.png"
part tune lightning_perf tune recipes.signlang.tune:resnet18 --minutes 10 --markdown "$OUT/tune.md"
part compare recipes.signlang compare "$@" --epochs 5 --runs 6 --study-dir "$SCRATCH/study"
cp "$SCRATCH"/study/comparison.md "$OUT/recipe_compare.md"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
