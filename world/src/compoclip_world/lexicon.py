"""The words that the oracle understands: those of the captions, and those that are true of them.

Rewrites bring in words that no caption uses. They fall into four groups: exact synonyms; words
that are certainly true of some kinds (hypernyms such as "vehicle"); words of which nobody can say
whether they are true of some kinds ("jar" and a bottle); and words foreign to the world.
"""

from __future__ import annotations

from compoclip_world.vocabulary import (
    BACKDROP_COLOURS,
    BACKDROP_TEXTURES,
    COLOURS,
    KINDS,
    PATTERNS,
    SIZES,
    pluralise,
)

_ALL = " ".join(KINDS)


def listed(words: str) -> tuple[str, ...]:
    """The words of a blank-separated list."""
    return tuple(words.split())


_MORE_SYNONYMS: dict[str, str] = {
    "asterisk": "star",
    "auto": "car",
    "motorcar": "car",
    "brolly": "umbrella",
    "coneys": "rabbit",
    "cony": "rabbit",
    "gemstone": "diamond",
    "precious stone": "diamond",
    "conifer": "tree",
    "evergreen": "tree",
    "diadem": "crown",
    "sailing boat": "boat",
    "plus": "cross",
    "crescent moon": "moon",
    "carton": "box",
}
_SURE: dict[str, str] = {
    **dict.fromkeys(("thing", "object", "item", "shape", "icon", "entity", "something"), _ALL),
    **dict.fromkeys(("figure", "form", "symbol", "sign"), _ALL),
    "vehicle": "car boat",
    "transport": "car boat",
    "craft": "boat",
    "watercraft": "boat",
    "animal": "fish rabbit",
    "creature": "fish rabbit",
    "vertebrate": "fish rabbit",
    "mammal": "rabbit",
    "building": "house",
    "dwelling": "house",
    "structure": "house",
    "residence": "house",
    "plant": "tree flower",
    "fungus": "mushroom",
    "container": "box mug bottle",
    "receptacle": "box mug bottle",
    "vessel": "boat bottle mug",
    "drinking vessel": "mug",
    "headgear": "hat crown",
    "headdress": "hat crown",
    "headwear": "hat crown",
    "clothing": "hat",
    "garment": "hat",
    "circle": "ring ball",
    "square": "box",
    "stone": "diamond",
}
_UNSURE: dict[str, str] = {
    **dict.fromkeys(("toy", "artefact", "artifact", "element", "one", "pattern"), _ALL),
    **dict.fromkeys(("disc", "disk", "globe", "bubble", "balloon", "marble", "bead"), "ball"),
    **dict.fromkeys(("dot", "spot", "button", "round", "planet", "sun"), "ball"),
    **dict.fromkeys(("loop", "band", "bracelet", "wheel", "circlet", "hole"), "ring"),
    **dict.fromkeys(("frame", "cube", "rectangle", "case", "chest", "container box"), "box"),
    **dict.fromkeys(("window", "bin", "package"), "box"),
    **dict.fromkeys(("polygon", "quadrilateral"), "star cross diamond box"),
    **dict.fromkeys(("jar", "jug", "vase", "flagon", "vial", "phial"), "bottle mug"),
    **dict.fromkeys(("glass", "beaker", "tankard", "teacup", "stein", "pot"), "mug bottle"),
    **dict.fromkeys(("cabin", "hut", "shed", "shack", "lodge", "barn", "bungalow"), "house"),
    **dict.fromkeys(("villa", "chalet", "mansion", "shelter"), "house"),
    **dict.fromkeys(("goldfish", "salmon", "carp", "bass", "cod", "tuna", "whale"), "fish"),
    **dict.fromkeys(("pine", "spruce", "cedar", "larch", "bush", "shrub"), "tree"),
    **dict.fromkeys(("daisy", "rose", "tulip", "daffodil", "poppy"), "flower"),
    **dict.fromkeys(("cap", "bonnet", "fedora", "bowler", "helmet", "topper"), "hat"),
    **dict.fromkeys(("yacht", "dinghy", "sailing ship", "sloop", "schooner"), "boat"),
    **dict.fromkeys(("taxi", "cab", "sedan", "coupe", "van", "truck", "jeep", "machine"), "car"),
    **dict.fromkeys(("tiara", "coronal", "wreath"), "crown"),
    **dict.fromkeys(("crystal", "ruby", "brilliant", "jewellery", "jewelry"), "diamond"),
    **dict.fromkeys(("chime", "gong"), "bell"),
    **dict.fromkeys(("canopy", "shade", "sunshade"), "umbrella"),
    **dict.fromkeys(("crucifix", "x", "mark", "plus mark"), "cross"),
    **dict.fromkeys(("satellite", "half moon", "banana"), "moon"),
    **dict.fromkeys(("dart", "marker", "cursor"), "arrow"),
    **dict.fromkeys(("opener", "passkey", "tool", "device"), "key"),
    **dict.fromkeys(("valentine", "love"), "heart"),
}

Kinds = tuple[frozenset[str], frozenset[str]]


def _nouns() -> dict[str, tuple[Kinds, bool]]:
    table: dict[str, tuple[Kinds, bool]] = {}

    def add(word: str, sure: str, unsure: str) -> None:
        kinds = frozenset(sure.split()), frozenset(unsure.split()) - frozenset(sure.split())
        table[word] = kinds, False
        if pluralise(word) != word:
            table.setdefault(pluralise(word), (kinds, True))

    for word, kinds in _UNSURE.items():
        add(word, "", kinds)
    for word, kinds in _SURE.items():
        add(word, kinds, "")
    for word, kind in _MORE_SYNONYMS.items():
        add(word, kind, "")
    for kind, spec in KINDS.items():
        for word in (kind, *spec.synonyms):
            add(word, kind, "")
    return table


NOUNS: dict[str, tuple[Kinds, bool]] = _nouns()
"""Noun form -> ((kinds it names for certain, kinds it may name), is plural)."""

_MORE_COLOURS: dict[str, str] = {
    **dict.fromkeys(("ruby", "cherry", "carmine", "reddish", "ruddy"), "red"),
    **dict.fromkeys(("cobalt", "bluish", "ultramarine"), "blue"),
    **dict.fromkeys(("greenish", "verdant"), "green"),
    **dict.fromkeys(("gold", "lemon", "yellowish", "canary"), "yellow"),
    **dict.fromkeys(("purplish", "amethyst"), "purple"),
    **dict.fromkeys(("rose", "pinkish", "roseate"), "pink"),
    **dict.fromkeys(("brownish", "chocolate"), "brown"),
    **dict.fromkeys(("jet", "jet-black", "inky", "blackish"), "black"),
    **dict.fromkeys(("snowy", "whitish", "snow-white"), "white"),
    "orangish": "orange",
}
_MORE_SIZES: dict[str, str] = {
    **dict.fromkeys(("miniature", "minuscule", "mini", "minute", "petite", "wee"), "small"),
    **dict.fromkeys(("mid-size", "medium-size", "middle-sized", "average"), "medium"),
    **dict.fromkeys(("giant", "gigantic", "enormous", "massive", "great"), "large"),
}
_MORE_PATTERNS: dict[str, str] = {
    **dict.fromkeys(("stripey", "banded", "streaked"), "striped"),
    **dict.fromkeys(("spotty", "dotty", "polka-dot"), "spotted"),
    **dict.fromkeys(("unmarked", "unadorned", "patternless"), "plain"),
    "checkerboard": "checked",
}
_MAYBE_COLOURS: dict[str, str] = {
    "maroon": "red brown purple",
    "magenta": "pink purple red",
    "indigo": "purple blue",
    "navy": "blue",
    "dark blue": "blue",
    "teal": "green blue",
    "turquoise": "blue green",
    "cyan": "blue",
    "lime": "green",
    "olive": "green brown",
    "lavender": "purple pink",
    "lilac": "purple pink",
    "mauve": "purple pink",
    "amber": "orange yellow",
    "tan": "brown",
    "bronze": "brown",
    "copper": "brown orange",
    "rusty": "brown orange red",
    "beige": "brown white",
    "cream": "white",
    "silver": "white",
    "pale": "white pink yellow",
    "light": "white pink yellow orange",
    "bright": "white yellow orange red pink green blue",
    "dark": "black brown purple blue",
    "coloured": "red blue green yellow purple orange pink brown",
    "colored": "red blue green yellow purple orange pink brown",
}
_VAGUE = (
    "long short tall thin thick wide narrow round flat pretty nice beautiful simple lone single "
    "only visible bold patterned plaid speckled lined mottled streaky sized other same different "
    "front back main left-hand right-hand hollow empty open closed full solitary"
)


def _adjectives() -> dict[str, tuple[str, str]]:
    table = {word: ("vague", word) for word in listed(_VAGUE)}
    table |= {word: ("maybe colour", colours) for word, colours in _MAYBE_COLOURS.items()}
    for family, more in (
        ("colour", _MORE_COLOURS),
        ("size", _MORE_SIZES),
        ("pattern", _MORE_PATTERNS),
    ):
        table |= {word: (family, value) for word, value in more.items()}
    for value, colour in COLOURS.items():
        table |= dict.fromkeys((value, *colour.synonyms), ("colour", value))
    for value, size in SIZES.items():
        table |= dict.fromkeys((value, *size.synonyms), ("size", value))
    for value, pattern in PATTERNS.items():
        table |= dict.fromkeys((value, *pattern), ("pattern", value))
    return table


ADJECTIVES: dict[str, tuple[str, str]] = _adjectives()
"""Adjective -> (attribute family, value)."""

COLOUR_NOUNS: frozenset[str] = frozenset(
    listed("orange lemon cherry rose violet chestnut gold silver ruby chocolate lime olive")
)
"""Colour words that also name a thing, one that the world does not hold."""

PLACES: dict[str, str] = {
    **dict.fromkeys(("top", "upper", "topmost", "uppermost"), "top"),
    **dict.fromkeys(("bottom", "lower", "lowermost", "bottommost"), "bottom"),
    **dict.fromkeys(("left", "left-hand", "leftmost"), "left"),
    **dict.fromkeys(("right", "right-hand", "rightmost"), "right"),
    **dict.fromkeys(("middle", "centre", "center", "central"), "middle"),
}
"""Words for a place in the picture -> the part of its name in `geometry.POSITIONS`."""

RELATIONS: dict[str, tuple[str | None, bool]] = {
    **{
        f"{lead}{side}{tail} of": (side, False)
        for side in ("left", "right")
        for lead in ("to the ", "on the ", "at the ", "")
        for tail in ("", " side", "-hand side", " hand side")
    },
    **dict.fromkeys(("above", "over", "higher than", "atop", "on top of"), ("above", False)),
    **dict.fromkeys(("below", "under", "beneath", "underneath"), ("below", False)),
    **dict.fromkeys(("lower than", "down from"), ("below", False)),
    **dict.fromkeys(("inside", "in", "within", "inside of", "into"), ("inside", False)),
    **dict.fromkeys(
        ("in the middle of", "in the centre of", "in the center of"), ("inside", False)
    ),
    **dict.fromkeys(("enclosed by", "surrounded by", "contained in"), ("inside", False)),
    **dict.fromkeys(("around", "containing", "surrounding", "enclosing"), ("around", False)),
    **dict.fromkeys(("in front of", "covering part of", "covering"), ("front", False)),
    **dict.fromkeys(("partly covering", "hiding part of", "before"), ("front", False)),
    **dict.fromkeys(("behind", "partly hidden by", "to the rear of"), ("behind", False)),
    **dict.fromkeys(("in back of", "hidden by", "partly covered by"), ("behind", False)),
    **dict.fromkeys(("bigger than", "larger than"), ("bigger", False)),
    **dict.fromkeys(("smaller than", "tinier than", "littler than"), ("smaller", False)),
    **{
        f"{lead}the same {word} as": (name, False)
        for lead in ("", "of ", "in ", "with ", "has ", "having ")
        for word, name in (
            ("colour", "same colour"),
            ("color", "same colour"),
            ("size", "same size"),
            ("pattern", "same pattern"),
        )
    },
    **{
        f"a different {word} {link}": (f"same {family}", True)
        for word, family in (("colour", "colour"), ("color", "colour"), ("size", "size"))
        for link in ("from", "than", "to", "as")
    },
    **dict.fromkeys(("as big as", "as large as", "as small as"), ("same size", False)),
    **dict.fromkeys(("near", "by", "beside", "next to", "close to"), ("near", False)),
    **dict.fromkeys(("adjacent to", "alongside", "nearby", "besides"), ("near", False)),
    **dict.fromkeys(("far from", "away from", "far away from"), ("near", True)),
    **dict.fromkeys(("touching", "on", "upon", "against", "overlapping"), ("touching", False)),
    **dict.fromkeys(("onto", "joined to", "attached to"), ("touching", False)),
    **dict.fromkeys(("outside", "outside of", "out of"), ("inside", True)),
    **dict.fromkeys(("with", "along with", "together with", "plus"), ("with", False)),
    **dict.fromkeys(("accompanied by", "as well as", "amid", "among"), ("with", False)),
    **dict.fromkeys(("through", "across", "along", "throughout"), ("contact", False)),
    **dict.fromkeys(("in the place of", "instead of"), ("foreign", False)),
    **dict.fromkeys(
        [
            "during",
            "until",
            "till",
            "since",
            "despite",
            "because",
            "for",
            "of",
            "per",
            "via",
            "concerning",
            "regarding",
            "like",
            "as",
            "than",
            "versus",
            "notwithstanding",
            "pending",
            "unlike",
            "considering",
            "amongst",
            "given",
            "unto",
            "following",
            "save",
            "excluding",
            "including",
            "aboard",
        ],
        ("foreign", False),
    ),
    **dict.fromkeys(("at the top of", "at the bottom of", "across from"), (None, False)),
    **dict.fromkeys(
        [
            "at",
            "from",
            "to",
            "off",
            "past",
            "beyond",
            "opposite",
            "between",
            "toward",
            "towards",
            "about",
            "round",
            "up",
            "down",
        ],
        (None, False),
    ),
}
"""Relation phrase -> (name, negated). None: a place word nobody can decide here. "foreign": it
holds between no two drawn things (time, cause, comparison of natures). "with": both are there.
"contact": undecided where the things meet, false where they are clearly apart.
"""

BACKGROUND_COLOURS: dict[str, str] = {
    **{word: name for name, (words, _) in BACKDROP_COLOURS.items() for word in (name, *words)},
    "ivory": "white",
    "ebony": "black",
    "greyish": "grey",
    "grayish": "grey",
}
BACKGROUND_TEXTURES: dict[str, str] = {
    **{word: name for name, words in BACKDROP_TEXTURES.items() for word in (name, *words)},
    "graded": "gradient",
    "noisy": "speckled",
    "gridded": "lined",
    "solid": "plain",
}
BACKGROUND_MAYBE: dict[str, str] = {
    "blue": "navy",
    "dark": "navy black grey",
    "light": "white beige grey",
    "pale": "white beige grey",
    "bright": "white beige",
    "silver": "grey",
    "tan": "beige",
    "brown": "beige",
    "yellow": "beige",
    "striped": "lined",
    "checked": "lined",
    "spotted": "speckled",
}
"""Words that may be true of these background colours or textures, and are false of others."""

NUMBERS: dict[str, int] = {
    **{
        word: n
        for n, word in enumerate(listed("one two three four five six seven eight nine ten"), 1)
    },
    **{str(n): n for n in range(1, 11)},
}
