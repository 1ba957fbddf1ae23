#!/usr/bin/env bash
# Trains the bundled base model from nothing. The image tower first, from the scenes themselves. Then the text tower on
# cached image features, by plain contrast alone (`clip`): no negative text, no loss and no data of a recipe that the demo
# or the lab compares. An interrupted command resumes. Usage: recipes/base/pretrain.sh WORK_FOLDER
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
draw lesson-2 30000 2 22 lesson-2.json
draw captions 40000 5 15 captions.json
text_tower clip $recipe/model.json lesson-1 1 3 100 --from-scratch --set image_weights="$work/tower/tower.safetensors"
text_tower clip "$work/1/model" lesson-2 2 1.5 20
text_tower clip "$work/2/model" captions 3 4 100
python scripts/bundle_base.py "$work/3/model" --world $recipe/world.json
