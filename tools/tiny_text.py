"""The text tiny-llama learns: short stories, lists, sums and diaries from a small grammar.

Names and words given early return late, so that a trained model must look far back.
"""

from __future__ import annotations

import random
from collections.abc import Callable


def _words(text: str) -> list[str]:
    return text.split()


HERS = _words(
    "Anna Bella Clara Dora Emma Flora Greta Hanna Ida Julia Lena Mira Nora Olga Rosa Vera"
    " Wilma Sophie Yvonne Zoe"
)
HIS = _words(
    "Adam Boris Carl David Emil Felix Georg Henry Ivan Jacob Leo Martin Noah Oscar Peter Victor"
    " William Simon Quentin Thomas"
)
ANIMALS = _words(
    "rabbit squirrel hedgehog badger sparrow donkey kitten turtle penguin hamster goose beaver"
    " piglet falcon monkey lizard buffalo leopard dolphin nightingale"
)
PLACES = _words(
    "forest village castle harbour garden valley meadow mountain library market cottage windmill"
    " island orchard bakery lighthouse museum station desert waterfall"
)
THINGS = _words(
    "lantern button feather compass ribbon whistle marble teapot blanket ladder basket mirror"
    " hammer violin bottle candle pencil wagon kite drum umbrella necklace envelope trumpet"
)
LOOKS = _words(
    "golden silver broken shiny wooden purple yellow dusty crooked heavy striped frozen tiny"
    " ancient painted hollow elegant transparent borrowed square"
)
MOODS = _words(
    "gentle clever lonely hungry cheerful sleepy stubborn curious brave patient generous polite"
    " thoughtful nervous"
)
FOODS = _words(
    "apples bread butter carrots cherries honey lemons milk mushrooms noodles onions pepper"
    " potatoes pumpkin raisins sugar tomatoes walnuts cinnamon chocolate strawberries flour"
)
WEATHER = _words("sunny rainy windy cloudy snowy foggy stormy")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


def _person(rng: random.Random) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        return rng.choice(HERS), "she", "her"
    return rng.choice(HIS), "he", "his"


def write_story(rng: random.Random) -> str:
    """A story whose name, animal, thing and place return at the end."""
    (name, they, their), (friend, _, _) = _person(rng), _person(rng)
    animal, other = rng.sample(ANIMALS, 2)
    place, goal = rng.sample(PLACES, 2)
    thing, look, mood = rng.choice(THINGS), rng.choice(LOOKS), rng.choice(MOODS)
    weather, day = rng.choice(WEATHER), rng.choice(DAYS)
    opening = (
        f"Once upon a time there was a {mood} {animal} named {name}."
        f" {name} lived in a {place} and every day {they} walked to the {goal}."
    )
    loss = (
        f" One {weather} {day} {name} lost {their} {look} {thing}."
        f' "Where is my {look} {thing}?" asked {name}. {name} looked in the {place},'
        f" but the {thing} was not there. Then {name} met {friend} the {other}."
        f' "I saw a {look} {thing} in the {goal}," said {friend} the {other}.'
        f" So {name} and {friend} went to the {goal} together, and there was the {thing}."
    )
    gift = (
        f" One {weather} {day} {name} found a {look} {thing} in the {goal}."
        f' "What a {look} {thing}!" said {name}. {name} gave the {thing} to {friend} the {other}.'
        f' "Thank you, {name}," said {friend} the {other}. "I always wanted a {look} {thing}."'
    )
    ending = (
        f" From that {day} on, {name} the {animal} and {friend} the {other} were good friends,"
        f" and they kept the {look} {thing} in the {place}."
    )
    return opening + (loss if rng.random() < 0.5 else gift) + ending


def write_shopping(rng: random.Random) -> str:
    """A numbered list that a sentence then repeats in order."""
    name, they, _ = _person(rng)
    items = rng.sample(FOODS, rng.randint(3, 6))
    listed = "".join(f"\n{i}. {item}" for i, item in enumerate(items, 1))
    spoken = ", ".join(items[:-1]) + " and " + items[-1]
    return (
        f"The shopping list of {name} has {len(items)} lines:{listed}\n"
        f"At the market {name} bought {spoken}. Then {they} carried everything home."
    )


def write_counting(rng: random.Random) -> str:
    """Counting in even steps."""
    step, start = rng.randint(1, 5), rng.randint(1, 9)
    row = ", ".join(str(start + step * i) for i in range(rng.randint(8, 16)))
    return f"Counting from {start} in steps of {step}: {row}."


def write_purse(rng: random.Random) -> str:
    """Running sums over one digit; each line starts where the one before ended."""
    name, they, _ = _person(rng)
    thing = rng.choice(THINGS) + "s"
    total = rng.randint(1, 9)
    lines = [f"{name} has {total} {thing}."]
    for _ in range(rng.randint(3, 6)):
        more = rng.randint(1, 5)
        lines.append(f"{name} finds {more} more: {total} + {more} = {total + more}.")
        total += more
    lines.append(f"Now {they} has {total} {thing}.")
    return " ".join(lines)


def write_diary(rng: random.Random) -> str:
    """The days of a week in order, with one food and one place that keep returning."""
    name, they, _ = _person(rng)
    food, place, first = rng.choice(FOODS), rng.choice(PLACES), rng.randint(0, 6)
    lines = [f"The diary of {name}."]
    for i in range(rng.randint(4, 7)):
        day, weather = DAYS[(first + i) % 7], rng.choice(WEATHER)
        act = (
            f"ate {food} at home"
            if weather in ("rainy", "snowy", "stormy")
            else (f"went to the {place}")
        )
        lines.append(f"{day} was {weather}, so {they} {act}.")
    return " ".join(lines)


KINDS: tuple[Callable[[random.Random], str], ...] = (
    write_story, write_story, write_shopping, write_counting, write_purse, write_diary,
)  # fmt: skip


def write_documents(seed: int, count: int) -> list[str]:
    """`count` documents; one seed, one text."""
    rng = random.Random(seed)
    return [rng.choice(KINDS)(rng) for _ in range(count)]


def write_held_out(seed: int, count: int, seen: set[str]) -> list[str]:
    """Up to `count` documents that training has not seen, the kinds in turn."""
    rng = random.Random(seed)
    documents = [KINDS[i % len(KINDS)](rng) for i in range(count)]
    return [text for text in documents if text not in seen]
