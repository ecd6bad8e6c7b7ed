#!/bin/sh
# Everything that needs a CUDA GPU, in pieces of less than ten minutes each on a large one:
#
#   benchmarks/gpu.sh                    all pieces, one after the other
#   benchmarks/gpu.sh tune compare       these
#   TINY=1 benchmarks/gpu.sh             on a CPU, at sizes that tell nothing but that it runs; results go to RESULTS or
#                                        are thrown away
#
# Each piece writes its own result to benchmarks/results/gpu/. One that fails is named at the end, does not keep the
# others from running, and makes the exit code 1. LIMIT_S (600) ends a piece that takes longer, by Ctrl-C. What compare has
# done by then stays in studies/gpu: given again, it goes on. Do so before other pieces: their results are changes to the
# checkout, and its runs have to be of the same code.
#
# EPOCHS (5) of the trainings and RUNS (6) of each precision in compare are what takes its time.
#
# DATA names pictures to train on, as the Kaggle zip; without it the synthetic set is used, which is made once. PYTHON
# names the interpreter: that of .venv, or python3. Nothing is downloaded.
set -u
cd "$(dirname "$0")/.." || exit 2
PIECES="precision-resnet18 precision-resnet50 planted recipe_input train infer tune compare"
TINY="${TINY:-}"
LIMIT_S="${LIMIT_S:-600}"
[ -n "${PYTHON:-}" ] || { [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; } || PYTHON=python3

[ $# -gt 0 ] || set -- $PIECES
for piece in "$@"; do
    case " $PIECES " in
    *" $piece "*) ;;
    *) echo "benchmarks/gpu.sh has no piece $piece. There are $PIECES." >&2 && exit 2 ;;
    esac
done
if [ -z "$TINY" ] && ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "benchmarks/gpu.sh needs a CUDA GPU, and torch finds none. TINY=1 shows on a CPU that it runs." >&2
    exit 2
fi
SCRATCH="$(mktemp -d)"
trap 'rm -rf "$SCRATCH"' EXIT
OUT="${RESULTS:-benchmarks/results/gpu}"
STUDY=studies/gpu
MODEL=resnet50 TUNED=resnet18 SIZE=200 EPOCHS="${EPOCHS:-5}" RUNS="${RUNS:-6}" DEVICE=cuda
if [ -n "$TINY" ]; then
    OUT="${RESULTS:-$SCRATCH/results}" STUDY="$SCRATCH/study"
    MODEL=cnn TUNED=cnn SIZE=18 EPOCHS=1 RUNS=1 DEVICE=cpu
fi
mkdir -p "$OUT"

py() { timeout --signal=INT --kill-after=60 "$LIMIT_S" "$PYTHON" -m "$@"; }

# The article's setting: ResNet-50, 200 px, batches of 32, five epochs.
recipe() {
    py recipes.signlang "$@" --model "$MODEL" --image-size "$SIZE" --batch-size 32 --epochs "$EPOCHS" \
        ${DATA:+--data "$DATA"}
}

trained() { # once, for the pieces that look at a training
    [ -e "$SCRATCH/trained" ] && return
    rm -rf "$SCRATCH/logs"
    recipe train --log-dir "$SCRATCH/logs" && : > "$SCRATCH/trained"
}

made_with() { # a title, and what has to stand beside figures
    "$PYTHON" -c 'import sys; from benchmarks.versions import device_name, versions_text; print(
        f"{sys.argv[1]}\n\nWritten by `benchmarks/gpu.sh`: {sys.argv[2]}; {device_name()}. {versions_text()}.\n")' \
        "$1" "$MODEL at $SIZE px, batches of 32, $EPOCHS epochs"
}

run() {
    case "$1" in
    precision-*)
        name="${1#precision-}"
        py benchmarks.gpu_precision --models "$name" --out "$OUT/gpu_precision_$name" --device "$DEVICE" ${TINY:+--tiny}
        ;;
    planted) py benchmarks.planted --results "$OUT/planted.md" ${TINY:+--rounds 1} ;;
    recipe_input)
        py benchmarks.recipe_input --results "$OUT" --model "$MODEL" --image-size "$SIZE" ${DATA:+--data "$DATA"} \
            ${TINY:+--rounds 1 --steps 10}
        ;;
    train)
        trained && py lightning_perf analyze "$SCRATCH/logs/version_0/perf" > "$SCRATCH/train.txt" &&
            mv "$SCRATCH/train.txt" "$OUT/train.txt"
        ;;
    infer)
        trained && py recipes.signlang infer --log-dir "$SCRATCH/logs" --device "$DEVICE" \
            --markdown "$OUT/inference.md" --plot "$OUT/inference.png" \
            ${TINY:+--variants eager,channels-last --seconds 0.1 --limit 64}
        ;;
    tune)
        py lightning_perf tune "recipes.signlang.tune:$TUNED" --minutes 9 --markdown "$OUT/tune.md" --json \
            ${TINY:+--window 0.05 --rounds 6 --levers channels-last} > "$SCRATCH/tune.json" &&
            mv "$SCRATCH/tune.json" "$OUT/tune.json"
        ;;
    compare)
        recipe compare --runs "$RUNS" --out "$STUDY"
        code=$?
        # 4: the comparison is done, and cannot tell.
        [ $code -eq 0 ] || [ $code -eq 4 ] || return $code
        { made_with "# The recipe in several precisions" && cat "$STUDY/comparison.md"; } > "$SCRATCH/compare.md" &&
            mv "$SCRATCH/compare.md" "$OUT/recipe_compare.md" && cp "$STUDY/comparison.json" "$OUT/recipe_compare.json"
        ;;
    esac
}

failed=""
for piece in "$@"; do
    echo "== $piece"
    run "$piece"
    code=$?
    [ $code -eq 0 ] || failed="$failed $piece (exit code $code)"
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
