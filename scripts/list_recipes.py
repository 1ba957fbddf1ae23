"""Write src/compoclip/methods/recipes.json: every recipe's options, for help without torch.

python scripts/list_recipes.py, after a recipe's options, defaults or docstring have changed
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from compoclip.methods import registry

FILE = Path(registry.__file__).with_name("recipes.json")


def catalogue() -> str:
    """Return the text of the file."""
    entries = {}
    for path in sorted(FILE.parent.glob("**/*.py")):
        name = ".".join(path.relative_to(FILE.parent).with_suffix("").parts)
        name = name.removesuffix(".__init__").removesuffix("__init__")
        module = importlib.import_module(f"compoclip.methods.{name}".rstrip("."))
        for key, made in registry.recipes_of(vars(module)).items():
            entries[key.replace("_", "-")] = registry.card_record(name, made.card)
    lines = ["{"]
    for name, entry in sorted(entries.items()):
        head = json.dumps({key: entry[key] for key in ("module", "about", "defaults")})[:-1]
        options = ",\n".join(f"  {json.dumps(each)}" for each in entry["options"])
        lines.append(f'{json.dumps(name)}: {head}, "options": [\n{options}\n]}},')
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(catalogue(), encoding="utf-8")
    sys.exit()
