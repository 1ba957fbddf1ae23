"""Word lists of the scene-graph parser."""

from __future__ import annotations

from collections.abc import Mapping

from compoclip.captions.tagwords import COLOURS
from compoclip.captions.words import word_set

#: Nouns that, before another noun, say what it is made of or looks like: an attribute of it.
MATERIALS = (
    word_set(
        "wood metal glass leather brick stone concrete plastic steel iron aluminum aluminium "
        "copper brass bronze silver gold marble granite tile tiled cement asphalt dirt gravel "
        "sand mud rock clay ceramic porcelain rubber cotton wool silk denim velvet lace fur satin "
        "linen nylon spandex canvas straw wicker bamboo pine oak cedar redwood cherry mahogany "
        "chrome stucco adobe foam cardboard styrofoam chain-link mesh wire plaid polka tabby "
        "brunette blonde blond toy baby adult male female lady railroad cobblestone flannel "
        "fleece corduroy khaki"
    )
    | COLOURS
)
#: Beginnings of a colour's name: "dark blue", "bright red".
SHADES = word_set("dark light bright pale deep neon hot navy royal sky lime off burnt")
#: Words that point at a picture's part rather than at a thing: "the side of the road".
PLACES = word_set(
    "side sides top front back corner middle center centre edge edges end ends bottom left "
    "right rear base foot tip head background foreground distance"
)
#: "a NOUN of Ys" that counts or measures Ys: the Ys are the object.
QUANTITIES = word_set(
    "group groups bunch bunches pair pairs couple lot lots number row rows set sets stack "
    "stacks pile piles piece pieces slice slices bit bits variety collection cluster clusters "
    "line kind kinds type types series herd flock herds flocks bundle crowd some"
)
#: "a NOUN of X" that is a view or a part without edges of X: X is the object.
VIEWS = word_set(
    "view picture photo photograph image shot part section portion area end tip edge side "
    "front back top bottom middle center corner"
)
#: Quantities that say something of a set of objects worth keeping.
SETS = word_set("group bunch pair herd flock row stack pile crowd cluster set couple")
_COUNTS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)
NUMBERS: Mapping[str, int] = {name: value for value, name in enumerate(_COUNTS.split())} | {
    "couple": 2,
    "pair": 2,
    "both": 2,
}
#: Determiner-like words that are no attributes.
NO_QUALITY = word_set(
    "other another several many some few same various more most much such own all any each "
    "every different multiple numerous only next first second third last certain visible"
)
NEGATIONS = word_set("no not without n't never")
#: What a pronoun stands for when nothing before it fits.
PRONOUNS: Mapping[str, str] = {
    "he": "man", "him": "man", "she": "woman", "her": "woman", "they": "people", "them": "people",
    "i": "person", "someone": "person", "somebody": "person",
}  # fmt: skip
#: Nouns of beings that act.
PEOPLE = word_set(
    "man men woman women person people boy boys girl girls child children kid kids guy guys "
    "lady ladies player players baby babies skier skiers surfer surfers snowboarder "
    "skateboarder batter catcher umpire pitcher crowd group couple family gentleman male "
    "female adult toddler pedestrian pedestrians passenger passengers rider riders biker "
    "bikers cyclist worker workers officer policeman human humans individual spectators "
    "spectator audience player chef cook waiter teenager tourist tourists student students "
    "driver friend friends soldier bride groom"
)
ANIMALS = word_set(
    "dog dogs cat cats horse horses cow cows sheep elephant elephants giraffe giraffes zebra "
    "zebras bear bears bird birds duck ducks goose geese goat goats kitten puppy animal "
    "animals monkey seagull seagulls pigeon pigeons lamb bull deer calf swan swans parrot "
    "polar"
)
CLOTHES = word_set(
    "shirt shirts t-shirt jacket jackets coat coats hat hats cap caps helmet helmets jeans "
    "pants trousers shorts dress dresses skirt skirts suit suits tie ties shoes shoe boots "
    "boot gloves glove glasses sunglasses goggles sweater sweatshirt hoodie vest uniform "
    "uniforms wetsuit swimsuit bikini sandals sneakers socks sock scarf tank-top top outfit "
    "apron tuxedo gown robe clothes clothing jersey leggings tights bandana beanie trunks "
    "costume"
)
