#!/usr/bin/env bash
# Teaches the bundled model's architecture relations from nothing: first where single things are, then minimal
# pairs of two things. 268,000 samples, about 50 minutes on one core.
# Usage: recipes/relations/train.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/relations

compoclip world train --out "$work/places" --count 20000 --captions 3 --seed 31 --config $recipe/places.json
compoclip train clip --from-scratch --model recipes/base/model.json --data "$work/places" --out "$work/one" \
  --epochs 2 --batch-size 128 --lr 1e-3 --warmup 100 --clip-grad 1 --no-crop --precision bf16 --seed 0

compoclip world pairs --out "$work/pairs" --config $recipe/pairs.json --seed 41 \
  --skills swap-place=16000 relation=8000 swap-object=4000 position=5000 swap-colour=5000
compoclip train fsc-clip --texts given --global-weight 2 --local-weight 0 --gamma 0 --beta 0 \
  --model "$work/one/model" --data "$work/pairs/pairs.jsonl" --images "$work/pairs" --out "$work/two" \
  --epochs 3 --batch-size 64 --lr 1e-3 --warmup 50 --clip-grad 1 --no-crop --precision bf16 --seed 0
