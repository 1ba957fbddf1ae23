"""Training recipes: one file a published method, each a function that returns a `Method`.

A recipe is found by name (`load_recipe("fsc-clip")`), its parameters are the options of
`compoclip train`; `recipe` and `variant` make a function one.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
