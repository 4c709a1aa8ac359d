"""Find faulty lines for the corpus doctor.

The checks concern characters, repeated lines, copies of the other side, overlaps with the test set, tokens, Chinese
scripts and languages.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import msgspec

from transduce.errors import count_noun
from transduce.inspection.corpus_doctor.report import (
    CorpusText,
    Finding,
    Side,
    count_finding,
    line_finding,
    severity_of,
)
from transduce.text.corpus import Pair
from transduce.text.files import DAMAGED, INVISIBLE, MARKUP, is_decodable
from transduce.text.filters import RATIO, FilterSettings, PairFilter
from transduce.text.languages import is_word_character, main_script, unspaced_characters
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary, fallback_ids
from transduce.training.choices import CorpusSize, choose_vocabulary_size

# --- characters ---
# Find characters that indicate faults: wrong encodings, markup, and leftovers of other tools.


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SEPARATOR = re.compile("[\r\u0085\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\n(?![a-zA-Z])")
_FULL_WIDTH = re.compile("[０-９Ａ-Ｚａ-ｚ｡-ﾟ]")
_FULL_WIDTH_MARK = re.compile("[，。！？；：（）]")
_HAN = re.compile("[\u4e00-\u9fff]")
_HAN_BEFORE_ASCII = re.compile("[\u4e00-\u9fff][,.?!;:]")
_QUOTED = re.compile(r'\s*".*"\s*')
_ALL_QUOTED = 0.9


class _LinePattern(NamedTuple):
    name: str
    matches: Callable[[str], object]
    message: str
    problem_share: float = 0.01


_PATTERNS = (
    _LinePattern("not UTF-8", _SURROGATE.search, "{count} not UTF-8; training leaves such pairs out, so fix the lines"),
    _LinePattern(
        "control characters",
        _CONTROL.search,
        "{count} with control characters such as NUL; training leaves such pairs out",
    ),
    _LinePattern(
        "line separators",
        _SEPARATOR.search,
        "{count} with U+2028, U+0085 or a carriage return inside: one line here, two for other tools",
    ),
    _LinePattern(
        "tabs", lambda line: "\t" in line, "{count} with a tab: check whether they contain several columns of a table"
    ),
    _LinePattern(
        "invisible characters",
        INVISIBLE.search,
        "{count} with invisible characters, such as U+FEFF and U+200B: remove them",
    ),
    _LinePattern("escapes", _ESCAPE.search, "{count} with escapes such as \\ud83d in the text: decode them"),
    _LinePattern("markup", MARKUP.search, "{count} with entities or tags such as &amp; or <b>: decode or remove them"),
    _LinePattern(
        "damaged characters", DAMAGED.search, "{count} with U+FFFD or twice encoded text such as Ã©: decode it again"
    ),
    _LinePattern(
        "no letters",
        lambda line: line.strip() and not any(map(str.isalnum, line)),
        "{count} without a letter or digit, such as @#$%: remove these lines, which teach no translation",
        1.0,
    ),
    _LinePattern(
        "full-width letters",
        _FULL_WIDTH.search,
        "{count} with full-width letters or digits, or half-width kana: other tokens for the model than the usual ones",
        2.0,
    ),
)


_BLANK = (
    _LinePattern("empty lines", lambda line: not line, "{count} empty; training leaves such pairs out", 0.05),
    _LinePattern(
        "white space only",
        lambda line: line and not line.strip(),
        "{count} of white space only; training leaves such pairs out",
        0.05,
    ),
)


def character_findings(text: CorpusText) -> list[Finding]:
    """Return a list of findings about characters: suspicious ones by kind, empty lines, punctuation and quotes."""
    suspicious, blank = ([_pattern_finding(text, each) for each in kind] for kind in (_PATTERNS, _BLANK))
    return [*suspicious, _windows_files(text), *blank, _punctuation(text), _quoted_side(text)]


def _pattern_finding(text: CorpusText, pattern: _LinePattern) -> Finding:
    source, target = ([n for n, line in enumerate(side.lines) if pattern.matches(line)] for side in text.sides)
    return line_finding(text, pattern.name, (source, target), pattern.message, pattern.problem_share)


def _windows_files(text: CorpusText) -> Finding:
    """Return a finding about byte order marks and carriage returns at line ends, which reading removes."""
    marks = sum(side.notes.byte_order_marks for side in text.sides)
    returns = sum(side.notes.carriage_returns for side in text.sides)
    return Finding(
        name="windows files",
        severity="look" if marks + returns else "fine",
        count=marks + returns,
        share=returns / (len(text.source.lines) + len(text.target.lines)),
        message=f"{marks:,} byte order marks and {returns:,} carriage returns at line ends, which training removes"
        if marks + returns
        else "none",
    )


def _quoted_side(text: CorpusText) -> Finding:
    """Return a finding about a side with nearly all lines in double quotes.

    The finding affects no line if the other side has many such lines, too.
    """
    numbers = [[n for n, line in enumerate(side.lines) if _QUOTED.fullmatch(line)] for side in text.sides]
    shares = [len(quoted) / len(side.lines) for quoted, side in zip(numbers, text.sides, strict=True)]
    source, target = (
        quoted if share >= _ALL_QUOTED and other_share <= 1 - _ALL_QUOTED else []
        for quoted, share, other_share in zip(numbers, shares, reversed(shares), strict=True)
    )
    message = "{count} in double quotes, as spreadsheets write fields: the model would learn them, so remove them"
    return line_finding(text, "quoted side", (source, target), message, 0.01)


def _punctuation(text: CorpusText) -> Finding:
    (source, is_full), (target, is_full_in_target) = (_odd_punctuation(side.lines) for side in text.sides)
    kinds = {full for lines, full in ((source, is_full), (target, is_full_in_target)) if lines}
    message = "{count} with punctuation of another width than the rest of the side, full or half"
    if kinds == {True}:
        message = "{count} with full-width punctuation, while the rest of the side has half-width (ASCII) punctuation"
    elif kinds == {False}:
        message = "{count} with half-width (ASCII) punctuation, while the rest of the side has full-width punctuation"
    return line_finding(text, "mixed punctuation", (source, target), message)


def _odd_punctuation(lines: list[str]) -> tuple[list[int], bool]:
    """Return the indices of lines with the rarer width of punctuation marks, and whether this width is full width.

    Half-width marks are ASCII marks after Chinese characters. If less than half of the lines have Chinese characters,
    full width is always returned.
    """
    wide = [(number, line) for number, line in enumerate(lines) if not line.isascii()]
    full = [number for number, line in wide if _FULL_WIDTH_MARK.search(line)]
    if 2 * sum(_HAN.search(line) is not None for _, line in wide) < len(lines):
        return full, True
    half = [number for number, line in wide if _HAN_BEFORE_ASCII.search(line)]
    return (half, False) if len(half) < len(full) else (full, True)


# --- repeats ---
# Find repetitions: duplicate pairs, targets that copy their source, and sentences of the test set.


_NOT_LETTERS = re.compile(r"[\W_]+")


def normalized_line(line: str) -> str:
    """Return a line without case, punctuation and spaces, to find lines with equal letters and digits."""
    # Combining marks, such as vowel signs, belong to words, though regular expressions do not count them as such.
    return _NOT_LETTERS.sub(lambda between: "".join(filter(is_word_character, between[0])), line).casefold() or line


def repeat_findings(text: CorpusText, test: CorpusText | None) -> list[Finding]:
    """Return a list of findings about duplicates, copies, repeated sources, and overlap with a test set.

    If `test` is None, overlap is not checked.
    """
    findings = [_duplicates(text), _copies(text), _retranslated(text)]
    return findings if test is None else [*findings, *_overlaps(text, test)]


def _pair_finding(text: CorpusText, name: str, numbers: list[int], message: str, problem_share: float) -> Finding:
    count = len(numbers)
    shown = message.format(count=count_noun(count, "pair"), share=f"{count / text.pairs:.1%}")
    return count_finding(name, count, text.pairs, shown, problem_share, ((text.source, number) for number in numbers))


def _duplicates(text: CorpusText) -> Finding:
    seen: set[tuple[str, str]] = set()
    duplicates = []
    for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False)):
        if pair in seen and pair[0].strip():
            duplicates.append(number)
        seen.add(pair)
    message = "{count} ({share}) equal to an earlier pair: `data.filters.drop_duplicates` leaves them out"
    return _pair_finding(text, "duplicates", duplicates, message, 0.1)


def _copies(text: CorpusText) -> Finding:
    lines = enumerate(zip(text.source.lines, text.target.lines, strict=False))
    copies = [number for number, (a, b) in lines if a.strip() == b.strip() and a.strip()]
    message = "{count} ({share}) with a target equal to the source; training leaves them out because they teach copying"
    return _pair_finding(text, "copies", copies, message, 0.02)


def _retranslated(text: CorpusText) -> Finding:
    pairs = dict.fromkeys(zip(text.source.lines, text.target.lines, strict=False))
    counts = Counter(source for source, _ in pairs)
    most_translated, max_translations = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    num_sources = sum(count > 1 for count in counts.values())
    return Finding(
        name="several translations",
        severity="problem" if max_translations > max(20, 0.01 * text.pairs) and most_translated.strip() else "fine",
        count=num_sources,
        share=num_sources / max(1, len(counts)),
        message=f"{count_noun(num_sources, 'source')} with more than one target, up to {max_translations:,}",
        examples=(text.source.example(text.source.lines.index(most_translated)),) if max_translations > 1 else (),
    )


def _overlaps(text: CorpusText, test: CorpusText) -> list[Finding]:
    findings = [_overlap(side, test_side) for side, test_side in zip(text.sides, test.sides, strict=True)]
    test_pairs = {tuple(map(normalized_line, pair)) for pair in zip(test.source.lines, test.target.lines, strict=False)}
    pairs = [
        number
        for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False))
        if tuple(map(normalized_line, pair)) in test_pairs
    ]
    message = "{count} of the training text also in the test set: they make its score meaningless, so remove them"
    return [*findings, _pair_finding(text, "test pairs", pairs, message, 0.0)]


def _overlap(side: Side, test: Side) -> Finding:
    """Return a finding about test sentences of one side (source or target) that occur in the training text's side.

    Case, spaces and punctuation are ignored; the count is of different sentences.
    """
    test_sentences = {normalized_line(line) for line in test.lines if line.strip()}
    line_numbers = [n for n, line in enumerate(side.lines) if line.strip() and normalized_line(line) in test_sentences]
    num_leaked = len({normalized_line(side.lines[number]) for number in line_numbers})
    total = max(1, len(test_sentences))
    share = num_leaked / total
    message = (
        f"{num_leaked:,} of the test set's {len(test_sentences):,} {side.name} sentences ({share:.1%}) are in the "
        "training text"
    )
    examples = ((side, number) for number in line_numbers)
    none = "none of the test set's sentences is in the training text"
    return count_finding(f"test {side.name}s", num_leaked, total, message, 0.01, examples, if_none=none)


# --- tokens ---
# Check how a vocabulary tokenizes the lines: too many tokens, unequal lengths, characters without a token.


_TRAINING_PAIRS = 20_000  # for a vocabulary, if there is no model
_MIN_PAIRS = 50
_ODD_SHARE = 0.2  # share of byte and unknown tokens from which a line is an example


def token_findings(text: CorpusText, tokenizer: Tokenizer | None, filters: FilterSettings) -> list[Finding]:
    """Return a list of findings about tokens: long lines, pairs of unequal lengths, and unknown tokens.

    `filters` sets which lines are too long and which lengths too unequal. Without a tokenizer (None), one is trained on
    part of the corpus; for a corpus too small for that, the list is empty.
    """
    is_trained_here = tokenizer is None
    tokenizer = tokenizer or _train_tokenizer(text)
    if tokenizer is None:
        return []
    sides = [
        _TokenCounts(side, vocabulary)
        for side, vocabulary in zip(text.sides, (tokenizer.source, tokenizer.target), strict=True)
    ]
    long = [[n for n, count in enumerate(side.counts) if count > filters.max_tokens] for side in sides]
    message = f"{{count}} of more than {filters.max_tokens} tokens; training leaves such pairs out, so split them"
    return [
        line_finding(text, "long lines", (long[0], long[1]), message, 0.01),
        _unequal_lengths(text, sides[0].counts, sides[1].counts, filters),
        _unknown_tokens(text, sides, is_trained_here=is_trained_here),
    ]


class _TokenCounts:
    """Two lists for the lines of a corpus side: `counts` of tokens, and `odd`, the counts of byte or unknown tokens."""

    def __init__(self, side: Side, vocabulary: Vocabulary) -> None:
        odd = fallback_ids(vocabulary)
        self.counts: list[int] = []
        self.odd: list[int] = []
        for start in range(0, len(side.lines), 10_000):
            for ids in vocabulary.encode_batch(side.lines[start : start + 10_000]):
                self.counts.append(len(ids))
                self.odd.append(sum(id in odd for id in ids))


def _train_tokenizer(text: CorpusText) -> Tokenizer | None:
    """Train a tokenizer on part of the corpus, with the vocabulary size that training would choose for all of it.

    Returns None if fewer than 50 pairs can be used.
    """
    step = max(1, text.pairs // _TRAINING_PAIRS)
    lines = zip(text.source.lines[::step], text.target.lines[::step], strict=False)
    pairs = [Pair(a, b, 0) for a, b in lines if is_decodable(a) and is_decodable(b) and a.strip() and b.strip()]
    if len(pairs) < _MIN_PAIRS:
        return None
    characters = {c for pair in pairs for c in unspaced_characters(pair.source + pair.target)}
    size = choose_vocabulary_size(CorpusSize(pairs=text.pairs, unspaced_characters=len(characters)))
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=size.value), adjust=True)


def _unequal_lengths(
    text: CorpusText, source: Sequence[int], target: Sequence[int], filters: FilterSettings
) -> Finding:
    rule = PairFilter(msgspec.structs.replace(filters, max_tokens=2**31 - 1))  # checks the ratio only
    unequal = [
        number
        for number, (a, b) in enumerate(zip(source, target, strict=False))
        if a and b and rule.length_reason(a, b) == RATIO
    ]
    max_ratio = filters.max_length_ratio
    message = (
        f"{{count}} with more than {max_ratio:g} times the tokens of the other side; training leaves such pairs out"
    )
    return line_finding(text, "unequal lengths", (unequal, []), message, 0.01)


def _unknown_tokens(text: CorpusText, sides: Sequence[_TokenCounts], *, is_trained_here: bool) -> Finding:
    """Return a finding about byte and unknown tokens.

    If the tokenizer was trained on this corpus, the finding is never a problem. `sides` has the token counts of source
    and target.
    """
    source = "a vocabulary trained on the corpus" if is_trained_here else "the model's vocabulary"
    tokens, odd = sum(sum(side.counts) for side in sides), sum(sum(side.odd) for side in sides)
    lines = [[n for n, (a, b) in enumerate(zip(s.odd, s.counts, strict=True)) if a > _ODD_SHARE * b] for s in sides]
    finding = line_finding(text, "unknown tokens", (lines[0], lines[1]), "{count}")
    share = odd / max(1, tokens)
    return msgspec.structs.replace(
        finding,
        severity=severity_of(odd, tokens, math.inf if is_trained_here else 0.01),
        count=odd,
        share=share,
        message=f"{share:.2%} of the tokens are bytes of characters or unknown (by {source})",
    )


# --- Chinese scripts ---
# Find Chinese lines in the other script: simplified or traditional characters.
# The list has common characters whose simplified and traditional forms are never used in the other script.


# Simplified, then traditional.
_PAIRS = (
    "爱愛 罢罷 备備 贝貝 笔筆 毕畢 边邊 变變 标標 别別 宾賓 补補 财財 参參 仓倉 产產 长長 尝嘗 车車 彻徹 尘塵 "
    "陈陳 称稱 诚誠 迟遲 处處 传傳 创創 词詞 从從 错錯 达達 带帶 单單 当當 导導 灯燈 邓鄧 敌敵 点點 电電 东東 "
    "动動 对對 队隊 儿兒 尔爾 发發 饭飯 飞飛 费費 坟墳 粪糞 丰豐 风風 妇婦 复復 该該 盖蓋 刚剛 钢鋼 个個 给給 "
    "购購 顾顧 关關 观觀 馆館 广廣 归歸 贵貴 国國 过過 汉漢 号號 红紅 护護 华華 画畫 话話 怀懷 坏壞 欢歡 环環 "
    "还還 换換 会會 机機 鸡雞 积積 极極 际際 记記 计計 继繼 价價 间間 监監 见見 将將 讲講 奖獎 节節 结結 紧緊 "
    "进進 经經 惊驚 旧舊 举舉 剧劇 觉覺 决決 开開 课課 块塊 来來 蓝藍 劳勞 乐樂 泪淚 离離 礼禮 历歷 丽麗 联聯 "
    "脸臉 练練 两兩 邻鄰 灵靈 刘劉 龙龍 楼樓 录錄 陆陸 乱亂 轮輪 论論 罗羅 妈媽 马馬 吗嗎 买買 卖賣 满滿 猫貓 "
    "门門 们們 梦夢 灭滅 难難 脑腦 鸟鳥 宁寧 农農 盘盤 频頻 苹蘋 评評 气氣 钱錢 强強 桥橋 亲親 轻輕 请請 庆慶 "
    "穷窮 权權 劝勸 确確 让讓 热熱 认認 荣榮 伤傷 烧燒 绍紹 设設 声聲 胜勝 师師 时時 识識 实實 适適 书書 树樹 "
    "术術 双雙 谁誰 说說 丝絲 诉訴 岁歲 虽雖 孙孫 谈談 汤湯 题題 体體 听聽 厅廳 铁鐵 头頭 图圖 团團 万萬 为為 "
    "围圍 卫衛 问問 无無 务務 误誤 习習 戏戲 细細 吓嚇 显顯 现現 线線 乡鄉 响響 项項 协協 写寫 谢謝 兴興 学學 "
    "训訓 压壓 严嚴 颜顏 验驗 样樣 药藥 爷爺 业業 页頁 医醫 义義 艺藝 忆憶 议議 译譯 阴陰 银銀 应應 营營 拥擁 "
    "优優 邮郵 鱼魚 与與 语語 远遠 愿願 约約 阅閱 运運 杂雜 战戰 张張 账賬 这這 针針 争爭 证證 织織 职職 纸紙 "
    "质質 钟鐘 种種 众眾 转轉 装裝 状狀 资資 总總 组組 么麼 网網 猪豬 园園 员員 圆圓 厂廠 选選 连連 飘飄 饿餓 "
    "饮飲 馒饅 骑騎 险險 领領 顿頓 预預 颗顆 额額 锻鍛 键鍵 销銷 锁鎖 韩韓 阳陽 闻聞 闹鬧 闭閉 钥鑰 遗遺 递遞 "
    "迹跡 辆輛 较較 辞辭 赛賽 赶趕 赢贏 赞讚 赚賺 货貨 责責 败敗 贫貧 贺賀 贼賊 谊誼 谓謂 谨謹 调調 谣謠 诗詩 "
    "详詳 诺諾 诞誕 询詢 诊診 访訪 讶訝 讨討 誉譽 览覽 视視 规規 袭襲 虾蝦 萨薩 获獲 苏蘇 舰艦 脱脫 胆膽 胀脹 "
    "肤膚 肾腎 聪聰 罚罰 绿綠 续續 绝絕 统統 绩績 绕繞 络絡 绘繪 终終 纽紐 纳納 级級 纪紀 纯純 纠糾 类類 篮籃 "
    "简簡 签簽 码碼 矿礦 矫矯 睁睜 盐鹽 疯瘋 疗療 玛瑪 狮獅 独獨 犹猶 牺犧 烦煩 炼煉 灾災 濒瀕 渐漸 温溫 湿濕 "
    "浓濃 测測 济濟 洁潔 泽澤 泼潑 沟溝 毁毀 残殘 欧歐 档檔 构構 杨楊 杀殺 晓曉 旷曠 断斷 搅攪 损損 挤擠 择擇 "
    "拨撥 扩擴 执執 扑撲 懒懶 惯慣 惧懼 惩懲 态態 忧憂 庄莊 币幣 岛島 屿嶼 尽盡 宪憲 审審 宝寶 夺奪 奋奮 夹夾 "
    "壮壯 坝壩 场場 圣聖 啰囉 哑啞 呜嗚 启啟 叹嘆 厉厲 区區 励勵 劲勁 办辦 剑劍 刽劊 则則 划劃 凤鳳 冻凍 军軍 "
    "兰蘭 伟偉 仪儀 丧喪"
)
SIMPLIFIED, TRADITIONAL = (frozenset(pair[index] for pair in _PAIRS.split()) for index in (0, 1))
_KANA = re.compile("[\u3040-\u30ff]")
_CHINESE_SHARE = 0.2  # least share of lines with such a character on a Chinese side


def chinese_finding(text: CorpusText) -> Finding:
    """Return a finding about sides that have both simplified and traditional Chinese.

    A line is affected if it mixes both forms, or is in the form that is rarer on its side.

    Japanese sides, whose lines mix both forms, and sides with few Chinese lines are left out.
    """
    line_numbers = [_rarer_script_lines(side) for side in text.sides]
    message = "{count} in the other of simplified and traditional Chinese, or in both: convert one into the other"
    return line_finding(text, "mixed Chinese scripts", (line_numbers[0], line_numbers[1]), message, 0.01)


def _rarer_script_lines(side: Side) -> list[int]:
    simplified, traditional, both = list[int](), list[int](), list[int]()
    for number, line in enumerate(side.lines):
        if line.isascii():
            continue
        has_simplified, has_traditional = not SIMPLIFIED.isdisjoint(line), not TRADITIONAL.isdisjoint(line)
        if has_simplified or has_traditional:
            kind = simplified if not has_traditional else traditional if not has_simplified else both
            kind.append(number)
    if sum(_KANA.search(side.lines[number]) is not None for number in both) > 0.1 * len(both):
        return []  # Japanese text mixes both forms
    if len(simplified) + len(traditional) + len(both) < _CHINESE_SHARE * len(side.lines):
        return []
    return sorted([*min(simplified, traditional, key=len), *both])


# --- languages ---
# Find lines in a script or language that is not their side's, which is learned from the side itself.

_WORD = re.compile(r"[^\W\d_]+")
_OWN_SHARE = 0.05  # least share of a side's lines in a script that belongs to the side
_MIN_NATS = 12.0
_MIN_WORDS = 4


def language_findings(text: CorpusText) -> list[Finding]:
    """Return a list of findings: lines in a wrong script, and lines in the language of the other side.

    If the sides share no script, the list has only the first finding.
    """
    scripts = [[main_script(line) for line in side.lines] for side in text.sides]
    misplaced = _misplaced_lines(text, scripts)
    own_scripts = list(map(_own_scripts, scripts, misplaced))
    source, target = (
        [n for n, script in enumerate(side) if n in misplaced_lines or (script is not None and script not in expected)]
        for side, misplaced_lines, expected in zip(scripts, misplaced, own_scripts, strict=True)
    )
    names = f"source: {_join_names(own_scripts[0])}; target: {_join_names(own_scripts[1])}"
    swapped = len({*source} & {*target})
    note = f"; {count_noun(swapped, 'pair')} may have the sides swapped" if swapped else ""
    script = line_finding(
        text, "wrong script", (source, target), f"{{count}} in a script that is not their side's ({names}){note}", 0.01
    )
    if not (own_scripts[0] & own_scripts[1]):
        return [script]
    message = "{count} with words of the other side's language: they are untranslated, or the sides are swapped"
    return [script, line_finding(text, "wrong language", _other_language_lines(text), message, 0.01)]


def _misplaced_lines(text: CorpusText, scripts: Sequence[Sequence[str | None]]) -> tuple[set[int], set[int]]:
    """Return the indices of lines in the other side's main script, a set for the source and a set for the target.

    A line is misplaced if the same-numbered line of the other side is in the main script of the line's own side
    (swapped) or has the same text (copied). Misplaced lines do not show that a script belongs to their side. If both
    sides have the same main script, the sets are empty.

    Args:
        text: the corpus.
        scripts: the main script of each line, for both sides.
    """
    misplaced: tuple[set[int], set[int]] = (set(), set())
    main_scripts = [next((name for name, _ in Counter(filter(None, side)).most_common(1)), None) for side in scripts]
    if None in main_scripts or main_scripts[0] == main_scripts[1]:
        return misplaced
    for number, lines in enumerate(zip(*(side.lines for side in text.sides), strict=False)):
        is_copy = lines[0].strip() == lines[1].strip()
        for own, other in ((0, 1), (1, 0)):
            is_swapped = scripts[other][number] == main_scripts[own]
            if scripts[own][number] == main_scripts[other] and (is_swapped or is_copy):
                misplaced[own].add(number)
    return misplaced


def _own_scripts(scripts: Sequence[str | None], misplaced: Container[int]) -> set[str]:
    counts = Counter(script for number, script in enumerate(scripts) if script is not None and number not in misplaced)
    return {script for script, count in counts.items() if count >= _OWN_SHARE * sum(counts.values())}


def _join_names(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _other_language_lines(text: CorpusText) -> tuple[list[int], list[int]]:
    """Return the indices of lines whose words are much likelier on the other side, a list for each side.

    A line's own words are not counted for its side, and lines of fewer than 4 words are left out.
    """
    words = [[_WORD.findall(line.casefold()) for line in side.lines] for side in text.sides]
    counts = [Counter(word for line in side for word in line) for side in words]
    totals = [sum(count.values()) + len(count) + 1 for count in counts]
    line_numbers: tuple[list[int], list[int]] = ([], [])
    for own in (0, 1):
        other = 1 - own
        for number, line in enumerate(words[own]):
            if len(line) < _MIN_WORDS:
                continue
            nats = sum(
                math.log((counts[other][word] + 0.5) / totals[other])
                - math.log((max(0, counts[own][word] - 1) + 0.5) / totals[own])
                for word in line
            )
            if nats > _MIN_NATS and nats > 1.5 * len(line):
                line_numbers[own].append(number)
    return line_numbers
