"""The comparison of all recipes on the bundled world or on photos, with equal data and samples."""
