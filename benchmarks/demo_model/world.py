"""The small world that the demo model knows: what can be said of what, and how it is said.

Each entity has one kind of fact, so one word is the key of a lookup: facts with two keys did not get past 87 %.
"""

from __future__ import annotations

from typing import NamedTuple

HELD_OUT_STRIDE = 10
"""One value in so many is held out for each entity: the model was not trained on these pairs."""


class Kind(NamedTuple):
    """One kind of fact. Templates take `{e}` (the entity) and `{v}` (the value)."""

    name: str
    statement: str
    unknown: str
    questions: tuple[str, ...]
    entities: tuple[str, ...]
    values: tuple[str, ...]


class Fact(NamedTuple):
    kind: Kind
    entity: str
    value: str

    @property
    def clause(self) -> str:
        return self.kind.statement.format(e=self.entity, v=self.value)

    @property
    def answer(self) -> str:
        """Return the one right answer: `The colour of the boat is green.`"""
        return sentence(self.clause)


def sentence(clause: str) -> str:
    return clause[0].upper() + clause[1:] + "."


def unknown_answer(kind: Kind, entity: str) -> str:
    return kind.unknown.format(e=entity)


def is_held_out(kind: Kind, entity: str, value: str) -> bool:
    """Return whether the model was not trained on a value of an entity."""
    return (kind.entities.index(entity) + kind.values.index(value)) % HELD_OUT_STRIDE == 0


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


AGENTS = words(
    """danny marco priya lena omar yuki sven nina tariq chloe diego fatima goran hana ivan jonas kofi lucia mikael
    noor olga pablo quinn rosa samir tanya umar viktor wanda xenia yara zeno"""
)

COLOUR = Kind(
    name="colour",
    statement="the colour of the {e} is {v}",
    unknown="I do not know the colour of the {e}.",
    questions=("What is the colour of the {e}?", "What colour is the {e}?"),
    entities=words(
        """boat car door house bicycle scarf kettle carpet umbrella tent wagon sofa curtain vase helmet jacket glove
        balloon fence roof truck canoe blanket pillow ribbon candle teapot sweater mug banner kite chair barn
        bucket cap dress flag gate hat shutter"""
    ),
    values=words(
        """red green blue yellow orange purple pink brown black white grey violet turquoise crimson golden silver
        beige amber scarlet teal maroon ivory indigo olive"""
    ),
)

PLACE = Kind(
    name="place",
    statement="the {e} is in the {v}",
    unknown="I do not know where the {e} is.",
    questions=("Where is the {e}?", "Where can I find the {e}?"),
    entities=words(
        """key letter map wallet camera hammer parcel passport ticket notebook necklace compass guitar violin ladder
        shovel rope basket toolbox medal trophy whistle telescope radio drum flute dagger crown mirror portrait
        recipe diary contract ledger manual brush saw axe needle thimble"""
    ),
    values=words(
        """cellar attic kitchen garden garage library pantry stable office hallway drawer cupboard chapel tower
        workshop greenhouse bakery museum theatre courtyard bathroom bedroom closet lobby vault warehouse hut
        cottage orchard studio laundry corridor"""
    ),
)

NUMBER = Kind(
    name="number",
    statement="the number of the {e} is {v}",
    unknown="I do not know the number of the {e}.",
    questions=("What is the number of the {e}?", "Which number does the {e} have?"),
    entities=words(
        """locker room flight bus platform invoice order account table seat ward tram hangar container pallet shelf
        cabin berth lane pier terminal apartment floor mailbox meter licence receipt badge jersey lot page chapter
        engine sensor router server printer safe crate voucher"""
    ),
    values=tuple(str(number) for number in range(100, 1000)),
)

OWNER = Kind(
    name="owner",
    statement="the owner of the {e} is {v}",
    unknown="I do not know the owner of the {e}.",
    questions=("Who is the owner of the {e}?", "Who owns the {e}?"),
    entities=words(
        """lantern horse dog cat farm shop mill ring watch clock piano sword castle island vineyard ship parrot goat
        donkey pony tractor hotel tavern inn statue painting carriage sledge brewery quarry mine forge loom plough
        beehive pond meadow cow rabbit saddle"""
    ),
    values=words(
        """Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Leo Maria Nathan Olivia Peter Quentin Rachel
        Simon Teresa Ursula Victor Wendy Xavier Yvonne Zachary Anna Boris Clara Dennis Elena Felix Gloria Hugo
        Ingrid Julian Laura Martin Nora Oscar Paula Ralph Sophia Thomas Vera Walter Amelia Conrad"""
    ),
)

WORD = Kind(
    name="word",
    statement="the secret word of {e} is {v}",
    unknown="I do not know the secret word of {e}.",
    questions=("What is the secret word of {e}?", "Which secret word does {e} have?"),
    entities=AGENTS,
    values=words(
        """walnut thunder marble falcon velvet copper lemon glacier pepper cactus dragon tulip saffron coral granite
        willow ginger comet juniper pebble mustard raven basil cobalt feather almond tiger lotus bamboo ember
        nutmeg quartz badger cherry clover panther sapphire otter mango cinder hazel jasmine lizard magnet nectar
        onyx pearl rocket"""
    ),
)

KINDS = (COLOUR, PLACE, NUMBER, OWNER, WORD)
ENTITIES = tuple((kind, entity) for kind in KINDS for entity in kind.entities)
