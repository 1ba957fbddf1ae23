"""Training recipes: one file per published method, each a function that returns a `Method`.

`load_recipe("fsc-clip")` finds a recipe by name. Its parameters are options of `compoclip train`.
The decorators `recipe` and `variant` turn a function into a recipe.
"""

import lazy_loader

from compoclip.notebook import make_callable

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
make_callable(__name__, "list_methods")
