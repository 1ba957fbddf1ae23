#!/usr/bin/env bash
# Trains the bundled base model from nothing: 40,000 scenes of single things, then 125,000 samples of
# whole scenes. About 25 minutes on 2 cores. Usage: recipes/base/pretrain.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/base

compoclip world train --out "$work/things" --count 40000 --captions 3 --seed 11 \
  --config $recipe/world-1-things.json
compoclip world train --out "$work/scenes" --count 100000 --captions 5 --seed 12 \
  --config $recipe/world-2-scenes.json
common=(--batch-size 64 --lr 1e-3 --warmup 50 --no-crop --precision bf16 --log-every 20 --seed 0)
compoclip train clip --from-scratch --model $recipe/model.json --data "$work/things" \
  --out "$work/stage-1" --epochs 1 "${common[@]}"
compoclip train clip --model "$work/stage-1/model" --data "$work/scenes" \
  --out "$work/stage-2" --epochs 1.25 "${common[@]}"
python scripts/bundle_base.py "$work/stage-2/model" --world $recipe/world-2-scenes.json
