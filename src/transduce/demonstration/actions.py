"""Generate sentences of the demonstration's grammar about what people do, each in Chinese and English.

The sentences are statements, questions and requests.
"""

from itertools import accumulate
from random import Random

from transduce.demonstration import clauses, lexicon
from transduce.demonstration.clauses import (
    NOTHING,
    NOUNS,
    QUESTION_MARK,
    WHO,
    Action,
    Nominal,
    Phrase,
    SentenceForm,
    a_noun,
    a_subject,
    asked,
    bare,
    declarative,
    definite,
    phrase,
    somebody,
    swap,
    what,
    whether,
)
from transduce.demonstration.lexicon import Noun, Place, Verb

# --- statements about actions ---


Activity = tuple[Verb, Noun]

ACTIVITIES: tuple[Activity, ...] = tuple((verb, NOUNS[noun]) for verb in lexicon.VERBS for noun in verb.objects.split())


# Verbs with many nouns are more frequent, but not in proportion.
_VERB_WEIGHTS = tuple(accumulate(4 + min(len(verb.objects.split()), 10) for verb in lexicon.VERBS))


def activities(verbs: str, nouns: str = "") -> tuple[Activity, ...]:
    """Return a tuple of the activities (verb, object noun) whose Chinese verb and noun are among these words.

    Words are separated by spaces. If `nouns` is empty, every noun is allowed.
    """
    chosen = [(verb, noun) for verb, noun in ACTIVITIES if verb.source in verbs.split()]
    return tuple((verb, noun) for verb, noun in chosen if not nouns or noun.source in nouns.split())


_EXPERIENCED = activities("吃 喝 写 学 打 踢 弹 骑 画", lexicon.EXPERIENCES)
_ANIMAL_ACTIVITIES = (*activities("吃", "鱼 鸡蛋 面包"), *activities("喝", "水 牛奶"))
_PLACES = {place.source: place for place in lexicon.PLACES}
DESTINATIONS = tuple(place for place in lexicon.PLACES if place.destination)
_NEARBY = tuple(place for place in DESTINATIONS if place.source not in lexicon.FAR)
_ERRANDS = tuple(
    (verb, noun, _PLACES[place])
    for verb, noun in ACTIVITIES
    for place in verb.places.split()
    if verb.habitual and _PLACES[place].destination and place not in lexicon.FAR
)

_FRAMES = (
    (clauses.HABIT, 4),
    (clauses.EVERY_TIME, 8),
    (clauses.OFTEN, 5),
    (clauses.ALWAYS, 2),
    (clauses.NEVER, 3),
    (clauses.DOES_NOT, 6),
    (clauses.DID, 18),
    (clauses.DID_NOT, 8),
    (clauses.IS_DOING, 8),
    (clauses.WILL, 8),
    (clauses.WILL_NOT, 4),
    (clauses.GOING_TO, 5),
    (clauses.WANTS, 9),
    (clauses.DOES_NOT_WANT, 5),
    (clauses.LIKES, 7),
    (clauses.DOES_NOT_LIKE, 4),
    (clauses.CAN, 4),
    (clauses.CANNOT, 4),
    (clauses.MAY, 3),
    (clauses.SHOULD, 4),
    (clauses.SHOULD_NOT, 2),
    (clauses.MUST, 3),
)
FRAMES = tuple(frame for frame, _ in _FRAMES)
_FRAME_WEIGHTS = tuple(accumulate(weight for _, weight in _FRAMES))
_GOING_FRAMES = (
    clauses.EVERY_TIME,
    clauses.OFTEN,
    clauses.DOES_NOT,
    clauses.DID,
    clauses.DID,
    clauses.DID_NOT,
    clauses.WILL,
    clauses.WILL_NOT,
    clauses.GOING_TO,
    clauses.WANTS,
    clauses.DOES_NOT_WANT,
    clauses.CANNOT,
    clauses.SHOULD,
    clauses.LIKES,
)
_GIVING_FRAMES = (clauses.DID, clauses.DID, clauses.WILL, clauses.WANTS, clauses.GOING_TO)
_TEACHING_FRAMES = (clauses.IS_DOING, clauses.WILL, clauses.WANTS, clauses.CAN, clauses.EVERY_TIME, clauses.OFTEN)


# --- parts ---


def a_time(random: Random, frame: SentenceForm) -> Phrase:
    """Return a random time as a bilingual `Phrase` that fits a frame (tense and form of the sentence), or NOTHING.

    If the frame permits no time, the result is NOTHING. If a time is optional, it is NOTHING in half of the cases.
    """
    if frame.times and (frame.timed or random.random() < 0.5):
        return phrase(*random.choice(frame.times))
    return NOTHING


def located(place: Place) -> Phrase:
    """Return a place as a bilingual `Phrase` that says where, such as 在 学校 / at school."""
    last = len(place.where.split()) - 1
    return phrase(f"在 {place.source}", place.where, f"0-0 1-{last}")


def early(random: Random) -> bool:
    """Return True in half of the cases: it decides whether the time precedes the subject in Chinese."""
    return random.random() < 0.5


def an_action(random: Random, subject: Nominal, frame: SentenceForm) -> Action:
    """Return a random `Action` (verb, object, place, companion) that a frame (tense and form) permits."""
    kind = random.random()
    if kind < 0.11 and not frame.aspect:
        return with_adjuncts(random, subject, frame, Action(random.choice(lexicon.INTRANSITIVE_VERBS)))
    if kind < 0.22 and frame.definite:
        verb = lexicon.HELPING_VERBS[0] if frame.aspect else random.choice(lexicon.HELPING_VERBS)
        return with_adjuncts(random, subject, frame, Action(verb, somebody(random, subject).object))
    verb, noun = an_activity(random, frame)
    return with_adjuncts(random, subject, frame, Action(verb, a_thing(random, noun, frame, subject)))


def an_activity(random: Random, frame: SentenceForm) -> Activity:
    """Return a random pair: a verb, and a noun that the verb takes as its object.

    Verbs that are not habitual (to buy a car) occur only if the frame describes a single occasion.
    """
    once = frame.some or frame.definite
    while True:
        (verb,) = random.choices(lexicon.VERBS, cum_weights=_VERB_WEIGHTS)
        if verb.habitual or once:
            return verb, a_noun(random, verb.objects)


def a_thing(random: Random, noun: Noun, frame: SentenceForm, subject: Nominal) -> Phrase:
    """Return a random object phrase of a noun as a bilingual `Phrase`, such as 苹果 / apples.

    If the frame permits, it may have a number (three apples) or be definite (this apple).
    """
    kind = random.random()
    if noun.measure and frame.some and kind < 0.35:
        return clauses.some(random, noun).object
    if noun.measure and frame.definite and kind > 0.7:
        return definite(random, noun, subject).object
    return bare(noun).object


def with_adjuncts(random: Random, subject: Nominal, frame: SentenceForm, action: Action) -> Action:
    """Return the `Action` with a place or a companion added in up to 40 % of the cases, if the frame permits it."""
    kind = random.random()
    if not frame.adjuncts or kind > 0.4:
        return action
    if kind < 0.3:
        return _at_a_place(random, action)
    return _in_company(random, subject, action)


def _at_a_place(random: Random, action: Action) -> Action:
    place = _PLACES[random.choice(action.verb.places.split())]
    return Action(action.verb, action.object, located(place))


def _in_company(random: Random, subject: Nominal, action: Action) -> Action:
    """Return the `Action` with a random companion (和 汤姆 一起) added.

    It stays unchanged if the subject is several people, or if the action involves another person already.
    """
    if subject.plural or action.verb in lexicon.HELPING_VERBS:
        return action
    companion = somebody(random, subject)
    together = swap(phrase("和", "with") + companion.object, phrase("一起", "together"))
    return Action(action.verb, action.object, company=together)


# --- statements ---


def statement(random: Random) -> Phrase:
    """Return a random statement as a bilingual `Phrase`, such as 昨天我吃了苹果 / I ate apples yesterday."""
    (frame,) = random.choices(FRAMES, cum_weights=_FRAME_WEIGHTS)
    subject = a_subject(random)
    return declarative(subject, frame, an_action(random, subject, frame), a_time(random, frame), early(random))


def scene(random: Random) -> Phrase:
    """Return a random sentence about somebody at a place as a bilingual `Phrase`.

    An example is 昨天他在公司工作 / he worked at the office yesterday.
    """
    verb = random.choice(lexicon.INTRANSITIVE_VERBS)
    action = _at_a_place(random, Action(verb))
    frame = clauses.WAS_DOING
    return declarative(a_subject(random), frame, action, a_time(random, frame), early(random))


def experience(random: Random) -> Phrase:
    """Return a random sentence about an experience as a bilingual `Phrase`.

    An example is 我吃过饺子 / I have eaten dumplings before.
    """
    frame = random.choice((clauses.HAS_DONE, clauses.HAS_NEVER))
    return declarative(a_subject(random), frame, an_experience(random))


def an_experience(random: Random) -> Action:
    """Return a random `Action` that is worth mentioning as an experience, such as 去 北京 / be in Beijing."""
    if random.random() < 0.15:
        return Action(lexicon.VISIT, destination(random.choice([p for p in DESTINATIONS if p.source in lexicon.FAR])))
    verb, noun = random.choice(_EXPERIENCED)
    return Action(verb, bare(noun).object)


def skill(random: Random) -> Phrase:
    """Return a random sentence or question about a skill as a bilingual `Phrase`, such as 他会游泳 / he can swim."""
    action = a_skill(random)
    if random.random() < 0.3:
        return whether(asked(random), clauses.KNOWS_HOW_ONE, action)
    frame = random.choice((clauses.KNOWS_HOW, clauses.KNOWS_HOW, clauses.DOES_NOT_KNOW_HOW, clauses.ALSO_KNOWS_HOW))
    return declarative(a_subject(random), frame, action)


def a_skill(random: Random) -> Action:
    """Return a random `Action` that somebody has learned, such as 说 中文 / speak Chinese."""
    verb = random.choice((*lexicon.SKILLS * 2, *[lexicon.SPOKEN] * 3, lexicon.PLAYED))
    return Action(verb, bare(a_noun(random, verb.objects)).object if verb.objects else NOTHING)


def animal(random: Random) -> Phrase:
    """Return a random sentence about an animal as a bilingual `Phrase`.

    An example is 我的猫喜欢吃鱼 / my cat likes to eat fish.
    """
    subject = definite(random, NOUNS[random.choice(lexicon.ANIMALS.split()[:2])])
    frame = random.choice((clauses.LIKES, clauses.DOES_NOT_LIKE, clauses.DID, clauses.IS_DOING, clauses.DOES_NOT))
    verb, noun = random.choice(_ANIMAL_ACTIVITIES)
    return declarative(subject, frame, Action(verb, bare(noun).object), a_time(random, frame), early(random))


# --- going, giving, teaching ---


def destination(place: Place) -> Phrase:
    """Return a place as a bilingual `Phrase` that says where to, such as 学校 / school after "go to"."""
    return phrase(place.source, place.destination)


def a_journey(random: Random, frame: SentenceForm, time: Phrase = NOTHING) -> Action:
    """Return a random bilingual `Action` of going somewhere, such as 去北京 / go to Beijing.

    A purpose, or a means of transport, may be added if the frame permits it. Far places occur only without a time, or
    if `time` suits a long journey, such as "yesterday".
    """
    kind = random.random()
    if kind < 0.45 and not frame.aspect:
        verb, noun, place = random.choice(_ERRANDS)
        purpose = phrase("", "to") + clauses.verb_phrase(verb, lexicon.BASE) + bare(noun).object
        return Action(lexicon.GO, destination(place) + purpose)
    place = random.choice(DESTINATIONS if time.source in lexicon.TRAVEL_TIMES else _NEARBY)
    # 了 cannot be combined with the means of transport: 他是坐火车去的 would be another construction.
    if kind > 0.6 or frame.aspect:
        return Action(lexicon.GO, destination(place))
    means = random.choice(lexicon.MEANS_FAR if place.source in lexicon.FAR else lexicon.MEANS_NEARBY)
    return Action(lexicon.GO, destination(place), phrase(*means))


def going(random: Random) -> Phrase:
    """Return a random sentence about going somewhere as a bilingual `Phrase`.

    An example is 我想去北京 / I want to go to Beijing.
    """
    frame = random.choice(_GOING_FRAMES)
    time = a_time(random, frame)
    return declarative(a_subject(random), frame, a_journey(random, frame, time), time, early(random))


def errand(random: Random) -> Phrase:
    """Return a random sentence about an errand as a bilingual `Phrase`.

    An example is 他去商店买了茶 / he went to the shop and bought tea.
    """
    verb, noun, place = random.choice(_ERRANDS)
    bought = clauses.verb_phrase(verb, lexicon.PAST, "了") + a_thing(random, noun, clauses.DID, WHO)
    action = Action(lexicon.GO, destination(place) + phrase("", "and") + bought)
    frame = clauses.WENT
    return declarative(a_subject(random), frame, action, a_time(random, frame), early(random))


def giving(random: Random) -> Phrase:
    """Return a random sentence about giving or teaching as a bilingual `Phrase`.

    An example is 他给了我一本书 / he gave me a book.
    """
    subject = a_subject(random)
    receiver = somebody(random, subject).object
    if random.random() < 0.65:
        frame = random.choice(_GIVING_FRAMES)
        action = Action(lexicon.GIVE, receiver + clauses.some(random, a_noun(random, lexicon.GIFTS)).object)
    else:
        frame = random.choice(_TEACHING_FRAMES)
        action = Action(lexicon.TEACH, receiver + bare(a_noun(random, lexicon.TEACH.objects)).object)
    return declarative(subject, frame, action, a_time(random, frame), early(random))


# --- questions and requests ---


_COUNTED = tuple(activity for activity in activities("吃 喝 买 看 写 画 唱") if activity[1].measure)
# 看什么 and 做什么 are left out: the verb alone does not say which of its meanings is meant.
_ASKED = activities("吃 喝 买 写 学 听 唱 画 洗")
_QUESTIONS = (
    clauses.DOES_ONE,
    clauses.DID_ONE,
    clauses.DID_ONE,
    clauses.WANTS_ONE,
    clauses.WANTS_ONE,
    clauses.LIKES_ONE,
    clauses.IS_ONE,
    clauses.WILL_ONE,
    clauses.CAN_ONE,
    clauses.MAY_ONE,
    clauses.SHOULD_ONE,
)
_OPEN_QUESTIONS = (
    clauses.DID_ONE,
    clauses.DID_ONE,
    clauses.WANTS_ONE,
    clauses.LIKES_ONE,
    clauses.IS_ONE,
    clauses.WILL_ONE,
    clauses.SHOULD_ONE,
)
_WHERE_QUESTIONS = (clauses.DOES_ONE, clauses.DID_ONE, clauses.WANTS_ONE, clauses.LIKES_ONE)
_WHY_QUESTIONS = (
    (clauses.DOES_ONE, ""),
    (clauses.DOES_ONE, "不"),
    (clauses.WANTS_ONE, ""),
    (clauses.WANTS_ONE, "不"),
    (clauses.LIKES_ONE, ""),
    (clauses.LIKES_ONE, "不"),
    (clauses.DID_ONE, ""),
    (clauses.DID_NOT_ONE, "没"),
)
_WHO_FRAMES = (
    clauses.DID,
    clauses.DID,
    clauses.DID_NOT,
    clauses.IS_DOING,
    clauses.WILL,
    clauses.WANTS,
    clauses.DOES_NOT_WANT,
    clauses.LIKES,
    clauses.OFTEN,
    clauses.CAN,
)


def going_question(random: Random) -> Phrase:
    """Return a random question about going somewhere as a bilingual `Phrase`.

    An example is 你想去哪里 / where do you want to go.
    """
    subject, kind = asked(random), random.random()
    if kind < 0.3:
        question = random.choice((clauses.WANTS_ONE, clauses.DID_ONE, clauses.WILL_ONE))
        time = a_time(random, question)
        return what(phrase("哪里", "where"), subject, question, Action(lexicon.HEAD), time, early(random))
    if kind < 0.5:
        place = random.choice(DESTINATIONS)
        return clauses.why(phrase("怎么", "how"), subject, clauses.DOES_ONE, Action(lexicon.GO, destination(place)))
    if kind < 0.6:
        return whether(subject, clauses.HAS_ONE, an_experience(random))
    question = random.choice((clauses.DID_ONE, clauses.WANTS_ONE, clauses.WILL_ONE, clauses.CAN_ONE))
    time = a_time(random, question)
    return whether(subject, question, a_journey(random, question, time), time, early(random))


def yes_no_question(random: Random) -> Phrase:
    """Return a random yes/no question as a bilingual `Phrase`.

    An example is 你昨天吃了苹果吗 / did you eat apples yesterday.
    """
    question, subject = random.choice(_QUESTIONS), asked(random)
    if question is clauses.MAY_ONE:
        subject = random.choice((clauses.ME, clauses.WE))
    return whether(subject, question, an_action(random, subject, question), a_time(random, question), early(random))


def what_question(random: Random) -> Phrase:
    """Return a random question about an object as a bilingual `Phrase`.

    An example is 你喜欢吃什么 / what do you like to eat.
    """
    question, subject = random.choice(_OPEN_QUESTIONS), asked(random)
    verb, _ = random.choice(_ASKED)
    action = with_adjuncts(random, subject, question, Action(verb))
    return what(clauses.WHAT, subject, question, action, a_time(random, question), early(random))


def how_many_question(random: Random) -> Phrase:
    """Return a random question about a number as a bilingual `Phrase`.

    An example is 你买了几本书 / how many books did you buy.
    """
    question, subject = random.choice((clauses.DID_ONE, clauses.DID_ONE, clauses.WANTS_ONE)), asked(random)
    verb, noun = random.choice(_COUNTED)
    return what(clauses.how_many(noun), subject, question, Action(verb), a_time(random, question), early(random))


def whom_question(random: Random) -> Phrase:
    """Return a random question about the object as a bilingual `Phrase`, such as 他正在等谁 / who is he waiting for."""
    question, subject = random.choice((clauses.IS_ONE, clauses.WANTS_ONE, clauses.WILL_ONE)), asked(random)
    verb = random.choice(lexicon.HELPING_VERBS)
    return what(WHO.object, subject, question, Action(verb), a_time(random, question), early(random))


def where_question(random: Random) -> Phrase:
    """Return a random question about a place as a bilingual `Phrase`.

    An example is 你想在哪里吃饭 / where do you want to eat.
    """
    question, subject = random.choice(_WHERE_QUESTIONS), asked(random)
    if random.random() < 0.3 and not question.aspect:
        action = Action(random.choice(lexicon.INTRANSITIVE_VERBS))
    else:
        verb, noun = an_activity(random, question)
        action = Action(verb, a_thing(random, noun, question, subject))
    return clauses.where(subject, question, action, a_time(random, question))


def why_question(random: Random) -> Phrase:
    """Return a random question about a reason as a bilingual `Phrase`.

    An example is 你为什么没吃苹果 / why did you not eat apples.
    """
    (question, negation), subject = random.choice(_WHY_QUESTIONS), asked(random)
    action = an_action(random, subject, question)
    return clauses.why(phrase("为什么", "why"), subject, question, action, negation)


def who_question(random: Random) -> Phrase:
    """Return a random question about the subject as a bilingual `Phrase`.

    An example is 谁吃了我的苹果 / who ate my apple.
    """
    frame = random.choice(_WHO_FRAMES)
    return declarative(WHO, frame, an_action(random, WHO, frame), a_time(random, frame), early=False) + QUESTION_MARK


def request(random: Random) -> Phrase:
    """Return a random request as a bilingual `Phrase`, such as 请给我一朵花 / please give me a flower."""
    kind = random.random()
    if kind < 0.3:
        return phrase("请", "please") + _please(random).phrase(lexicon.BASE)
    if kind < 0.6:
        return phrase("别", "do not") + an_action(random, clauses.YOU, clauses.CANNOT).phrase(lexicon.BASE)
    action = a_journey(random, clauses.WANTS) if kind < 0.8 else an_action(random, clauses.WE, clauses.LIKES)
    return swap(phrase("我们", "us") + action.phrase(lexicon.BASE), phrase("吧", "let"))


def _please(random: Random) -> Action:
    if random.random() < 0.5:
        given = clauses.counted(a_noun(random, lexicon.GIFTS), ("一", ""))
        return Action(lexicon.GIVE, phrase("我", "me") + given.object)
    return an_action(random, clauses.YOU, clauses.CAN)
