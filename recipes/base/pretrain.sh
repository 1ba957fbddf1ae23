#!/usr/bin/env bash
# Trains the bundled base model from nothing: 29,952 samples of scenes that mostly hold two things, with
# captions that describe both. About 5 minutes. Usage: recipes/base/pretrain.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/base

compoclip world train --out "$work/scenes" --count 20000 --captions 3 --seed 15 \
  --config $recipe/world-pairs.json
compoclip train clip --from-scratch --model $recipe/model.json --data "$work/scenes" --out "$work/run" \
  --epochs 1.5 --batch-size 128 --lr 1e-3 --warmup 100 --clip-grad 1 --no-crop --precision bf16 \
  --log-every 10 --seed 0
python scripts/bundle_base.py "$work/run/model" --world $recipe/world.json
