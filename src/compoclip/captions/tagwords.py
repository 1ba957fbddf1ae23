"""Word lists of the tagging rules."""

from __future__ import annotations

from collections.abc import Mapping

from compoclip.captions.words import word_set

#: Words that have one tag in captions whatever the model says.
ALWAYS: Mapping[str, str] = {
    "giraffe": "NN", "giraffes": "NNS", "frisbee": "NN", "frisbees": "NNS", "teddy": "NN",
    "skateboarder": "NN", "surfer": "NN", "snowboarder": "NN", "skier": "NN", "pasta": "NN",
    "overpass": "NN", "ramen": "NN", "tuxedo": "NN", "kiwi": "NN", "salsa": "NN", "graffiti": "NN",
    "closeup": "NN", "selfie": "NN", "kitty": "NN", "upside": "RB", "wii": "NNP", "nintendo": "NNP",
    "broccoli": "NN", "spaghetti": "NN", "laptop": "NN", "smartphone": "NN", "hotdog": "NN",
    "wooden": "JJ", "metallic": "JJ", "colorful": "JJ", "colourful": "JJ", "ski": "NN",
    "beside": "IN", "atop": "IN", "underneath": "IN", "beneath": "IN", "towards": "IN",
    "toward": "IN", "alongside": "IN", "onto": "IN", "into": "IN", "amongst": "IN",
}  # fmt: skip

COLOURS = word_set(
    "red orange yellow green blue purple violet pink brown black white gray grey tan beige cyan "
    "magenta turquoise teal maroon navy golden silver gold crimson scarlet lime olive indigo"
)
PATTERNS = word_set(
    "striped spotted dotted checkered checked plaid patterned speckled floral solid"
)
#: Adjectives that stand for a noun when none follows.
SUBSTANTIVES = word_set(
    "remote wild adult female male professional individual blonde blond brunette public back "
    "outdoors elderly asian bald double original black-and-white"
)
#: -ing words that are nouns however they stand.
NOUNS_IN_ING = word_set(
    "building ceiling lighting painting clothing bedding railing siding something anything "
    "nothing everything morning evening wedding string spring frosting icing stuffing topping "
    "dressing crossing landing flooring seating filling awning covering writing drawing carving "
    "meeting opening earring shoestring setting clearing outing pudding paneling tiling shelving "
    "netting fencing scaffolding rigging casing plumbing lining wing king ring thing sling "
    "sibling dumpling duckling interesting amazing stunning missing charming boring exciting "
    "offspring herring during"
)
#: -ing words that form compounds with the noun that follows.
COMPOUND_ING = word_set(
    "living dining parking cutting frying waiting shopping gaming sewing swimming recycling "
    "measuring mixing serving baking hiking boarding loading bowling fishing rocking sleeping "
    "vending wrapping cooking chopping changing"
)
#: -ing words that act on the noun that follows and form no compound with it.
TRANSITIVE_ING = word_set(
    "holding wearing carrying riding eating raising throwing catching hitting using reading "
    "pulling pushing feeding brushing watching swinging kicking petting touching drinking lifting "
    "hugging surrounding overlooking"
)
#: Beginnings of verbs that take a place, not an object, after a particle.
MOTION = (
    "walk", "rid", "driv", "travel", "ski", "run", "go", "com", "mov", "fly", "flies", "flew",
    "climb", "slid", "skat", "snowboard", "surf", "jump", "hik", "bik", "cycl", "sail", "float",
    "stroll", "march", "head", "roll", "rac", "trot", "gallop", "fall", "hang", "leap", "dive",
    "diving", "stand", "sit", "look", "step", "rush", "wander", "swim", "crawl", "speed", "cross",
)  # fmt: skip
#: Particles that link to the noun phrase behind them whatever the verb.
LINKING_PARTICLES = word_set("along through across around past by under")
#: Adverbs of place that are prepositions before a noun phrase.
PLACES = word_set(
    "above below inside outside behind underneath beneath under over around near nearby across "
    "beyond through past along by"
)
#: Past forms that are no participle.
PAST_ONLY = word_set(
    "was were did had went rode took ate drank swam flew threw drew wore drove fell gave ran saw "
    "sang grew knew broke chose spoke wrote came became began rose shook froze stole tore woke"
)
#: Plurals without s, as endings.
IRREGULAR_PLURALS = word_set(
    "men women people children teeth feet geese mice oxen sheep deer cattle police buffalo folk "
    "fish bison moose elk aircraft loaves dice lice cacti fungi poultry media data graffiti pants"
)
#: The same form for one and for many.
AMBIGUOUS_PLURALS = word_set("sheep deer fish bison moose elk aircraft buffalo")

_PHRASAL_TEXTS = (
    "in front of", "on top of", "in back of", "to the left of", "to the right of", "next to",
    "out of", "inside of", "outside of", "left of", "right of", "close to", "along with",
    "together with", "away from", "across from", "far from", "adjacent to", "ahead of",
    "because of", "instead of", "far away from", "up to", "in between", "off of", "near to",
    "on the left of", "on the right of", "on to", "in to",
)  # fmt: skip


def _by_first_word(texts: tuple[str, ...]) -> dict[str, tuple[tuple[str, ...], ...]]:
    table: dict[str, list[tuple[str, ...]]] = {}
    for text in sorted(texts, key=len, reverse=True):
        phrase = tuple(text.split())
        table.setdefault(phrase[0], []).append(phrase)
    return {first: tuple(phrases) for first, phrases in table.items()}


#: Phrasal prepositions by their first word, longest first.
PHRASAL: Mapping[str, tuple[tuple[str, ...], ...]] = _by_first_word(_PHRASAL_TEXTS)
