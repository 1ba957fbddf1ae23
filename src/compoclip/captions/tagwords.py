"""Word lists of the tagging rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compoclip.captions.types import word_set

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


# --- Word lists of the scene-graph parser. ---

#: Nouns that, before another noun, say what it is made of or looks like: an attribute of it.
MATERIALS = COLOURS | word_set(
    "wood metal glass leather brick stone concrete plastic steel iron aluminum aluminium copper "
    "brass bronze marble granite tile cement asphalt dirt gravel sand mud rock clay ceramic "
    "porcelain rubber cotton wool silk denim velvet lace fur satin linen nylon spandex canvas "
    "straw wicker bamboo pine oak cedar redwood cherry mahogany chrome stucco foam cardboard "
    "styrofoam chain-link mesh wire paisley plaid polka tabby brunette blonde blond toy baby "
    "mother adult male female railroad cobblestone flannel fleece corduroy khaki chocolate laptop "
    "storm"
)
#: With a noun these make one thing: "hot dog" is no dog that is hot.
COLLOCATIONS = frozenset({
    "hot dog", "hot dogs", "polar bear", "polar bears", "wet suit", "wet suits", "high chair",
    "high chairs", "high heels", "hard hat", "hard hats", "french fries", "french fry",
    "double decker", "solar panel", "solar panels", "baby carriage", "baby stroller",
    "rock formation", "rock formations", "storm drain", "grand piano", "electrical outlet",
})  # fmt: skip
#: First words of a colour's name: "dark blue", "bright red".
SHADES = word_set("dark light bright pale deep neon navy royal sky lime off lighter darker")
#: Nouns that only repeat what an adjective says: "white in color", "blue coloured shirt".
QUALITY_NOUNS = word_set("color colour colored coloured shaped sized")
#: Words that name a place at a thing rather than a thing: "the side of the road".
PLACES_AT_THINGS = word_set(
    "side sides top front back corner corners middle center centre edge edges end ends bottom "
    "left right rear base foot tip outside inside"
)
#: Places of the picture itself: nothing in it.
BACKDROPS = word_set("distance color colour")
#: Names of the picture; "close up" is tagged as adjective and noun.
PICTURES = word_set(
    "picture photo photograph image view scene shot closeup close-up up ups pictures photos "
    "photographs images views shots"
)
#: What shows something: "a statue of a man on a horse" tells what is on the horse.
DEPICTIONS = PICTURES | word_set(
    "painting drawing portrait poster mural sketch statue sculpture figurine model reflection "
    "shadow"
)
#: How large a group or a part is, not what is in it.
EXTENTS = word_set(
    "large big huge small little tiny long short tall high great giant massive wide close"
)
#: "a NOUN of Ys" that counts or measures Ys: the Ys are the object. The value is what this says of
#: them, if anything.
QUANTITIES: Mapping[str, str] = {
    **dict.fromkeys(
        word_set(
            "bunch bunches pair pairs couple lot lots alot number row rows set sets stack stacks "
            "pile piles bit bits variety collection cluster clusters line lines kind kinds type "
            "types series herd flock herds flocks bundle mound mounds pad pads body thicket bank "
            "groups crowds part portion section area"
        )
        | PICTURES,
        "",
    ),
    "group": "group of", "crowd": "crowd of", "piece": "piece of", "pieces": "pieces of",
    "slice": "slice of", "slices": "slices of",
}  # fmt: skip
_COUNTS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)
NUMBERS: Mapping[str, int] = {name: value for value, name in enumerate(_COUNTS.split())}
#: Adjectives that say which or how many, not how something is.
NO_QUALITY = word_set(
    "other another several many some few same more most much such own all any each every next "
    "only multiple numerous visible"
)
NEGATIONS = word_set("no not without n't never")
#: What a pronoun stands for when nothing before it fits.
PRONOUNS: Mapping[str, str] = {
    "he": "man", "him": "man", "she": "woman", "her": "woman", "they": "people", "them": "people",
    "i": "person", "someone": "person", "somebody": "person",
}  # fmt: skip
#: Lemmas of people and animals: they act.
PEOPLE = word_set(
    "man woman person people boy girl child kid guy lady player baby skier surfer snowboarder "
    "skateboarder skater batter catcher umpire pitcher crowd couple family gentleman male female "
    "adult toddler pedestrian passenger rider biker cyclist worker officer policeman human "
    "individual spectator audience chef cook waiter teenager tourist student driver friend "
    "soldier bride groom judge mother father dad mom son daughter brother sister referee athlete "
    "runner jogger fan fisherman farmer vendor artist musician teammate somebody someone everyone"
)
ANIMALS = word_set(
    "dog cat horse cow sheep elephant giraffe zebra bear bird duck goose goat kitten puppy animal "
    "monkey seagull pigeon lamb bull deer calf swan parrot lion tiger camel pig rabbit owl "
    "chicken"
)
#: Words behind a noun that say that it is not where it should be.
GONE = word_set("off missing removed gone")
#: What one is "in" that is no place.
MANNERS = word_set(
    "design game match race competition process row line circle group formation motion style "
    "pattern shape way manner focus position pose front action costume tow turn half piece"
)
#: What moves or waits as people do: "a man watching a bus coming".
VEHICLES = word_set(
    "bus train car truck van taxi tram plane airplane aircraft jet airliner helicopter boat ship "
    "ferry kite balloon"
)
BODY_PARTS = word_set(
    "hand finger face head tongue wing leg ear eye nose tail foot arm hair mouth neck shoulder "
    "knee trunk tusk horn hoof paw beak mane fur wrist ankle back chest stomach lap"
)
CLOTHES = word_set(
    "shirt t-shirt jacket coat hat cap helmet jeans pants trousers shorts dress skirt suit tie "
    "shoe boot glove glasses sunglasses goggles sweater sweatshirt hoodie vest uniform wetsuit "
    "swimsuit bikini sandal sneaker sock scarf top outfit apron tuxedo gown robe clothes clothing "
    "jersey leggings tights bandana beanie trunks costume"
)
#: Verbs that say how their subject is: an adjective may follow.
LINKING_VERBS = word_set("look get seem become appear stay remain feel turn sit stand lie grow")
#: Verbs whose object stays where the next preposition says: "holding a bag in his hand".
HOLDING_VERBS = word_set(
    "hold carry have put place see watch contain eat cut show hit pull push keep set hang face "
    "lay rest read touch"
)
#: Verbs that take an "as" which is no clause: "dressed as a clown".
DRESSING_VERBS = word_set("dress disguise use pose")
#: Verbs that never stand without an object: "the bottle a man is holding".
TRANSITIVE_VERBS = word_set("hold wear carry use hit throw catch swing")


# --- Prepositions of captions: how usual each is, which mean nearly the same, which are
# symmetric. ---
#
# `PREPOSITIONS` weights are rounded counts per 25,000 everyday picture descriptions. Prepositions
# that state no relation two things can be seen in ("of", "for", "until") are left out: they are
# never a sensible replacement. Phrasal prepositions are one entry, words separated by blanks.

# fmt: off
PREPOSITIONS: Mapping[str, int] = {
    "on": 8000, "in": 6500, "with": 6000, "at": 1800, "next to": 1600, "down": 900, "to": 900,
    "near": 800, "by": 700, "in front of": 700, "on top of": 680, "over": 450, "from": 400,
    "through": 380, "around": 360, "up": 350, "behind": 290, "under": 280, "inside": 260,
    "into": 240, "outside": 200, "on the side of": 180, "along": 170, "above": 160,
    "in the middle of": 150, "off": 150, "beside": 150, "across": 140, "inside of": 140,
    "full of": 140, "out of": 130, "against": 110, "between": 90, "surrounded by": 80, "past": 70,
    "outside of": 70, "towards": 60, "onto": 60, "on the back of": 55, "underneath": 55,
    "below": 40, "close to": 40, "among": 30, "toward": 30, "atop": 30, "on the edge of": 30,
    "facing": 25, "along with": 20, "in between": 20, "without": 20, "opposite": 15,
    "beneath": 15, "alongside": 15, "at the top of": 15, "away from": 15, "at the end of": 15,
    "amongst": 12, "at the back of": 12, "at the bottom of": 12, "at the edge of": 12,
    "within": 12, "upon": 12, "together with": 10, "on the front of": 10, "across from": 9,
    "to the left of": 8, "to the right of": 8, "in the center of": 6, "at the side of": 5,
    "on the other side of": 3, "far from": 3, "beyond": 3, "at the front of": 3, "left of": 2,
    "right of": 2, "adjacent to": 2, "amid": 2, "aboard": 2, "in back of": 1, "ahead of": 1,
}

#: Groups whose members may describe the same scene; a word may stand in several.
_NEAR_SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("under", "below", "beneath", "underneath"),
    ("over", "above"),
    ("over", "across"),
    ("on", "on top of", "atop", "upon", "onto", "over", "at the top of"),
    ("on", "aboard"),
    ("at", "in", "on"),
    ("in", "inside", "inside of", "within", "into", "in the middle of", "aboard"),
    ("in the middle of", "in the center of"),
    ("next to", "beside", "near", "by", "close to", "alongside", "adjacent to", "at",
     "at the side of", "on the side of", "against"),
    ("among", "amongst", "amid", "between", "in between", "surrounded by", "in the middle of",
     "in", "with"),
    ("with", "along with", "together with", "alongside", "next to", "beside", "by", "near"),
    ("with", "full of"),
    ("to", "toward", "towards", "into", "onto", "facing"),
    ("around", "along", "across", "through"),
    ("along", "down", "up", "on", "alongside"),
    ("down", "through", "across"),
    ("past", "by", "near", "beyond"),
    ("behind", "in back of", "at the back of", "on the back of", "beyond", "on the other side of"),
    ("in front of", "ahead of", "facing", "at the front of", "on the front of"),
    ("across from", "opposite", "facing", "on the other side of", "across"),
    ("out of", "outside", "outside of", "from", "off", "away from"),
    ("far from", "away from", "beyond"),
    ("left of", "to the left of"),
    ("right of", "to the right of"),
    ("on the edge of", "at the edge of", "on the side of", "at the side of", "at the end of", "on"),
    ("below", "at the bottom of"),
    ("above", "at the top of"),
)

#: Vague words and the precise ones whose scenes they describe too; the precise ones of a row
#: do not mean the same as each other.
_VAGUE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("next to", "beside", "near", "by", "close to", "alongside", "adjacent to", "at the side of",
      "on the side of"),
     ("to the left of", "to the right of", "left of", "right of")),
    (("near", "by", "close to", "at"),
     ("in front of", "behind", "along", "around", "opposite", "across from", "facing",
      "at the edge of", "at the end of", "outside", "outside of")),
    (("through",), ("in", "into", "past", "out of")),
    (("down",), ("off",)),
    (("on",), ("on the side of", "on the back of", "on the front of")),
)

#: Relations that stay true when their two sides are exchanged (docs/decisions.md, rule 4).
SYMMETRIC_RELATIONS = frozenset({
    "and", "or", "with", "near", "nearby", "next to", "beside", "by", "close to", "alongside",
    "around", "along", "along with", "together with", "touching", "facing", "opposite", "against",
    "between", "in between", "among", "amongst", "adjacent to", "across from", "hugging", "kissing",
    "embracing", "meeting", "talking to", "talking with", "speaking to", "speaking with",
    "chatting with", "playing with", "dancing with", "fighting with",
})
_SYMMETRIC_VERBS = ("touch", "face", "hug", "kiss", "embrace", "meet")
# A participle before these says who acts on whom ("pulled by", "topped with") unless it says
# where something is ("parked by").
_PASSIVE_PREPOSITIONS = frozenset({"by", "with", "around", "along", "against"})
_PLACED = word_set(
    "parked seated sat located placed situated positioned perched stood lined stacked docked "
    "grouped gathered huddled posed stopped displayed set moored tied"
)
_PARTICIPLES = frozenset({"made", "built", "led", "held", "cut"})
_FILLERS = word_set(
    "is are was were be been being am right directly very just immediately standing sitting "
    "closely all both together up"
)
# fmt: on


def preposition_synonyms(preposition: str) -> frozenset[str]:
    """Prepositions that may describe the same scene as this one; never contains the word itself."""
    low = " ".join(preposition.lower().split())
    found: set[str] = set()
    for group in _NEAR_SYNONYMS:
        if low in group:
            found.update(group)
    for vague, precise in _VAGUE:
        if low in vague:
            found.update(precise)
        if low in precise:
            found.update(vague)
    return frozenset(found - {low})


def is_symmetric(words: Sequence[str]) -> bool:
    """Whether a relation, given word by word, stays true when its sides are exchanged.

    Knows `SYMMETRIC_RELATIONS`, their verbs in every form ("hugs", "is hugging"), and a verb before
    a symmetric preposition ("standing next to", "parked near", "sits right beside"), but no passive
    ("pulled by", "topped with", "surrounded by"). Letter case and auxiliaries are ignored.
    """
    low = [part for word in words for part in word.lower().split()]
    while low and low[0] in _FILLERS:
        low = low[1:]
    if not low:
        return False
    if " ".join(low) in SYMMETRIC_RELATIONS or (len(low) == 1 and low[0] in _SYMMETRIC_VERB_FORMS):
        return True
    if " ".join([_ing(low[0]), *low[1:]]) in SYMMETRIC_RELATIONS:
        return True
    for size in (3, 2, 1):
        tail = " ".join(low[-size:])
        before = [word for word in low[:-size] if word not in _FILLERS and not word.endswith("ly")]
        if tail in SYMMETRIC_RELATIONS and len(before) <= 1:
            return not before or _leaves_symmetric(before[0], tail)
    return False


def _leaves_symmetric(verb: str, preposition: str) -> bool:
    if verb in _PLACED or preposition not in _PASSIVE_PREPOSITIONS:
        return True
    return not (verb.endswith(("ed", "en", "wn")) or verb in _PARTICIPLES)


def _ing(verb: str) -> str:
    """A plain guess at the -ing form: talk, talks, talked -> talking."""
    for ending in ("ing", "ed", "s"):
        if verb.endswith(ending):
            verb = verb[: -len(ending)]
            break
    return verb.removesuffix("e") + "ing"


def _forms(verb: str) -> tuple[str, ...]:
    if verb == "meet":
        return ("meet", "meets", "met", "meeting")
    if verb.endswith("e"):
        return (verb, verb + "s", verb + "d", verb[:-1] + "ing")
    stem = verb + "g" if verb == "hug" else verb
    return (verb, verb + ("es" if verb.endswith(("ss", "ch")) else "s"), stem + "ed", stem + "ing")


_SYMMETRIC_VERB_FORMS = frozenset(form for verb in _SYMMETRIC_VERBS for form in _forms(verb))
