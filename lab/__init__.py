"""The comparison of all recipes on the bundled world or on photos, under equal conditions."""
