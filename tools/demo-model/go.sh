#!/usr/bin/env bash
# Trains on a machine that has nothing but PyTorch, NumPy and this folder with data/ (train.bin, held-out.bin,
# tokenizer.json). Writes the Hugging Face folder to $OUT/fulmen-story.
#
#   OUT=out bash go.sh 4.5 [options of train.py]
#   FRESH=400000 OUT=out bash go.sh 4.5        tells so many stories on all cores first, instead of those in data/
set -euo pipefail

cd "$(dirname "$0")"
minutes=${1:?minutes of training}
shift
out=${OUT:-out} python=${PYTHON:-python3} data=data
mkdir -p "$out"
if [[ -n ${FRESH:-} ]]; then
    data=fresh
    mkdir -p "$data"
    cp data/tokenizer.json "$data/"
    "$python" corpus.py "$data" --stories "$FRESH"
    "$python" tokens.py "$data"
    # The same stories are held out, so that figures can be compared.
    cp data/held-out.bin "$data/"
    cp "$data/corpus.json" "$out/"
fi
"$python" train.py "$data" "$out/fulmen-story" --minutes "$minutes" "$@" 2>&1 | tee "$out/log.txt"
