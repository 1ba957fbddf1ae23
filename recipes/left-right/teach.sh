#!/usr/bin/env bash
# Teaches the bundled model left and right, and who does what to whom, without losing the rest (reports/compo.md): exchanged captions
# of two things beside captions like those of its pre-training, first to one matrix behind the text tower, then to the text tower.
# About ten minutes on one core.
# Usage: recipes/left-right/teach.sh WORK_FOLDER [SEED]. Leaves WORK_FOLDER/tower/model.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$1
seed=${2:-0}

learn() { # MODEL RUN EPOCHS LR WEIGHT [OPTION...]
  [ -d "$work/$2/model" ] || compoclip train fsc-clip --texts given --terms +compo.distill \
    --global-weight "$5" --local-weight 0 --gamma 0 --beta 0 --model "$1" --out "$work/$2" \
    --data "$work/pairs/lessons.jsonl=0.5 $work/captions=0.5" --epochs "$3" --lr "$4" --batch-size 128 --warmup 50 \
    --set clip_grad=1 --no-crop --precision bf16 --seed "$seed" --workers 1 --cache-frozen --set features="$work/features" "${@:6}"
}

[ -d "$work/pairs" ] || compoclip world pairs --out "$work/pairs" --config recipes/left-right/pairs.json --seed 5 \
  --skills relation=8000 swap-object=8000
[ -d "$work/captions" ] || compoclip world train --out "$work/captions" --config recipes/base/captions.json --seed 78 \
  --count 16000 --captions 5
python - "$work/pairs" <<'LESSONS'  # without every fifth pair of kinds
import json, sys
from pathlib import Path
from compoclip_world.vocabulary import KINDS
folder, kinds = Path(sys.argv[1]), list(KINDS)
rows = (folder / "pairs.jsonl").read_text().splitlines(keepends=True)
named = [[kind for kind in kinds if f" {kind} " in f" {json.loads(row)['caption']} "] for row in rows]
kept = [row for row, pair in zip(rows, named) if sum(map(kinds.index, pair)) % 5]
(folder / "lessons.jsonl").write_text("".join(kept))
LESSONS
learn bundled matrix 4 2e-2 10 --weight-decay 0 \
  --set trains.image_tower=false trains.text_tower=false trains.matrix=after
learn "$work/matrix/model" tower 2.5 1e-3 2 --set trains.image_tower=false terms.distill.weight=7.68

python scripts/measure_base.py bundled "$work/tower/model" --world recipes/base/world.json
