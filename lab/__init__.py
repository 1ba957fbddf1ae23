"""The comparison of all recipes on the bundled world or on photos, with the same data and samples."""
