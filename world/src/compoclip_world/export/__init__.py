"""Small benchmarks of the world in the official on-disk formats: one file per benchmark.

Every exporter has `build(spec) -> list of Part`: what the files hold and which scenes they show, a
function of the spec alone. `suite.write_suite` runs them all and writes what they made.
"""
