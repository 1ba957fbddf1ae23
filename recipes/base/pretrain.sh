#!/usr/bin/env bash
# Trains the bundled base model from nothing: 21,000 scenes of single things, then 45,000 samples of
# whole scenes. About 10 minutes on 2 cores. Usage: recipes/base/pretrain.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/base

compoclip world train --out "$work/things" --count 30000 --captions 2 --seed 11 \
  --config $recipe/world-1-things.json
compoclip world train --out "$work/scenes" --count 50000 --captions 4 --seed 12 \
  --config $recipe/world-2-scenes.json
common=(--batch-size 32 --no-crop --precision bf16 --log-every 10 --seed 0)
compoclip train clip --from-scratch --model $recipe/model.json --data "$work/things" \
  --out "$work/stage-1" --epochs 0.7 --lr 1e-3 --warmup 50 "${common[@]}"
compoclip train clip --model "$work/stage-1/model" --data "$work/scenes" \
  --out "$work/stage-2" --epochs 0.9 --lr 8e-4 --warmup 20 "${common[@]}"
python scripts/bundle_base.py "$work/stage-2/model" --world $recipe/world.json
