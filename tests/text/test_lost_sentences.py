"""Test that a translation with fewer sentences than its source is found, and faithful ones are not."""

import pytest

from transduce.text.sentences import find_lost_sentences


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("玛丽看了他的书吗？谁需要你的同学？", "Did Mary read his book?", (2, 1)),
        (
            "我们昨天去了学校。老师不在那里。我们回家了。",
            "We went to school yesterday. The teacher was not there.",
            (3, 2),
        ),
        ("Это был только я. Потом он сразу ушёл.", "It was only me.", (2, 1)),
        ("He was there at 5 p.m. Bob was there at six.", "Er war um 17 Uhr da.", (2, 1)),
        ("He lives in the U.S. Bob lives in Canada.", "Er lebt in den USA.", (2, 1)),
        ("Der Kaiser lebte 44 v. Chr. Caesar starb dann dort.", "The emperor lived in 44 BC.", (2, 1)),
        ("Ich habe Hunger. Wo ist die Küche?", "I am hungry.", (2, 1)),
        ("Der Hund schläft dort. Er ist sehr müde. Wir gehen leise.", "The dog sleeps there.", (3, 1)),
        ("मैं घर जा रहा हूँ। तुम कहाँ हो अभी।", "I am going home.", (2, 1)),
    ],
)
def test_a_translation_with_fewer_sentences_is_found(source: str, translation: str, expected: tuple[int, int]) -> None:
    assert find_lost_sentences(source, translation) == expected


def test_the_greek_question_mark_counts_on_both_sides() -> None:
    greek, english = "Τι κάνεις εσύ σήμερα; Είμαι πολύ καλά εδώ.", "How are you today? I am very well here."
    assert find_lost_sentences(greek, "How are you today?", ("el", "en")) == (2, 1)
    assert find_lost_sentences(english, "Τι κάνεις εσύ σήμερα;", ("en", "el")) == (2, 1)
    assert find_lost_sentences(greek, english, ("el", "en")) is None
    assert find_lost_sentences(english, greek, ("en", "el")) is None


def test_abbreviations_of_a_language_end_no_sentence() -> None:
    czech, english = "Naše nová adresa je ul. Dlouhá číslo pět.", "Our new address is number five, Dlouhá street."
    assert find_lost_sentences(czech, english, ("cs", "en")) is None


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("玛丽看了他的书吗？谁需要你的同学？", "Did Mary read his book? Who needs your classmate?"),
        ("我喜欢苹果。", "I like apples."),
        # Abbreviations, initials, decimals and ordinals.
        ("Mr. Smith met Dr. J. Brown at 3.5 km from here.", "史密斯先生在离这里3.5公里的地方见到了布朗医生。"),
        ("Tom wurde am 5. Mai 2010 geboren.", "Tom was born on May 5, 2010."),
        ("Sie kommt z.B. am Montag. ", "She comes on Monday, for instance."),
        ("Zwei alte Männer mit Hut bzw. Mütze dösen in der Sonne.", "Two old men in hats doze in the sun."),
        ("Der alte Kaiser starb 44 v. Chr. in Rom.", "The old emperor died in Rome in 44 BC."),
        ("Wir kommen morgen z. B. Montag oder Dienstag.", "We come tomorrow, Monday or Tuesday for instance."),
        ("Das ist doch i. d. R. Sache der Eltern.", "That is usually up to the parents."),
        ("Das alles ist m. E. Unsinn von gestern.", "In my opinion all that is yesterday's nonsense."),
        ("Это было летом 1990 г. в городе Москва.", "It was in the summer of 1990 in Moscow."),
        ("The shop is open until 5 p.m. Monday to Friday.", "Montag bis Freitag bis 17 Uhr geöffnet."),
        ("At 5 p.m. Bob left the house.", "Um 17 Uhr ging Bob aus dem Haus."),
        ("He met the old U.S. Sen. John McCain yesterday.", "Er traf gestern den alten Senator John McCain."),
        ("He is the head of the U.S. Army in Europe.", "Er leitet die Armee der USA in Europa."),
        ("Wir alle haben zu Hause z. B. ein Auto.", "All of us have a car at home, for instance."),
        # Short sentences that are joined to the next one, and what a semicolon or a dash may stand for.
        ("Yes. I do know him.", "是的，我认识他。"),
        ("I am tired today. I want to go to bed.", "Ich bin heute müde; ich will ins Bett."),
        # Quotations and ellipses.
        ("“今天天气真好！”他对我们大家说。", '"What fine weather!" he told us all.'),
        ("I have no idea... Maybe she went home.", "我不知道，也许她回家了。"),
        # Several marks in a row, and no mark at the end.
        ("你到底在做什么呢？！！", "What on earth are you doing?!"),
        ("我昨天买了一本书", "I bought a book yesterday"),
        # Scripts without a mark that only ends sentences, and nothing at all.
        ("We went home early. It was raining hard.", "เรากลับบ้านเร็ว ฝนตกหนัก"),
        ("我们昨天去了学校。老师不在那里。", ""),
        ("", "Nothing was there. Nothing at all."),
    ],
)
def test_a_translation_with_all_sentences_is_not_reported(source: str, translation: str) -> None:
    assert find_lost_sentences(source, translation) is None
