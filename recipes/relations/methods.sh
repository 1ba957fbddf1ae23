#!/usr/bin/env bash
# What methods make of a model that knows above and below: 15,872 samples each, ordinary pictures, two thirds of whose
# captions say a relation or a place. About 4 minutes a run. Usage: recipes/relations/methods.sh WORK_FOLDER, after
# train.sh with the same folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1

compoclip world train --out "$work/captions" --count 8000 --captions 2 --seed 51 \
  --config recipes/relations/captions.json
for seed in 0 1; do
  for method in clip-ft mosaic-clip negclip fsc-clip; do
    stage=()
    [ $method = mosaic-clip ] && stage=(--second-stage 1)
    compoclip train $method --model "$work/4/model" --data "$work/captions" --out "$work/$method-$seed" \
      --epochs 2 --batch-size 128 --lr 5e-4 --warmup 10 --set clip_grad=1 --no-crop --precision bf16 --seed $seed "${stage[@]}"
  done
  python scripts/measure_relations.py "$work"/{4,{clip-ft,mosaic-clip,negclip,fsc-clip}-$seed}/model
done
