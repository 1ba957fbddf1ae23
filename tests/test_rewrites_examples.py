"""Captions, rewrite by rewrite: every text, or the reason of the refusal."""

from __future__ import annotations

import random

import pytest

from compoclip.captions.parser import parse
from compoclip.rewrites.base import Refused, get_rewrite
from compoclip.rewrites.written import same_statement
from rewrite_facts import results, rows

# Rewrite | reason | caption
REFUSED = rows("""
count | empty-caption |
count | no-count | 2
count | no-count | three three
count | no-count | a dog on a beach
count | no-count | one dog on a beach
count | no-count | twelve dogs on a beach
count | no-count | a three-wheeled bike near a car
count | no-count | the two of them on a bench
count | no-count | a man on a four wheeler
count | no-count | a child with a team of five
count | no-count | a two story building with a red door
count | no-count | four men, two in hats
count | not-asserted | no two dogs on a beach
count | not-asserted | two or three dogs on a beach
count | not-asserted | two dogs or a cat on a beach
count | fixed-count | a girl who is ten years old
count | fixed-count | a cake that is five days old
count | fixed-count | a man with two hands on a wheel
count | fixed-count | a bike on two wheels
count | fixed-count | two teams play on a field
count | fixed-count | three dozen donuts in a box
count | fixed-count | two men on the same bike
count | may-hold-as-well | two men and a man
count | may-hold-as-well | two people and a woman on a bench
converse | no-relation | a cat
converse | no-relation | a picture on a wall # "a wall under a picture"
converse | no-relation | a man in front of a laptop # which he has before him
converse | no-relation | a cat is under two tables # "two tables is"
converse | no-relation | a woman next to her dog
converse | no-relation | one dog next to another dog
converse | no-relation | a cat sitting next to a dog # the dog may stand
converse | no-relation | a cat next to a dog on a sofa # on which both may be
converse | no-relation | a man in a hat next to a dog
converse | no-relation | a cat and a dog above a mat
converse | no-relation | a cat not above a dog
converse | no-relation | no cat above a dog
absent-object | empty-caption |
affirmed-object | empty-caption |
crepe-atom | too-few-elements | a star
crepe-negate | empty-caption |
crepe-negate | nothing-to-deny | there is no dog
crepe-negate | nothing-to-deny | ??
crepe-negate | nothing-to-deny | running fast
denial | empty-caption |
denial | nothing-to-deny | there is no cat
denial | nothing-to-deny | it is dark
bigram-shuffle | empty-caption |
bigram-shuffle | too-short | dog
bigram-shuffle | too-short | a dog.
bigram-shuffle | too-short | !
bigram-shuffle | no-new-order | a a a a
noun-adj-shuffle | nothing-to-shuffle | a cat
noun-adj-shuffle | nothing-to-shuffle | a cat and a dog
noun-adj-shuffle | nothing-to-shuffle | a dog beside a dog
noun-adj-shuffle | nothing-to-shuffle | the old old men
noun-adj-shuffle | nothing-to-shuffle | the car is orange and small
negclip | empty-caption |
negclip | no-legal-pair | a cat next to a dog
and-swap | no-and | a cat on a mat
and-swap | no-and | a sandy beach
and-swap | clause | A cat is on a chair and a dog is on a mat
and-swap | scope-unclear | a red car and bus
and-swap | scope-unclear | two cats and dogs
and-swap | scope-unclear | a car and a bus on a road
and-swap | scope-unclear | a cat on a mat and a dog
and-swap | scope-unclear | a cat in the corner of the picture and a dog
and-swap | scope-unclear | a cup and a plate with food
and-swap | list-of-three | a ball, a cat in front of a dog and a cow
and-swap | list-of-three | a cat, a dog and a cow
and-swap | list-of-three | a cat and a dog and a cow
and-swap | list-of-three | a red, white and blue flag
and-swap | pronoun | a man and his dog
and-swap | pronoun | a man holding a cat and petting it
and-swap | unlike-parts | and
and-swap | unlike-parts | a cat and
and-swap | not-asserted | no cat and dog
replace | empty-caption |
replace | too-few-elements | there is no red star
replace | too-few-elements | the mat is not red
replace | too-few-elements | a red star
replace | too-few-elements | !!!
tsvlc-rb | empty-caption |
tsvlc-rb | no-list-applies | a covered wagon
tsvlc-rb | no-list-applies | no red dog
tsvlc-rb | no-list-applies | a dog
tsvlc-rb-released | no-list-applies | a dog
synonym | no-synonym | a snow covered road # holds "red"
synonym | no-synonym | a blacksmith at work
synonym | no-synonym | a man in a shirt # worn, not inside
synonym | no-synonym | a man in front of a house # part of a phrase
synonym | no-synonym | a cart pulled by a dog
synonym | no-synonym | a glass of white wine
synonym | no-synonym | a black and white photo
synonym | no-synonym | a dark blue sky
synonym | no-synonym | a two year old boy
synonym | no-synonym | a bowl holding fruit # bowls do not grasp
synonym | no-synonym | a man walking a dog
synonym | no-synonym | a man looking for a dog
synonym | no-synonym | people hanging out
synonym | no-synonym | a clear bottle
synonym | no-synonym | no red star
synonym | no-synonym | the star is not near a mug
synonym | no-synonym | a black woman
synonym | no-synonym | a dog
synonym-strict | no-synonym | a man wearing a red hat
""")


@pytest.mark.parametrize(("name", "reason", "caption"), REFUSED)
def test_a_caption_is_refused(name: str, reason: str, caption: str) -> None:
    rewrite = get_rewrite(name)
    refusals = {rewrite(parse(caption), random.Random(seed)) for seed in range(8)}
    assert refusals == {Refused(reason)}


@pytest.mark.parametrize(
    ("name", "caption"),
    [
        ("count", f"two dogs near a {'very ' * 80}long fence"),
        ("absent-object", "a dog " * 60),
        ("affirmed-object", "a dog " * 60),
        ("negclip", "a cat on a dog " * 30),
    ],
)
def test_what_clip_would_cut_is_refused(name: str, caption: str) -> None:
    assert get_rewrite(name)(parse(caption), random.Random(0)) == Refused("too-long")


# Rewrite | caption | its texts
TEXTS = rows("""
bigram-shuffle | one dog chases two cats
  | one dog cats chases two | chases two one dog cats | chases two cats one dog
  | cats one dog chases two | cats chases two one dog
bigram-shuffle | A dog bites. | Bites. a dog | Bites a dog.
noun-adj-shuffle | A black cat chases two white dogs.
  | A black dogs chases two white cat. | A white cat chases two black dogs.
  | A white dogs chases two black cat.
noun-adj-shuffle | an old man on a horse | an old horse on a man
negclip | two small dogs on a large couch | two large dogs on a small couch
converse | A red cat above a blue dog | A blue dog below a red cat
converse | a star left of a box | a box right of a star
converse | a star is to the left of an egg. | an egg is to the right of a star.
converse | there is a cat next to an umbrella | there is an umbrella next to a cat
converse | two cats next to a bowl | a bowl next to two cats
converse | a car in front of a house | a house behind a car
converse | A large grey horse is behind a fence. | A fence is in front of a large grey horse.
converse | a traffic light under a cloudy sky | a cloudy sky above a traffic light
converse | A cat above a dog. A cup near a plate.
  | A dog below a cat. A cup near a plate. | A cat above a dog. A plate near a cup.
crepe-swap | a white dog on a brown couch | a brown dog on a white couch # not a couch on a dog
crepe-swap | a dog on a couch | a couch on a dog
crepe-swap | a woman holding a racket and walking a dog
  | a woman holding a dog and walking a racket # the best of bad ones: nobody walks a racket
crepe-negate | a girl in sunglasses standing on grass
  | a girl not in sunglasses standing on grass | a girl in sunglasses not standing on grass
  | a girl in sunglasses standing on grass. There is no girl.
  | a girl in sunglasses standing on grass. There are no sunglasses.
  | a girl in sunglasses standing on grass. There is no grass. | There is no girl in sunglasses.
crepe-negate | two dogs chase a ball | two dogs do not chase a ball
  | two dogs chase a ball. There are no dogs. | two dogs chase a ball. There is no ball.
  | There are no dogs chasing a ball.
crepe-negate | a man rides a bike | a man does not ride a bike
  | a man rides a bike. There is no man. | a man rides a bike. There is no bike.
  | There is no man riding a bike.
crepe-negate | a star above a star | a star above a star. There is no star. # one may be below
tsvlc-rb | the door is open | the door is closed
synonym | a red star | a crimson star
synonym | A white mug. | An ivory mug.
synonym | an old house | an aged house
synonym | a larger dog | a bigger dog
synonym | the smallest dog | the tiniest dog
synonym | a man holds a cup | a man grasps a cup
synonym | a man rides a horse | a man travels on a horse
synonym | a man riding on a horse | a man traveling on a horse
synonym | a man sitting on a chair | a man seated on a chair
synonym | a smiling woman | a happy woman
synonym | the woman is smiling | the woman is happy
synonym | a cat in a box | a cat within a box
synonym | Black cats | Ebony cats
synonym | a bird above a tree | a bird on top of a tree
synonym | a car parked by a tree | a car parked near a tree
synonym | a big red ball | a large red ball | a big crimson ball
synonym | a man wearing a red hat | a man in a red hat | a man wearing a crimson hat
synonym | a white cat and a white dog | an ivory cat and a white dog | a white cat and an ivory dog
synonym-strict | a large man | a big man
""")


@pytest.mark.parametrize(
    ("name", "caption", "texts"), [(name, caption, {*texts}) for name, caption, *texts in TEXTS]
)
def test_all_texts_of_a_caption(name: str, caption: str, texts: set[str]) -> None:
    rewrite = get_rewrite(name)
    rewritten = results(rewrite, caption)
    assert {result.text for result in rewritten} == texts
    assert {result.keeps_meaning for result in rewritten} == {rewrite.keeps_meaning}


# Rewrite | caption | what readers found in a text of it, which is wrong
WRONG = rows("""
ce-adj | a cute dog on a bench | picturesque
ce-adj | a young boy on a bench | old boy
ce-adj | an old fashioned train on a track | new fashioned
ce-adj | a woman riding a brown horse in a field | green horse
ce-adj | a dimly lit room with a table | unlit
ce-noun | a tennis player on a court | sportsman
ce-noun | a cow in a field near a barn | plot
ce-noun | a man in a helmet on a skateboard | in a shoe
ce-noun | a person holding a hotdog in their hand | eye
ce-noun | two pears on a box | breads
ce-noun | two pears on a box | corns
ce-noun | two pears on a box | rices
ce-verb | a plate sitting on a table | lying
ce-verb | a fresh looking salad on a plate | ignoring
ce-verb | a man sitting up in bed | walking up
ce-verb | a girl holding a doughnut with sprinkles | wearing
ce-verb | a person playing a video game on a couch | watching
ce-verb | a hot dog sitting on a bun in a carton | standing
synonym | a bus in route near a station | within route
synonym | a game in progress on a field | within progress
synonym | a fresh looking salad on a plate | gazing
synonym | a plate sitting on a table | seated
synonym | a bird standing near a tree | next to
tsvlc-rb-spatial | a man on a beach with a kite | under a beach
tsvlc-rb-spatial | a couple sitting on a bench near a tree | under a bench
tsvlc-rb-spatial | a game in progress on a field | outside progress
replace | a group of people playing baseball on a field | horses
crepe-negate | many trucks parked on a street | no many
crepe-negate | a bed with a metal frame | not with
negclip-fluent | a table and a cell phone on a laptop | on a table
negclip-fluent | a dog in a bathroom reaching for the toilet paper | a bathroom in a dog
graph-rel | a man in a field with a ball | apron
bigram-shuffle | a cat next to a dog | a dog next to a cat # orders that say the same
bigram-shuffle | a cat and a dog | a dog and a cat
bigram-shuffle | a cat but no dog | no dog but a cat
""")


@pytest.mark.parametrize(("name", "caption", "never"), WRONG)
def test_what_is_wrong_is_not_made(name: str, caption: str, never: str) -> None:
    assert [r.text for r in results(get_rewrite(name), caption, 60) if never in r.text] == []


@pytest.mark.parametrize(
    ("caption", "written", "same"),
    [
        ("a cup of tea and a pot", "a pot and a cup of tea", True),
        (
            "a bottle of wine and a glass on a table",
            "a glass and a bottle of wine on a table",
            True,
        ),
        ("a dog bites a man", "a man bites a dog", False),
    ],
)
def test_what_is_said_around_an_and_may_be_exchanged(
    caption: str, written: str, same: bool
) -> None:
    assert same_statement(parse(caption), parse(written)) is same
