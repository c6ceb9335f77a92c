"""MRCR in the published form (openai/mrcr) over text of our own, for offline runs and for lengths of one's choice.

A long conversation asks for short pieces of writing. One request (a form and a topic) comes up several times, each time
with another reply: the needles. The last turn asks for one of them word for word behind a random prefix. The other
replies share the needles' form, or their topic, so that neither alone finds them.
"""

from collections.abc import Sequence

from .draw import Draw
from .frozen import Draft, Item, Key, Message, Scorer, Source

FORMS = (
    "poem", "riddle", "short scene", "news item", "letter", "diary entry", "speech", "recipe", "fable", "review",
)  # fmt: skip
TOPICS = (
    "lighthouses", "tapirs", "clay ovens", "night trains", "beekeeping", "glaciers", "lost umbrellas", "tide pools",
    "weather vanes", "paper maps", "old bridges", "street musicians", "wool", "comets", "canal locks", "orchards",
    "salt", "clock towers", "ferries", "moss", "kites", "caravans", "quarries", "echoes", "lanterns", "harvests",
    "foxes", "rope makers", "observatories", "winter markets", "swimming", "mirrors",
)  # fmt: skip
ORDINALS = ("1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th")
REQUEST = "Write a {form} about {topic}."
QUESTION = (
    "Prepend {prefix} to the {ordinal} (1 indexed) {form} about {topic}. "
    "Do not include any other text in your response."
)
LEAST_WORDS, MOST_WORDS = 1_000, 1_000_000

_ADJECTIVES = (
    "quiet", "bright", "patient", "narrow", "distant", "hollow", "golden", "stubborn", "gentle", "crooked", "silver",
    "restless", "ancient", "plain", "frozen", "curious", "tired", "tall", "hidden", "careful", "loud", "early", "warm",
)  # fmt: skip
_NOUNS = (
    "harbour", "letter", "window", "shepherd", "river", "engine", "garden", "stranger", "corridor", "violin", "island",
    "kettle", "teacher", "shadow", "market", "ladder", "captain", "valley", "drawer", "bell", "neighbour", "stone",
    "cellar", "sparrow", "road", "button", "judge", "forest",
)  # fmt: skip
_VERBS = (
    "remembers", "carries", "forgives", "counts", "follows", "questions", "repairs", "outlives", "borrows", "greets",
    "measures", "hides", "answers", "warms", "watches", "imitates", "leaves", "finds", "paints", "doubts",
)  # fmt: skip
_LINKS = ("while", "because", "although", "until", "whenever", "and yet", "so that", "as if")
_SENTENCES = range(4, 8)


def build(source: Source) -> Draft:
    """`source.items_each` items for every count of needles and every length in words."""
    made = []
    for needles in source.needles:
        for words in source.words:
            for index in range(source.items_each or 1):
                made.append(_item(Draw("mrcr", source.seed, needles, words, index), needles, words, index))
    items, keys = zip(*made, strict=True)
    return Draft(
        exam="mrcr_synthetic", scorer=Scorer.MRCR, licence="Apache-2.0", source=source, items=items, keys=keys
    )


def problem(item: Item, key: Key) -> str | None:
    """What is wrong with an item of this form, worked out from the conversation alone; None where nothing is."""
    *turns, last = item.messages
    asked = [turn.content for turn in turns[::2]]
    for form in FORMS:
        for topic in TOPICS:
            request = REQUEST.format(form=form, topic=topic)
            for place, ordinal in enumerate(ORDINALS):
                question = QUESTION.format(prefix=item.prefix, ordinal=ordinal, form=form, topic=topic)
                if last.content != question:
                    continue
                replies = [turns[2 * at + 1].content for at, one in enumerate(asked) if one == request]
                if len(replies) != item.needles or len(set(replies)) != len(replies):
                    return f"{len(replies)} needles, {len(set(replies))} of them distinct, not {item.needles}"
                return None if key.answer == item.prefix + replies[place] else "the key is not the needle asked for"
    return "the last turn asks for nothing that this exam asks for"


def _item(draw: Draw, needles: int, words: int, index: int) -> tuple[Item, Key]:
    target = draw.one_of(FORMS), draw.one_of(TOPICS)
    form, topic = target
    distractors = (
        [(form, other) for other in TOPICS if other != topic],
        [(other, topic) for other in FORMS if other != form],
        [(f, t) for f in FORMS for t in TOPICS if f != form and t != topic],
    )
    needle_texts: list[str] = []
    while len(needle_texts) < needles:
        text = _reply(draw, *target)
        if text not in needle_texts:
            needle_texts.append(text)
    place, prefix = index % needles, draw.letters(10)
    question = QUESTION.format(prefix=prefix, ordinal=ORDINALS[place], form=form, topic=topic)
    request = REQUEST.format(form=form, topic=topic)
    length = _words(question) + sum(_words(text) + _words(request) for text in needle_texts)
    others: list[tuple[str, str]] = []
    while length < words:
        pair = draw.one_of(draw.one_of(distractors))
        text = _reply(draw, *pair)
        others.append((REQUEST.format(form=pair[0], topic=pair[1]), text))
        length += _words(others[-1][0]) + _words(text)
    spots = set(draw.shuffled(range(len(others) + needles))[:needles])
    needle, other = iter([(request, text) for text in needle_texts]), iter(others)
    turns = [next(needle) if spot in spots else next(other) for spot in range(len(others) + needles)]
    messages = [
        message
        for asked, text in turns
        for message in (Message(role="user", content=asked), Message(role="assistant", content=text))
    ]
    messages = (*messages, Message(role="user", content=question))
    name = f"mrcr-{needles}n-{words}w-{index:03}"
    item = Item(
        id=name, cluster=name, messages=messages, prefix=prefix, needles=needles, words=length,
        prompt_sha256=Item.prompt_digest(messages, ()),
    )  # fmt: skip
    return item, Key(item=name, answer=prefix + needle_texts[place])


def _reply(draw: Draw, form: str, topic: str) -> str:
    sentences = [f"This {form} is about {topic}, and about the {draw.one_of(_ADJECTIVES)} {draw.one_of(_NOUNS)}."]
    sentences += [_sentence(draw, topic) for _ in range(draw.one_of(_SENTENCES))]
    return ("\n" if form == "poem" else " ").join(sentences)


def _sentence(draw: Draw, topic: str) -> str:
    def clause() -> str:
        subject = f"the {draw.one_of(_ADJECTIVES)} {draw.one_of(_NOUNS)}"
        thing = topic if draw.below(4) == 0 else f"the {draw.one_of(_ADJECTIVES)} {draw.one_of(_NOUNS)}"
        return f"{subject} {draw.one_of(_VERBS)} {thing}"

    text = f"{clause()} {draw.one_of(_LINKS)} {clause()}."
    return text[0].upper() + text[1:]


def _words(text: str) -> int:
    return len(text.split())


def refuse(needles: Sequence[int], words: Sequence[int]) -> str | None:
    """Why no exam can be built for these counts and lengths; None where it can."""
    if not needles or not words:
        return "at least one count of needles and one length is needed"
    if any(not 2 <= count <= len(ORDINALS) for count in needles) or len(set(needles)) < len(needles):
        return f"needles are distinct counts from 2 to {len(ORDINALS)}"
    if any(not LEAST_WORDS <= length <= MOST_WORDS for length in words) or len(set(words)) < len(words):
        return f"lengths are distinct numbers of words from {LEAST_WORDS} to {MOST_WORDS}"
    return None
