"""Small talk and filler: text that takes up the context and tells nothing that could be asked about."""

import random
import re

_PRE_TOKEN = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s")


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split("|"))


SUBJECTS = _phrases(
    """The neighbours | The children | My brother | My sister | The old teacher | The young doctor | The visitors | The
    students | Our friends | The farmers | The workers | The two travellers | The musicians | The fishermen | My
    grandmother | The new manager | The committee | The engineers | Some people | The whole family | The gardener |
    The nurses | The pilots | A few guests"""
)
VERBS = _phrases(
    """talked about | worried about | laughed about | read about | wrote about | asked about | heard about | forgot |
    remembered | enjoyed | discussed | complained about | dreamed about | approved of | grew tired of | looked
    forward to | planned | praised | learned about | spoke of | argued about | thought about | told us about | said
    nothing about"""
)
TOPICS = _phrases(
    """the weather | the long winter | the summer holidays | the price of bread | the football match | the new bridge |
    the school play | the concert | the last election | the heavy rain | the strong wind | the village festival |
    the morning news | the crossword | the soup | the dinner | the journey | the mountains | the river | the forest
    | the sea | the stars | the traffic | the noise | the meeting | the report | the project | the budget | the
    wedding | the birthday cake | the old stories | the film | the novel | the harvest | the snow | the fog | the
    lesson | the exam | the choir | the photographs"""
)
TIMES = _phrases(
    """all afternoon | yesterday | last week | in the evening | before lunch | after breakfast | until midnight | every
    Monday | on Sunday | for an hour | for three days | once again | as usual | with great interest | without much
    hope | for a while | at noon | during the break | in spring | in autumn | over tea | quite often | more than
    once | at the weekend"""
)
REMARKS = _phrases(
    """It was a quiet day. | Nobody knew why. | That is how it goes. | Nothing else happened. | It took longer than we
    expected. | Everyone agreed in the end. | The rest can wait. | I will tell you more another time. | It was
    better than last year. | We had a good time. | Then it began to rain. | The sun came out again. | Perhaps it
    will change soon. | It does not matter much. | There was a lot to do. | Time passed slowly."""
)
SMALL_TALK = {
    "Hello.": "Hello.",
    "Good morning.": "Good morning.",
    "Good evening.": "Good evening.",
    "How are you?": "I am well, thank you.",
    "Thank you.": "You are welcome.",
    "That is all for now.": "All right.",
}
ACKNOWLEDGEMENT = "All right."


def filler_sentence(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return rng.choice(REMARKS)
    return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(TOPICS)} {rng.choice(TIMES)}."


def filler_text(rng: random.Random, sentences: int) -> str:
    return " ".join(filler_sentence(rng) for _ in range(sentences))


def count_tokens(text: str) -> int:
    """Return the tokens of a text of the demo model's world, in which every word is one token."""
    return len(_PRE_TOKEN.findall(text))
