"""The comparison of all recipes on the bundled world, under equal conditions."""
