#!/usr/bin/env bash
# Trains the bundled base model from nothing. The image tower first, from the scenes themselves. Then the text tower on
# cached image features, by plain contrast alone: no negative text, and no loss of a recipe that the demo or the lab
# compares. In 8 % of the samples (`twins`) a batch holds two scenes that differ in exchanged colours (`gnm-clip`: plain
# contrast, grouped batches). An interrupted command resumes. Usage: recipes/base/pretrain.sh WORK_FOLDER
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
recipe=recipes/base

draw() { # NAME COUNT CAPTIONS SEED CONFIG
  [ -d "$work/$1" ] || compoclip world train --out "$work/$1" --count "$2" --captions "$3" --seed "$4" --config "$recipe/$5"
}

text_tower() { # METHOD MODEL DATA RUN EPOCHS WARMUP [OPTION...]
  [ -d "$work/$4/model" ] || compoclip train "$1" --model "$2" --data "$work/$3" --out "$work/$4" --epochs "$5" \
    --warmup "$6" --batch-size 128 --lr 1e-3 --set clip_grad=1 --no-crop --seed 0 --workers 1 --set save_every=200 \
    --resume --set trains.image_tower=false --cache-frozen "${@:7}"
}

python scripts/pretrain_image_tower.py --model $recipe/model.json --world $recipe/world.json --steps 6000 --out "$work/tower"

draw lesson-1 20000 2 21 lesson-1.json
[ -d "$work/twins" ] || compoclip world pairs --out "$work/twins" --skills swap-colour=5000 --seed 23
draw captions 40000 5 15 captions.json
text_tower clip $recipe/model.json lesson-1 1 3 100 --from-scratch --set image_weights="$work/tower/tower.safetensors"
text_tower gnm-clip "$work/1/model" twins/pairs.jsonl 2 2 5 --images "$work/twins" --set images.variations=2 images.pairs=0
text_tower clip "$work/2/model" captions 3 4 100
python scripts/bundle_base.py "$work/3/model" --world $recipe/world.json
