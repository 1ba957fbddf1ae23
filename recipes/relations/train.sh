#!/usr/bin/env bash
# Teaches the bundled model's architecture above and below from nothing, step by step: where single things are; pairs
# of pictures in one batch; then each picture's own caption against its twin's, with more and more pairs
# that only places tell apart. 313,000 samples, about an hour on one core.
# Usage: recipes/relations/train.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/relations
same=(--lr 1e-3 --set clip_grad=1 --no-crop --precision bf16 --seed 0)

draw() { # NAME SEED SKILL=COUNT...
  compoclip world pairs --out "$work/$1" --config $recipe/pairs.json --seed "$2" --skills "${@:3}"
}

from_own_twin() { # MODEL DATA RUN BATCH
  compoclip train fsc-clip --texts given --global-weight 2 --local-weight 0 --gamma 0 --beta 0 --model "$1" \
    --data "$work/$2/pairs.jsonl" --images "$work/$2" --out "$work/$3" --epochs 3 --batch-size "$4" --warmup 50 "${same[@]}"
}

compoclip world train --out "$work/single" --count 20000 --captions 3 --seed 31 --config $recipe/places.json
compoclip train clip --from-scratch --model $recipe/model.json --data "$work/single" --out "$work/1" \
  --epochs 2 --batch-size 128 --warmup 100 "${same[@]}"

draw mixed 7 position=4000 relation=4000 swap-object=4000 swap-colour=3000 object=3000
compoclip train gnm-clip --variations 2 --pairs 0 --model "$work/1/model" --data "$work/mixed/pairs.jsonl" \
  --images "$work/mixed" --out "$work/2" --epochs 3 --batch-size 128 --set min_lr=0 --warmup 50 "${same[@]}"

draw places 11 swap-place=5000 position=2500 swap-colour=2000 relation=1500 swap-object=1500
from_own_twin "$work/2/model" places 3 128

draw more 13 swap-place=9000 position=2500 swap-colour=1000 relation=2500
from_own_twin "$work/3/model" more 4 64

python scripts/measure_relations.py "$work"/{1,2,3,4}/model
