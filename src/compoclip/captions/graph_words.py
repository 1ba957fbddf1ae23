"""Word lists of the scene-graph parser."""

from __future__ import annotations

from collections.abc import Mapping

from compoclip.captions.tagwords import COLOURS
from compoclip.captions.words import word_set

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
PLACES = word_set(
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
