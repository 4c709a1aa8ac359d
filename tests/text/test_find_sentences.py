"""Test finding sentences in any script, with abbreviations, ordinals, quotation marks and protected spans."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.text.protected import find_protected
from transduce.text.sentences import find_sentences
from transduce.text.word_spans import Span

CASES = [
    # Chinese, Japanese, Korean.
    ("zh", ["玛丽看了他的书吗？", "谁需要你的同学？"]),
    ("zh", ["他来了。", "她走了！", "“真的？”", "对。"]),
    ("zh", ["“你好。", "我是汤姆。”他说。", "“再见！”玛丽说道。"]),
    ("zh", ["“我爱你。”，他说。", "他走了。"]),
    ("zh", ["你叫什么名字?", "爱不存在。", "太好了!!", "真的?"]),
    ("zh", ["我……我不知道。", "我不知道该怎么办……", "他昨天走了。"]),
    ("zh", ["我爱你.", "他走了.", "你呢"]),
    ("zh", ["（真的。）", "他走了。"]),
    ("zh", ["这个3.5元。", "那个4.2元。"]),
    ("zh", ["绝对将要下雨。", '"咱们走吧，"他对我说。']),
    ("ja", ["値は３．５です．", "終わり｡", "はい。", "「行く。」と言った。"]),
    ("ko", ["나는 간다.", "너는?", "좋아.", "그래"]),
    # Other scripts.
    ("hi", ["वह घर गया।", "वह सो गया।", "क्यों?", "“हाँ।”", "ठीक है"]),
    ("ar", ["من أنت؟", "أنا هنا.", "حقا؟!", "نعم"]),
    ("ur", ["وہ ایم۔اے ہے۔", "وہ سو گیا۔"]),
    ("am", ["ቤት ሄደ።", "ተኛ፧", "አዎ።"]),
    ("hy", ["Նա եկավ։", "Նա գնաց։"]),
    ("he", ["מי אתה?", "אני כאן.", "כן!"]),
    ("th", ["ฉันรักคุณ คุณรักฉันไหม"]),
    # Abbreviations and initials.
    ("en", ["Mr. Weston and Dr. Perry met J. R. Smith.", "He left."]),
    ("en", ["Dr. Smith arrived."]),
    ("en", ["We saw 3.5 of them, e.g. these.", "(Others too.)", "Done"]),
    ("en", ["He works at Apple Inc.", "The firm is big.", "He lives in the U.S.", "He is fine."]),
    ("en", ["The U.S. Army came at 5 p.m. yesterday."]),
    ("en", ["See No. 5.", "No.", "I won't.", "Fig. 3 shows it."]),
    # Months, days and other abbreviations before a number.
    ("en", ["The attacks of Sept. 11, 2001, changed it.", "On Jan. 1st, Feb. 2 and Sun. 3 Mar. 2002 we left.", "Yes."]),
    ("en", ["Aug. 5, Oct. 31, Nov. 9 and Dec. 1999.", "SEPT. 11 CAME.", "In sept. 2001 we met."]),
    ("en", ["Call ext. 45, Ver. 2.0, Apt. 3, Rm. 7, Hwy. 61, Sec. 4."]),
    ("en", ["It rained in Oct.", "5 million saw it.", "He left in Dec.", "1,200 did.", "Tom came in Nov.", "250 did."]),
    ("en", ["It ended on 5 Sept.", "20 people came on 5 Sept. 2001.", "On 5 Oct. 14:00 it began."]),
    ("en", ["He left in Oct.", "Tom stayed.", "It is in the sun.", "5 died.", "It was a year ago.", "5 came."]),
    ("de", ["Am 11. Sept. 2001 und am 5. Okt. 20 Uhr, siehe Anm. 5.", "Im Dez. 1999 kam er."]),
    ("fr", ["Le 11 sept. 2001 et le 3 févr. 2002, réf. 5.", "Il part."]),
    ("es", ["Nació el 11 de sept. de 2001 en casa de su madre.", "Murió el 3 ago. 2020.", "Vi el mar.", "Tom no."]),
    ("it", ["Nato il 3 sett. 2001, morto il 5 ago. 2002.", "Basta."]),
    ("pt", ["Em 5 set. 2001 e 7 fev. 2002.", "Sim."]),
    ("ru", ["Это было 11 сент. 2001 и 5 янв. 2002.", "Потом он ушёл."]),
    ("hu", ["2001. szept. 11. volt."]),
    ("en", ["It was I.", "He knew."]),
    ("en", ["Cats, dogs etc.", "Birds fly."]),
    ("de", ["Sie kommt z.B. am Montag.", "Zwei Männer bzw. Frauen usw.", "Die Katze schläft.", "Das ist Dr. Müller."]),
    ("de", ["Ich weiß, dass er sie mag.", "Tom wartet.", "Das ist meine CD.", "Tom hört zu."]),
    ("es", ["¿Qué pasa?", "¡Hola!", "El Sr. García vive aquí.", "¿y tú?"]),
    ("fr", ["Vraiment ?", "Oui.", "« Quoi ? » dit-il.", "« Non ! »", "Il part.", "M. Dupont arrive."]),
    ("ru", ["Привет.", "Как дела?", "В 1990 г. Москва росла."]),
    # Words of one letter or syllable.
    ("ko", ["네.", "알겠습니다.", "그것은 내 것.", "손대지 마."]),
    ("ru", ["Это был я.", "Потом он ушёл."]),
    ("ru", ["это был я.", "привет, том."]),
    ("ru", ["Кто там?", "— Я.", "Входи."]),
    ("uk", ["Це був я.", "Тоді він пішов."]),
    ("pt", ["Ele é.", "Tom não é."]),
    ("it", ["Non so chi è.", "Tom lo sa."]),
    ("ro", ["Nu știu cine e.", "Tom știe."]),
    ("tr", ["Gelen o.", "Tom gitti."]),
    ("vi", ["TP. Hồ Chí Minh rất đông.", "PGS.TS. Trần và GS. Lê đến.", "Bạn khỏe không?"]),
    ("da", ["Det er en ø.", "Tom bor her."]),
    ("sv", ["Det är en ö.", "Tom bor här."]),
    ("hu", ["Ez volt ő.", "Péter elment."]),
    ("fr", ["Je sais ce qu'il y a.", "Tom part."]),
    ("ka", ["მე ვარ ა.", "ის წავიდა."]),
    ("en", ["The key is e.", "Tom ran 5 m.", "Then he fell."]),
    ("he", ["הסופר א. ב. יהושע כתב.", "היא קראה."]),
    ("ar", ["كان ذلك سنة 44 ق.م.", "ثم مات."]),
    ("ar", ["جاء د. أحمد اليوم.", "ثم ذهب."]),
    # Abbreviations of several parts, and in several languages.
    (
        "de",
        [
            "Tom kommt z. B. Montag oder d. h. nie.",
            "Das ist m. E. Unsinn von Otto d. Gr. aus Rom.",
            "Er starb 44 v. Chr. in Rom.",
        ],
    ),
    ("de", ["Wir sahen u. a. Hunde u. Ä.", "Dann gingen wir i. d. R. Eis essen."]),
    ("en", ["He came at 5 a. m. Monday, i. e. today."]),
    ("cs", ["Např. Praha je tzv. Matka měst.", "To je ul. Dlouhá.", "MUDr. Novák přišel 3. 5. 2024 domů."]),
    ("pl", ["Mieszkam na ul. Długiej.", "Dr hab. Nowak też.", "Urodził się w 1990 r.", "Potem wyjechał."]),
    ("sv", ["Bl.a. Tom kom, t.ex. Anna.", "En örn.", "Den flög."]),
    ("da", ["F.eks. Tom kom, dvs. Anna."]),
    ("fi", ["Esim. Helsinki on iso."]),
    ("it", ["Ad es. Roma è grande."]),
    ("es", ["Vive en los EE. UU. de hoy.", "Tom vive en EE. UU.", "Yo también."]),
    ("es", ["a. Mejorar la situación.", "b. Otra cosa."]),
    ("en", ["A. C. Clarke and N. E. Smith met J. A. Bell, oh no! but they left.", "See Smith v. Jones, l. 3."]),
    ("en", ["( e . d . those of the brother )"]),
    ("hi", ["डॉ. शर्मा आए।", "यह रु. 500 का है।"]),
    ("el", ["Ο Δρ. Παπαδόπουλος ήρθε.", "Βλ. Σελ. 5."]),
    ("ru", ["Он живёт в кв. 5 на ул. Ленина.", "Завод им. Ленина закрыт.", "Скажи им.", "Том ждёт."]),
    ("ru", ["См. рис. 5 и табл. 3.", "Он любит книги и т. д.", "Том ушёл.", "Я ем рис.", "Он вкусный."]),
    ("ru", ["Он родился в 1990 г.", "Уехал в Париж.", "Жил он в XIX в.", "Умер в Москве."]),
    ("tr", ["Sn. Yılmaz Bağdat Cad. Moda Mah. yakınında.", "Örn. Ankara."]),
    # Names and acronyms that are frequent first words or abbreviations in another language.
    ("en", ["He met U.S. Sen. John McCain.", "Amartya K. Sen won.", "U.S. Men won.", "Main St. Ben lives there."]),
    ("en", ["J. Ben Smith met David D. Ben-Gurion.", "James A. Hon was here.", "Prof. T. Az said so."]),
    ("de", ["Der Politiker D. Ben-Gurion sprach."]),
    ("tr", ["Saat 5 p.m.", "Ben gittim."]),
    ("ru", ["Жил там А.", "Потом ушёл."]),
    ("en", ["I heard it on NPR.", "Bob told me.", "NPR.", "The host was kind.", "He had no resp.", "Bob did."]),
    ("nl", ["Hij werkt bij de VRT.", "Dat is in Brussel."]),
    ("fi", ["Tom (vrt. Anna) tuli.", "Kanava on VRT.", "Tom katsoo."]),
    ("cs", ["Tom resp. Anna přišli."]),
    ("cs", ["TOM RESP. ANNA PŘIŠLI."]),
    ("en", ["the bacterium e. coli is small.", "john a. smith met j. a. smith.", "we read o. henry and slept."]),
    ("de", ["der autor e. müller schrieb es.", "ja."]),
    ("de", ["von Anna A. van der Berg"]),
    ("pt", ["não sei o que é.", "tom sabe."]),
    # Eras and units.
    (
        "de",
        [
            "Er lebte 44 v. Chr.",
            "Caesar starb.",
            "Es war 100 n. Chr.",
            "Rom war groß.",
            "Im 19. Jh.",
            "Paris wurde groß.",
        ],
    ),
    (
        "de",
        [
            "Er kam im 5. Jh. v. Chr. nach Rom.",
            "Es kostet 5 Mio. Euro oder 3 Tsd. Dollar.",
            "Das sind Mio.",
            "Bob ging.",
        ],
    ),
    ("de", ["es kostet 5 mio. euro im 5. jh. nach rom."]),
    ("en", ["It costs 5 Mio.", "Bob left."]),
    # Ordinals and numbers.
    ("tr", ["II. Abdülhamit öldü.", "I. Murat geldi."]),
    ("ko", ["2024. 5. 3. 서울에서 만났다.", "오늘은 2024. 5. 4.이다.", "좋다."]),
    ("de", ["Tom wurde am 5. Mai 2010 geboren.", "Er ist 5.", "Sie ist 6."]),
    ("de", ["Der 1. und 2. Weltkrieg.", "Ludwig XIV. war König."]),
    ("deu_Latn", ["Der 1. und 2. Weltkrieg.", "Ludwig XIV. war König."]),
    ("de", ["Der Verkehr stand zwischen den Ausfahrten 22 und 23.", "Tom kam zu spät."]),
    ("en", ["1. Open the door.", "2. Close it.", "3) Run."]),
    ("en", ["I was born in 1990.", "1991 was bad.", "It has 3 rooms."]),
    ("en", ["I have 5.", "You have 6."]),
    # Marks.
    ("en", ["Well... it was.", "…And then?", "I know…", "Yes."]),
    ("en", ["“Stop!” he said.", "“Why?”", "She knew.", "“No!” Tom said.", "Fine."]),
    ("en", ["He said 'Go.'", "She left."]),
    ("de", ["Ende.", "„Wirklich?“", "Ja.", "„Komm!“, sagte er."]),
    ("de", ["Er sagte: »Halt!«", "Dann ging er.", "Er kam.", "»Warte!«"]),
    ("en", ["What?!", "No!!!"]),
    ("en", ["?!"]),
    ("en", ["... ok"]),
    ("ja", ["え？と思った。", "何？", "とても驚いた。"]),
    ("zh", ["他来了……", "我走了。"]),
    ("en", ["It is water.[1]", "Big cats drink.[2][3]", "They purr.¹", "Yes.[a]", "So they do."]),
    ("zh", ["水。[1]", "大。¹", "好。"]),
    ("fr", ["Il dit ‹ Oui. ›", "Puis il part."]),
    ("de", ["Er sagte: ›Halt!‹", "Dann ging er."]),
    ("he", ["הוא אמר ״כן.״", "היא הלכה."]),
    ("hi", ["मैं घर गया|", "वह सो गया |", "हाँ |"]),
    ("el", ["Τι κάνεις;", "Πού είναι ο Νίκος;", "Εδώ."]),
    ("el", ["τι κάνεις;", "πού είναι ο Νίκος;"]),
    ("en", ["I went home; Tom stayed."]),
    # Texts without capital letters, or without spaces.
    ("en", ["hello.", "how are you?", "i am fine.", "thanks"]),
    ("en", ["I came home late yesterday.", "then I slept well."]),
    ("en", ["Really?", "Yes!", "He came.", "She left."]),
]


@pytest.mark.parametrize(("language", "sentences"), CASES, ids=lambda case: case if isinstance(case, str) else case[0])
def test_sentences_of_each_language_are_found(language: str, sentences: list[str]) -> None:
    text = "".join(sentences) if language in ("zh", "ja") else " ".join(sentences)
    if language == "ja":
        text = text.replace("終わり｡", "終わり｡ ")
    assert [text[start:end] for start, end in find_sentences(text, language)] == sentences


def test_marks_without_a_space_end_sentences_too() -> None:
    text = "Really?Yes! He came.She left. Use System.Out to print.And go."
    found = [text[start:end] for start, end in find_sentences(text, "en")]
    assert found == ["Really?", "Yes!", "He came.", "She left.", "Use System.Out to print.", "And go."]


@pytest.mark.parametrize("text", ["He met U.S. Sen. John McCain.", "D. Ben-Gurion spoke.", "Amartya K. Sen won."])
def test_first_words_of_other_languages_begin_no_sentence_of_an_unknown_language(text: str) -> None:
    assert len(find_sentences(text)) == 1


def test_dates_have_days_months_and_years() -> None:
    for text in ("Er kam am 31. 12. 2024 an.", "Es ist der 3. 5. 1999 heute."):
        assert len(find_sentences(text, "de")) == 1
    for text in (
        "Ergebnis: 3. 5. 1000 Leute kamen.",
        "Versions 1. 2. 3000 are",
        "Siehe 32. 5. 2000",
        "Siehe 3. 13. 2000",
    ):
        assert len(find_sentences(text, "en")) > 1


def test_marks_without_a_space_end_sentences_in_scripts_without_capital_letters_too() -> None:
    for text in ("من أنت؟|أنا هنا.", "وہ گیا۔|میں آیا۔|وہ ایم۔اے ہے۔", "मैं घर गया|" + "\0वह सो गया|", "뭐?|나는 간다."):
        sentences = text.split("\0") if "\0" in text else text.split("|")
        whole = "".join(sentences)
        assert [whole[start:end] for start, end in find_sentences(whole)] == sentences


def test_the_greek_question_mark_is_known_without_a_language() -> None:
    for text in ("Τι κάνεις; Είμαι καλά.", "Τι κάνεις\u037e Είμαι καλά."):
        assert len(find_sentences(text)) == 2


@pytest.mark.parametrize(
    "text",
    ["Read https://a.b/c?d=1!e. Then go.", "He wrote {Hello. You there} to me. Then he left.", "看`a。b`吧。好。"],
)
def test_no_sentence_ends_in_a_protected_span(text: str) -> None:
    protected = [*find_protected(text)] or [Span(text.index("{"), text.index("}") + 1)]
    found = find_sentences(text, protected=protected)
    assert len(found) == 2
    assert all(any(start <= span.start and span.end <= end for start, end in found) for span in protected)


@pytest.mark.parametrize(
    "piece",
    [
        "Go. ",
        "走。",
        " ",
        "!",
        "!)",
        "\t",
        "…x",
        "Dr. ",
        "a ",
        "。",
        "? ",
        "... ",
        '"',
        "1. ",
        "« », ",
        "hm? hm. ",
        "z. ",
        ".[1]",
        "1. 2. ",
        "ह|",
    ],
)
def test_long_texts_take_linear_time(piece: str) -> None:
    started_at = time.monotonic()
    spans = find_sentences(piece * 20_000)
    assert time.monotonic() - started_at < 10
    assert piece not in ("Go. ", "走。") or len(spans) == 20_000


@given(st.text(alphabet="Aab1 .!?。！？…»«“”\"' \n\t\u3000😆", max_size=60))
def test_found_sentences_cover_all_characters_but_spaces(text: str) -> None:
    spans = find_sentences(text)
    ends, starts = [0, *(span.end for span in spans)], [*(span.start for span in spans), len(text)]
    assert not "".join(text[end:start] for end, start in zip(ends, starts, strict=True)).strip()
    assert spans == sorted(spans)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("I <b>like you.</b> I eat apples.", ["I <b>like you.</b>", "I eat apples."]),
        ("我<b>喜欢你。</b>我吃苹果。", ["我<b>喜欢你。</b>", "我吃苹果。"]),
        ("她相信<a><b>我</b>。</a>", ["她相信<a><b>我</b>。</a>"]),
        ("<b>One it is. Two.</b></i> <0>Mr. {n}.</0>", ["<b>One it is.", "Two.</b></i>", "<0>Mr. {n}.</0>"]),
        ("Move <file>. So it is.</b>", ["Move <file>.", "So it is.</b>"]),
        ("</b>", ["</b>"]),
    ],
)
def test_end_tags_belong_to_the_sentence_before_them(text: str, sentences: list[str]) -> None:
    spans = find_sentences(text, "en", find_protected(text))
    assert [text[slice(*span)] for span in spans] == sentences


def test_many_tags_take_linear_time() -> None:
    text = "<b>One it is.</b> " * 5_000
    protected = find_protected(text)
    started = time.process_time()
    assert len(find_sentences(text, "en", protected)) == 5_000
    assert time.process_time() - started < 3.0
