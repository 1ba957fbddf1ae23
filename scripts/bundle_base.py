"""Put a trained checkpoint into the package as the bundled base model, in half precision.

    python scripts/bundle_base.py RUN/model --world recipes/base/world.json

Writes world/src/compoclip_world/base: the open_clip directory, and the world it was trained on.
"""

from __future__ import annotations

import argparse
import re
import shutil
from dataclasses import replace
from pathlib import Path

from compoclip.console import end_with
from compoclip.models.checkpoint import load_model, save_model
from compoclip.models.config import read_config, write_json
from compoclip_world.dataset import BASE, read_world_config


def main() -> int:
    """Save, check that it loads, print its size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--world", type=Path, required=True)
    options = parser.parse_args()
    read_world_config(options.world)
    loaded = load_model(options.model)
    data = re.sub(r"\S*/(?=[^/\s]+/[^/\s]+\.tar)", "", loaded.provenance["data"])
    loaded = replace(loaded, provenance={**loaded.provenance, "data": data})  # no machine's path
    shutil.rmtree(BASE, ignore_errors=True)
    save_model(loaded, BASE, dtype="float16")
    config = BASE / "open_clip_config.json"
    write_json(config, read_config(config).to_json())  # without this machine's path
    (BASE / "README.md").unlink()  # docs/base-model.md is its card
    shutil.copyfile(options.world, BASE / "world.json")
    bundled = load_model("bundled")
    parameters = sum(p.numel() for p in bundled.encoder.parameters())
    size = sum(file.stat().st_size for file in BASE.iterdir())
    print(f"{BASE}: {parameters / 1e6:.2f} M parameters, {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    end_with(main, "bundle_base")
