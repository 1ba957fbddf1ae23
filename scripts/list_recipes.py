"""Write src/compoclip/methods/recipes.json: every recipe's options, for help without torch.

python scripts/list_recipes.py, after a recipe's options, defaults or docstring have changed
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import get_args

from compoclip.config import Names, Option, marks_of
from compoclip.methods import registry

FILE = Path(registry.__file__).with_name("recipes.json")


def kind(option: Option) -> str | list[str]:
    """Return the choices of an option, what it names, or its type."""
    names = marks_of(option.kind, Names)
    return names[0].kind if names else list(get_args(option.kind)) or option.kind.__name__


def catalogue() -> str:
    """Return the text of the file."""
    entries = {}
    for path in sorted(FILE.parent.glob("**/*.py")):
        name = ".".join(path.relative_to(FILE.parent).with_suffix("").parts)
        name = name.removesuffix(".__init__").removesuffix("__init__")
        module = importlib.import_module(f"compoclip.methods.{name}".rstrip("."))
        for key, made in registry.recipes_of(vars(module)).items():
            card = made.card
            head = {
                "module": name,
                "about": card.about,
                "defaults": card.defaults,
                "parts": card.parts,
            }
            options = ([o.name, kind(o), o.default, o.help] for o in card.options.values())
            listed = ",\n".join(f"  {json.dumps(each)}" for each in options)
            entry = f'{json.dumps(head)[:-1]}, "options": [\n{listed}\n]}}'
            entries[key.replace("_", "-")] = entry
    rows = ",\n".join(f"{json.dumps(name)}: {entry}" for name, entry in sorted(entries.items()))
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    FILE.write_text(catalogue(), encoding="utf-8")
    sys.exit()
