"""Benchmarks: official files on disk -> cases. No torch here.

    from compoclip.benchmarks import benchmark_names, load_benchmark

    found = load_benchmark("sugarcrepe:swap_*", Path("data"))
    print(found.name, found.content.counts())

What lies below a data root, what is faulty and how to fetch it: `compoclip.benchmarks.check`,
`audit`, `solvability` and `fetch`. How a benchmark is added: `compoclip.benchmarks.table`; one in a
file of your own: `compoclip.benchmarks.reader`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
