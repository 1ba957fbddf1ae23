"""Benchmarks: official files on disk -> cases. No torch here.

    from compoclip.benchmarks import benchmark_names, load_benchmark

    found = load_benchmark("sugarcrepe:swap_*", Path("data"))
    print(found.name, found.content.counts())

`compoclip.benchmarks.check` lists the files below a data root, `fetch` downloads them, `audit` and
`solvability` find faulty items. To add a benchmark see `compoclip.benchmarks.table`, for one in a
custom file `compoclip.benchmarks.reader`.
"""

import lazy_loader

from compoclip.notebook import make_callable

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
make_callable(__name__, "list_benchmarks")
