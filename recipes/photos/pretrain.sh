#!/usr/bin/env bash
# Trains the base of the photo lab: both cuts of Flickr8k as one data set (reports/real-photos.md), the image tower with ImageNet
# weights and frozen up to its projection, the text tower from nothing. Each command goes on where it was stopped; what is there is not made again.
# Usage: recipes/photos/pretrain.sh DATA WORK_FOLDER [DRAW]. DRAW: of the split and of the base's weights, 0 by default. Leaves WORK_FOLDER/model, and its retrieval in WORK_FOLDER/results.
set -euo pipefail
data=$(realpath "$1")
mkdir -p "$2"
work=$(realpath "$2")
draw=${3:-0}
cd "$(dirname "$0")/../.."
photos=$work/data

python -m lab.photos "$data" "$photos" --draw "$draw"

if [ ! -d "$work/model" ]; then
  [ -d "$work/clip/model" ] || compoclip train clip --from-scratch --model recipes/photos/model.json \
    --set image_weights="$data/weights/mobilenetv2_100_imagenet.safetensors" \
    --data "$photos/Flickr8k.token.txt" --split train --out "$work/clip" --resume --set save_every=100 --seed "$draw" \
    --freeze image-trunk --cache-frozen --set features="$work/features" --no-crop \
    --texts +other-caption --terms +read-clip.alignment \
    --epochs 25 --batch-size 256 --lr 1e-3 --warmup 100 --weight-decay 0.5 --set clip_grad=1 --set ema=0.99
  rm -rf "$work/model.part"
  cp -r "$work/clip/model" "$work/model.part"
  mv "$work/model.part" "$work/model"
fi

compoclip evaluate base="$work/model" --allow-partial --out "$work/results" \
  --on retrieval:flickr8k,annotations="$photos/Flickr8k.token.txt",split_file="$photos/Flickr_8k.testImages.txt",images="$photos/images"
