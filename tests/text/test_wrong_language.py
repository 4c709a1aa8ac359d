"""Test that a text clearly in another language is found; names, quotations and short texts are not."""

import pytest

from transduce.text.languages import detect_other_language, is_written_in, main_script, script_of


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("I would like to go home now.", "zh", "English"),
        ("Wir haben gestern keine Zeit gehabt.", "zh-Hans", "German"),
        ("Je ne sais pas où il est.", "zh", "French"),
        ("Tom Mary John Boston Paris", "zh", "Latin letters"),
        ("我不知道他在哪里。", "en", "Chinese"),
        ("私は学校へ行きます。", "de", "Japanese"),
        ("これはわたしのほんです。", "zh", "Japanese"),
        ("「你好」はこんにちはという意味です。", "zh", "Japanese"),
        ("君の名前は何ですか", "zh", "Japanese"),
        ("Я не знаю, где он живёт.", "en", "Cyrillic letters"),
        ("나는 오늘 학교에 갔다.", "zh", "Korean"),
        ("I don’t know what you are talking about.", "de", "English"),
        ("Ich weiß nicht, wovon du sprichst.", "en_GB", "German"),
        ("Der Hund und die Katze sind im Haus.", "en", "German"),
        # Short, but without a letter of the expected script.
        ("我爱你，中国。", "de", "Chinese"),
        ("Да", "en", "Cyrillic letters"),
        ("Good morning", "zh", "English"),
        ("OK, see you!", "zh", "Latin letters"),
        ("はい", "zh", "Japanese"),
        # Found by their character n-grams: the frequent words do not decide.
        ("Import the numpy module from torch", "de", "English"),
        ("Tom and Mary went to Boston", "de", "English"),
        ("Kot siedzi na macie i śpi.", "en", "another language"),
        # Codes of three letters, and those that name a script, as models of many languages have them.
        ("I would like to go home now.", "zho_Hans", "English"),
        ("これはわたしのほんです。", "zho_Hans", "Japanese"),
        ("I would like to go home now.", "jpn", "English"),
        ("我不知道他在哪里。", "rus_Cyrl", "Chinese"),
        ("I would like to go home now.", "deu_Latn", "English"),
    ],
)
def test_text_clearly_in_another_language_is_detected(text: str, language: str, expected: str) -> None:
    assert detect_other_language(text, language) == expected


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("我喜欢苹果。", "zh"),
        ("我们用 Windows 10 和 Microsoft Office 2016 工作。", "zh"),
        ("iPhone 15 Pro Max", "zh"),  # names
        ("Microsoft Office", "zh"),
        ("树", "en"),  # one character
        ("の", "zh"),  # in brand names
        ("日语的“ありがとう”是谢谢的意思。", "zh"),  # with a Japanese word
        ("这是一个用日语写的句子：「ありがとう」", "zh-CN"),
        ("他說「さようなら」，你聽得懂嗎？", "zh-TW"),
        ("OK", "zh"),  # single words and names in Latin letters occur in all languages
        ("Hello", "ru"),
        ("Guten Tag", "en"),  # the same script, and too few words to decide
        ("https://example.org/a/b", "zh"),
        ("1234 5678 90", "zh"),
        ("", "en"),
        ("He said “je ne sais pas” and left the room.", "en"),
        ("Tom and Maria like the film Das Boot.", "en"),
        ("Tom died in prison in 2013.", "en"),
        ("git commit --amend and push origin main", "en"),
        ("New York Times bestseller author list", "en"),
        ("Michael Schumacher Sebastian Vettel Nico Rosberg", "de"),
        ("Die Band spielt The End of the World.", "de"),
        ("東京大学附属病院", "ja"),
        ("Ovo je na srpskom jeziku.", "sr"),  # written in two scripts
        ("我不知道他在哪里。", "xx"),  # a code that is not known
        ("Dzisiaj idziemy do szkoły razem.", "pl"),
    ],
)
def test_names_and_short_texts_are_not_taken_for_another_language(text: str, language: str) -> None:
    assert detect_other_language(text, language) is None


@pytest.mark.parametrize(
    ("language", "script"),
    [
        ("zh", "Han and kana"),
        ("ZHO_Hans", "Han and kana"),
        ("cmn", "Han and kana"),
        ("kor_Hang", "Hangul"),
        ("rus", "Cyrillic"),
        ("sr-Latn-RS", "Latin"),
        ("srp_Cyrl", "Cyrillic"),
        ("es-AR", "Latin"),  # Argentina, not Arabic
        ("ell", "Greek"),
        ("eng_Latn", "Latin"),
    ],
)
def test_the_script_of_a_language_follows_from_its_code(language: str, script: str) -> None:
    assert script_of(language) == script
    assert is_written_in(language, script)


@pytest.mark.parametrize(
    ("language", "text", "script"),
    [
        ("hy", "Ես ամեն օր գիրք եմ կարդում", "Armenian"),
        ("ka", "მე ყოველდღე წიგნს ვკითხულობ", "Georgian"),
        ("bn", "আমি প্রতিদিন বই পড়ি", "Bengali"),
        ("pa", "ਮੈਂ ਹਰ ਰੋਜ਼ ਕਿਤਾਬ ਪੜ੍ਹਦਾ ਹਾਂ", "Gurmukhi"),
        ("gu", "હું દરરોજ પુસ્તક વાંચું છું", "Gujarati"),
        ("ta", "நான் தினமும் புத்தகம் படிக்கிறேன்", "Tamil"),
        ("te", "నేను ప్రతిరోజూ పుస్తకం చదువుతాను", "Telugu"),
        ("kn", "ನಾನು ಪ್ರತಿದಿನ ಪುಸ್ತಕ ಓದುತ್ತೇನೆ", "Kannada"),
        ("ml", "ഞാൻ എല്ലാ ദിവസവും പുസ്തകം വായിക്കുന്നു", "Malayalam"),
        ("si", "මම හැමදාම පොත් කියවනවා", "Sinhala"),
        ("am", "እኔ በየቀኑ መጽሐፍ አነባለሁ", "Ethiopic"),
        ("lo", "ຂ້ອຍອ່ານປຶ້ມທຸກມື້", "Lao"),
        ("km", "ខ្ញុំអានសៀវភៅរាល់ថ្ងៃ", "Khmer"),
        ("my", "ကျွန်တော်စာအုပ်ဖတ်တယ်", "Burmese"),
    ],
)
def test_scripts_of_one_language_are_known(language: str, text: str, script: str) -> None:
    assert script_of(language) == main_script(text) == script
    assert detect_other_language(text, language) is None
    assert (detect_other_language(text, "en") or "").startswith(script)
    assert language == "pa" or detect_other_language("I read a book about the world every day.", language) == "English"
