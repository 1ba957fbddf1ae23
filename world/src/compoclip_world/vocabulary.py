"""The words of the world: kinds, colours, sizes, patterns and backgrounds, each with synonyms.

Every concept has one canonical word (its key in the tables) and words that mean exactly the same
*in this world*. No word names two concepts. Words that are merely true of a concept (hypernyms
such as "vehicle") live with the oracle, because captions never need them.
"""

from __future__ import annotations

from dataclasses import dataclass

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of thing: other nouns for it, whether it can hold a thing, whether it fills its disc.

    hollow: a smaller thing can be drawn inside it. solid: its silhouette covers enough of its
    disc to take part in an occlusion, where overlap has to be visible. marked_from: the smallest
    size at which a surface pattern can be told on it; None for shapes too thin to show any.
    """

    synonyms: tuple[str, ...]
    hollow: bool = False
    solid: bool = True
    marked_from: str | None = "small"


@dataclass(frozen=True, slots=True)
class ColourSpec:
    """A colour: other adjectives, its RGB, and the contrasting RGB that patterns are drawn in."""

    synonyms: tuple[str, ...]
    rgb: Rgb
    mark: Rgb


@dataclass(frozen=True, slots=True)
class SizeSpec:
    """A size class: adjectives for it, and the radius as a share of the image side."""

    synonyms: tuple[str, ...]
    radius: float


KINDS: dict[str, KindSpec] = {
    "ball": KindSpec(("sphere", "orb")),
    "box": KindSpec(("crate",), hollow=True, solid=False, marked_from=None),
    "star": KindSpec(("pentagram",), marked_from="medium"),
    "heart": KindSpec(("love heart",)),
    "cross": KindSpec(("plus sign",), marked_from="medium"),
    "ring": KindSpec(("hoop",), hollow=True, solid=False, marked_from=None),
    "moon": KindSpec(("crescent",), solid=False, marked_from="medium"),
    "house": KindSpec(("cottage", "home")),
    "tree": KindSpec(("fir", "pine tree")),
    "fish": KindSpec(("trout",), solid=False, marked_from="medium"),
    "mug": KindSpec(("cup",)),
    "key": KindSpec(("latchkey",), solid=False, marked_from=None),
    "umbrella": KindSpec(("parasol",), solid=False, marked_from="medium"),
    "hat": KindSpec(("top hat",)),
    "boat": KindSpec(("ship", "sailboat"), marked_from="medium"),
    "flower": KindSpec(("blossom", "bloom"), marked_from="medium"),
    "arrow": KindSpec(("pointer",), solid=False, marked_from="medium"),
    "bell": KindSpec(("handbell",)),
    "car": KindSpec(("automobile",), solid=False, marked_from="medium"),
    "rabbit": KindSpec(("bunny", "hare"), marked_from="medium"),
    "bottle": KindSpec(("flask",), solid=False, marked_from="medium"),
    "crown": KindSpec(("coronet",), marked_from="medium"),
    "mushroom": KindSpec(("toadstool",)),
    "diamond": KindSpec(("gem", "jewel")),
}

COLOURS: dict[str, ColourSpec] = {
    "red": ColourSpec(("crimson", "scarlet"), (214, 28, 34), (255, 255, 255)),
    "blue": ColourSpec(("sapphire", "azure"), (30, 78, 222), (255, 255, 255)),
    "green": ColourSpec(("emerald",), (34, 158, 58), (255, 255, 255)),
    "yellow": ColourSpec(("golden",), (250, 218, 30), (70, 56, 0)),
    "purple": ColourSpec(("violet",), (128, 40, 176), (255, 255, 255)),
    "orange": ColourSpec(("tangerine",), (250, 132, 16), (255, 255, 255)),
    "pink": ColourSpec(("rosy",), (252, 122, 190), (110, 0, 70)),
    "brown": ColourSpec(("chestnut",), (122, 72, 34), (255, 240, 220)),
    "black": ColourSpec(("ebony",), (26, 26, 28), (165, 165, 165)),
    "white": ColourSpec(("ivory",), (250, 250, 250), (128, 128, 128)),
}

SIZES: dict[str, SizeSpec] = {
    "small": SizeSpec(("tiny", "little"), 0.11),
    "medium": SizeSpec(("medium-sized", "mid-sized"), 0.155),
    "large": SizeSpec(("big", "huge"), 0.22),
}
SIZE_ORDER: tuple[str, ...] = tuple(SIZES)

PATTERNS: dict[str, tuple[str, ...]] = {
    "plain": ("solid", "unpatterned"),
    "striped": ("stripy",),
    "spotted": ("dotted", "polka-dotted"),
    "checked": ("checkered", "chequered"),
}

BACKDROP_COLOURS: dict[str, tuple[tuple[str, ...], Rgb]] = {
    "grey": (("gray",), (160, 160, 160)),
    "white": ((), (246, 246, 246)),
    "black": ((), (24, 24, 26)),
    "beige": (("cream",), (230, 212, 172)),
    "navy": (("dark blue",), (26, 36, 92)),
}
BACKDROP_TEXTURES: dict[str, tuple[str, ...]] = {
    "plain": ("flat",),
    "gradient": ("shaded",),
    "speckled": ("grainy",),
    "lined": ("ruled",),
}

# --- How concepts are said: numbers, relations, places, and every word with its synonyms. ---

NUMERALS: dict[int, str] = {1: "one", 2: "two", 3: "three", 4: "four"}

RELATION_PHRASES: dict[str, tuple[str, ...]] = {
    "left": ("to the left of", "left of", "on the left of", "on the left side of"),
    "right": ("to the right of", "right of", "on the right of", "on the right side of"),
    "above": ("above", "over", "higher than"),
    "below": ("below", "under", "beneath", "lower than"),
    "inside": ("inside", "in", "within"),
    "around": ("around", "containing", "surrounding"),
    "front": ("in front of", "covering part of"),
    "behind": ("behind", "partly hidden by", "to the rear of"),
    "bigger": ("bigger than", "larger than"),
    "smaller": ("smaller than",),
    "same colour": ("the same colour as", "the same color as"),
}
_CORNERS = ("at the {}", "in the {}", "in the {} corner", "in the {} corner of the picture")
_EDGES = ("at the {}", "at the {} of the picture")
_SIDES = ("on the {}", "on the {} side", "on the {} side of the picture")
_MIDDLES = ("in the middle", "in the centre", "in the center", "in the middle of the picture")
POSITION_PHRASES: dict[str, tuple[str, ...]] = {
    "top left": tuple(p.format(w) for w in ("top left", "upper left") for p in _CORNERS),
    "top right": tuple(p.format(w) for w in ("top right", "upper right") for p in _CORNERS),
    "bottom left": tuple(p.format(w) for w in ("bottom left", "lower left") for p in _CORNERS),
    "bottom right": tuple(p.format(w) for w in ("bottom right", "lower right") for p in _CORNERS),
    "top": tuple(p.format("top") for p in _EDGES),
    "bottom": tuple(p.format("bottom") for p in _EDGES),
    "left": tuple(p.format("left") for p in _SIDES),
    "right": tuple(p.format("right") for p in _SIDES),
    "middle": _MIDDLES,
}
SYNONYMS: dict[str, tuple[str, ...]] = {
    **{word: spec.synonyms for word, spec in COLOURS.items()},
    **{word: spec.synonyms for word, spec in SIZES.items()},
    **PATTERNS,
    **{word: spec.synonyms for word, spec in KINDS.items()},
}
SCREEN_PHRASES = ("on {}", "against {}", "with {}")

FAMILIES = ("colour", "size", "pattern")
"""The properties of a thing, by the names of its fields."""
VALUES: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS),
    "size": tuple(SIZES),
    "pattern": tuple(PATTERNS),
}
"""Property -> its values."""

_IRREGULAR_PLURALS = {"fish": "fish", "trout": "trout", "hare": "hares"}


def pluralise(noun: str) -> str:
    """The plural of a (possibly compound) noun of the world: "box" -> "boxes", "fish" -> "fish"."""
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def usual(word: str) -> str:
    """The word that captions have for a concept: its canonical word, "medium-sized" for medium."""
    return "medium-sized" if word == "medium" else word


def with_article(phrase: str) -> str:
    """The phrase with "a" or "an" before it, by its first letter (right for the world's words)."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def clashes(colour: str, backdrop: str) -> bool:
    """True if a thing of this colour would be hard to see on a background of that colour."""
    a, b = COLOURS[colour].rgb, BACKDROP_COLOURS[backdrop][1]
    return sum((p - q) ** 2 for p, q in zip(a, b)) < 105**2


def can_show(kind: str, size: str) -> bool:
    """True if a surface pattern can be told on a thing of this kind and size."""
    smallest = KINDS[kind].marked_from
    return smallest is not None and SIZE_ORDER.index(size) >= SIZE_ORDER.index(smallest)
