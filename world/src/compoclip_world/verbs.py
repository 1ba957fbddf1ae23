"""The verbs that this distribution adds to `compoclip`: what each does, and its function."""

DEMO = ("fine-tune a small model offline in three ways, and write a report", "compoclip_world.demo")
WORLD = ("make scenes, captions, training sets and benchmarks", "compoclip_world.cli")
