"""The verbs that this distribution adds to `compoclip`: what each does, and its function."""

DEMO = ("the main job, offline, on the bundled world; ends with a report", "compoclip_world.demo")
WORLD = ("make scenes, captions, training sets and benchmarks", "compoclip_world.cli")
