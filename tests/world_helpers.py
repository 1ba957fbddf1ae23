"""Things of scenes that tests of the world make by hand."""

from compoclip_world.scene import Thing
from compoclip_world.vocabulary import SIZES


def thing(kind="star", colour="red", size="medium", pattern="plain", x=0.5, y=0.5, depth=0):
    return Thing(kind, colour, size, pattern, x, y, SIZES[size].radius, depth)
