import random

DIGITS = "零一二三四五六七八九"
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def chinese(number):
    hundreds, tens, ones = number // 100, number // 10 % 10, number % 10
    text = DIGITS[hundreds] + "百" if hundreds else ""
    if tens:
        text += ("" if tens == 1 and not hundreds else DIGITS[tens]) + "十"
    elif hundreds and ones:
        text += "零"
    return text + (DIGITS[ones] if ones else "")


def english(number):
    words = [SMALL[number // 100], "hundred"] if number >= 100 else []
    number %= 100
    if number >= 20:
        words.append(TENS[number // 10])
        number %= 10
    return words + ([SMALL[number]] if number else [])


texts = [(list(chinese(number)), english(number)) for number in range(1, 1000)]


def word_list(sentences):
    found = sorted({word for words in sentences for word in words})
    return {word: id for id, word in enumerate(["P", "S", "E", *found])}


source_words = word_list(source for source, _ in texts)
target_words = word_list(target for _, target in texts)
pairs = [([source_words[word] for word in [*s, "E"]], [target_words[word] for word in t]) for s, t in texts]
random.Random(1).shuffle(pairs)
test_pairs, train_pairs = pairs[:100], pairs[100:]
