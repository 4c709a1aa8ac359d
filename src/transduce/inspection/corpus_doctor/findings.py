"""Lines in a script or a language that is not their side's. What a side's own are is learnt from the side."""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import msgspec

from transduce.inspection.corpus_doctor.report import Finding, severity_of
from transduce.inspection.corpus_doctor.text import CorpusText, Side, examples_of, line_finding
from transduce.text.corpus import Pair
from transduce.text.files import is_decodable
from transduce.text.filters import RATIO, FilterSettings, PairFilter
from transduce.text.languages import is_word_character, main_script, unspaced_characters
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary, fallback_ids
from transduce.training.choices import CorpusSize, choose_vocabulary_size

# --- characters ---
# Characters that should not be there: what encodings, markup and other tools have left.


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_SEPARATOR = re.compile("[\r\u0085\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\n(?![a-zA-Z])")
_MARKUP = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#x[0-9a-fA-F]{2,6});|</?[a-zA-Z][^<>]{0,80}>")
# UTF-8 that was read as Latin-1 or Windows-1252 and written as UTF-8 again; or given up on.
_DAMAGED = re.compile(
    "\ufffd|[ÃÂ][\u0080-\u00bf]|â€[\u0080-\u00ff™œ˜“”]|[ÐÑ][\u0080-\u00bf]|[\u00c2-\u00f4][\u0080-\u009f]"
)
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_FULL_WIDTH = re.compile("[０-９Ａ-Ｚａ-ｚ｡-ﾟ]")
_FULL_WIDTH_MARK = re.compile("[，。！？；：（）]")
_HAN = re.compile("[\u4e00-\u9fff]")
_HAN_BEFORE_ASCII = re.compile("[\u4e00-\u9fff][,.?!;:]")
_QUOTED = re.compile(r'\s*".*"\s*')
_ALL_QUOTED = 0.9


class _Pattern(NamedTuple):
    name: str
    matches: Callable[[str], object]
    message: str
    problem_share: float = 0.01


_PATTERNS = (
    _Pattern("not UTF-8", _SURROGATE.search, "{count} not UTF-8; training leaves such pairs out, so mend the lines"),
    _Pattern("control characters", _CONTROL.search, "{count} with NUL and its like; training leaves such pairs out"),
    _Pattern(
        "line separators",
        _SEPARATOR.search,
        "{count} with U+2028, U+0085 or a carriage return inside: one line here, two for other tools",
    ),
    _Pattern("tabs", lambda line: "\t" in line, "{count} with a tab: look whether columns of a table were left in"),
    _Pattern(
        "invisible characters",
        _INVISIBLE.search,
        "{count} with characters that are not seen, such as U+FEFF and U+200B: remove them",
    ),
    _Pattern("escapes", _ESCAPE.search, "{count} with escapes such as \\ud83d in the text: decode them"),
    _Pattern("markup", _MARKUP.search, "{count} with entities or tags such as &amp; or <b>: decode or remove them"),
    _Pattern(
        "damaged characters", _DAMAGED.search, "{count} with U+FFFD or twice encoded text such as Ã©: read it anew"
    ),
    _Pattern(
        "full-width letters",
        _FULL_WIDTH.search,
        "{count} with full-width letters or digits, or half-width kana: other pieces to the model than the usual ones",
        2.0,
    ),
)


def character_findings(text: CorpusText) -> list[Finding]:
    """One finding a kind."""
    found = []
    for name, matches, message, problem_share in _PATTERNS:
        source, target = ([n for n, line in enumerate(side.lines) if matches(line)] for side in text.sides)
        found.append(line_finding(text, name, (source, target), message, problem_share))
    return [*found, _marks(text), _empty(text), _white_space(text), _punctuation(text), _quoted(text)]


def _marks(text: CorpusText) -> Finding:
    """What reading removes: byte order marks, carriage returns at line ends."""
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


def _empty(text: CorpusText) -> Finding:
    source, target = ([n for n, line in enumerate(side.lines) if not line] for side in text.sides)
    return line_finding(text, "empty lines", (source, target), "{count} empty; training leaves such pairs out", 0.05)


def _white_space(text: CorpusText) -> Finding:
    source, target = ([n for n, line in enumerate(side.lines) if line and not line.strip()] for side in text.sides)
    message = "{count} of white space alone; training leaves such pairs out"
    return line_finding(text, "white space only", (source, target), message, 0.05)


def _quoted(text: CorpusText) -> Finding:
    """A side whose lines stand in quotes, as spreadsheets write fields, where the other's do not."""
    numbers = [[n for n, line in enumerate(side.lines) if _QUOTED.fullmatch(line)] for side in text.sides]
    shares = [len(own) / len(side.lines) for own, side in zip(numbers, text.sides, strict=True)]
    source, target = (
        own if share >= _ALL_QUOTED and other <= 1 - _ALL_QUOTED else []
        for own, share, other in zip(numbers, shares, reversed(shares), strict=True)
    )
    message = "{count} in double quotes, as spreadsheets write fields: the model would learn them, so take them off"
    return line_finding(text, "quoted side", (source, target), message, 0.01)


def _punctuation(text: CorpusText) -> Finding:
    source, target = (_odd_marks(side.lines) for side in text.sides)
    message = "{count} with full-width punctuation where the side has ASCII's, or the other way round"
    return line_finding(text, "mixed punctuation", (source, target), message)


def _odd_marks(lines: list[str]) -> list[int]:
    """On a Chinese side, whichever is rarer: full-width marks, or ASCII's after characters. Elsewhere, the first."""
    wide = [(number, line) for number, line in enumerate(lines) if not line.isascii()]
    full = [number for number, line in wide if _FULL_WIDTH_MARK.search(line)]
    if 2 * sum(_HAN.search(line) is not None for _, line in wide) < len(lines):
        return full
    return min(full, [number for number, line in wide if _HAN_BEFORE_ASCII.search(line)], key=len)


# --- repeats ---
# What occurs twice: pairs, copies of the source as target, and sentences of the test set.


_NOT_LETTERS = re.compile(r"[\W_]+")


def disguised(line: str) -> str:
    """A line without case, punctuation and spaces: two with the same letters and digits are the same sentence."""
    return _NOT_LETTERS.sub(_marks_alone, line).casefold() or line


def _marks_alone(between: re.Match[str]) -> str:
    """Of what regular expressions take for no letters: the marks on letters, such as vowel signs."""
    return "".join(filter(is_word_character, between[0]))


def repeat_findings(text: CorpusText, test: CorpusText | None) -> list[Finding]:
    """Duplicates, copies, sentences with many translations; and the overlap with the test set, where there is one."""
    found = [_duplicates(text), _copies(text), _retranslated(text)]
    return found if test is None else [*found, *_overlaps(text, test)]


def _pair_finding(text: CorpusText, name: str, numbers: list[int], message: str, problem_share: float) -> Finding:
    count = len(numbers)
    return Finding(
        name=name,
        severity=severity_of(count, text.pairs, problem_share),
        count=count,
        share=count / text.pairs,
        message=message.format(count=f"{count:,} pair{'s' * (count > 1)}", share=f"{count / text.pairs:.1%}")
        if count
        else "none",
        examples=examples_of((text.source, number) for number in numbers),
    )


def _duplicates(text: CorpusText) -> Finding:
    seen: set[tuple[str, str]] = set()
    again = []
    for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False)):
        if pair in seen and pair[0].strip():
            again.append(number)
        seen.add(pair)
    message = "{count} ({share}) stand earlier word for word: `data.filters.drop_duplicates` leaves them out"
    return _pair_finding(text, "duplicates", again, message, 0.1)


def _copies(text: CorpusText) -> Finding:
    lines = enumerate(zip(text.source.lines, text.target.lines, strict=False))
    same = [number for number, (a, b) in lines if a.strip() == b.strip() and a.strip()]
    message = "{count} ({share}) have the source as target; training leaves them out, as they teach to copy"
    return _pair_finding(text, "copies", same, message, 0.02)


def _retranslated(text: CorpusText) -> Finding:
    pairs = dict.fromkeys(zip(text.source.lines, text.target.lines, strict=False))
    counts = Counter(source for source, _ in pairs)
    first: dict[str, int] = {}
    for number, line in enumerate(text.source.lines):
        first.setdefault(line, number)
    common, most = max(counts.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    several = sum(count > 1 for count in counts.values())
    return Finding(
        name="several translations",
        severity="problem" if most > max(20, 0.01 * text.pairs) and common.strip() else "fine",
        count=several,
        share=several / max(1, len(counts)),
        message=f"{several:,} sources have more than one target, up to {most:,}",
        examples=(text.source.example(first[common]),) if most > 1 else (),
    )


def _overlaps(text: CorpusText, test: CorpusText) -> list[Finding]:
    found = [_overlap(mine, other) for mine, other in zip(text.sides, test.sides, strict=True)]
    known = {tuple(map(disguised, pair)) for pair in zip(test.source.lines, test.target.lines, strict=False)}
    pairs = [
        number
        for number, pair in enumerate(zip(text.source.lines, text.target.lines, strict=False))
        if tuple(map(disguised, pair)) in known
    ]
    message = "{count} of the training text stand in the test set: its score would be a lie, so remove them"
    return [*found, _pair_finding(text, "test pairs", pairs, message, 0.0)]


def _overlap(side: Side, test: Side) -> Finding:
    """Sentences of the test set that stand in the training text, case, spaces and punctuation aside."""
    known = {disguised(line) for line in test.lines if line.strip()}
    places = [number for number, line in enumerate(side.lines) if line.strip() and disguised(line) in known]
    leaked = len({disguised(side.lines[number]) for number in places})
    share = leaked / max(1, len(known))
    message = (
        f"{leaked:,} of the test set's {len(known):,} {side.name} sentences ({share:.1%}) stand in the training text"
    )
    return Finding(
        name=f"test {side.name}s",
        severity="fine" if not leaked else "problem" if share >= 0.01 else "look",
        count=leaked,
        share=share,
        message=message if leaked else "none of the test set's sentences stands in the training text",
        examples=examples_of((side, number) for number in places),
    )


# --- pieces ---
# What the vocabulary makes of the lines: too many pieces, unequal numbers of them, characters without a piece.


_LEARNT_FROM = 20_000  # pairs, when there is no model
_FEWEST_PAIRS = 50
_ODD_SHARE = 0.2  # of a line's pieces that are bytes or unknown


def token_findings(text: CorpusText, tokenizer: Tokenizer | None, filters: FilterSettings) -> list[Finding]:
    """With the model's tokenizer, or one that is learnt from a part of the corpus."""
    learnt = tokenizer is None
    tokenizer = tokenizer or _learn(text)
    if tokenizer is None:
        return []
    sides = [
        _Tokens(side, vocabulary)
        for side, vocabulary in zip(text.sides, (tokenizer.source, tokenizer.target), strict=True)
    ]
    long = [[n for n, count in enumerate(side.counts) if count > filters.max_pieces] for side in sides]
    message = f"{{count}} of more than {filters.max_pieces} pieces; training leaves such pairs out, so cut them"
    return [
        line_finding(text, "long lines", (long[0], long[1]), message, 0.01),
        _ratios(text, sides[0].counts, sides[1].counts, filters),
        _unknown(text, sides, learnt=learnt),
    ]


class _Tokens:
    """How many pieces each line of a side has, and how many of them spell a character in bytes or are unknown."""

    def __init__(self, side: Side, vocabulary: Vocabulary) -> None:
        odd = fallback_ids(vocabulary)
        self.counts: list[int] = []
        self.odd: list[int] = []
        for start in range(0, len(side.lines), 10_000):
            for ids in vocabulary.encode_batch(side.lines[start : start + 10_000]):
                self.counts.append(len(ids))
                self.odd.append(sum(id in odd for id in ids))


def _learn(text: CorpusText) -> Tokenizer | None:
    """As training would choose it for this corpus, from a part of it."""
    step = max(1, text.pairs // _LEARNT_FROM)
    lines = zip(text.source.lines[::step], text.target.lines[::step], strict=False)
    pairs = [Pair(a, b, 0) for a, b in lines if is_decodable(a) and is_decodable(b) and a.strip() and b.strip()]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    characters = {c for pair in pairs for c in unspaced_characters(pair.source + pair.target)}
    size = choose_vocabulary_size(CorpusSize(pairs=text.pairs, unspaced_characters=len(characters)))
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=size.value), adjust=True)


def _ratios(text: CorpusText, source: Sequence[int], target: Sequence[int], filters: FilterSettings) -> Finding:
    rule = PairFilter(msgspec.structs.replace(filters, max_pieces=2**31 - 1))  # the ratio alone
    unequal = [
        number
        for number, (a, b) in enumerate(zip(source, target, strict=False))
        if a and b and rule.length_reason(a, b) == RATIO
    ]
    most = filters.max_length_ratio
    message = f"{{count}} with more than {most:g} times the pieces of the other side; training leaves such pairs out"
    return line_finding(text, "unequal lengths", (unequal, []), message, 0.01)


def _unknown(text: CorpusText, sides: Sequence[_Tokens], *, learnt: bool) -> Finding:
    """Nothing to mend in the files where training would learn the same vocabulary."""
    by = "a vocabulary learnt from the corpus" if learnt else "the model's vocabulary"
    tokens, odd = (
        sum(sum(numbers) for numbers in each) for each in ([s.counts for s in sides], [s.odd for s in sides])
    )
    share = odd / max(1, tokens)
    lines = [[n for n, (a, b) in enumerate(zip(s.odd, s.counts, strict=True)) if a > _ODD_SHARE * b] for s in sides]
    listed = line_finding(text, "unknown pieces", (lines[0], lines[1]), "{count}")
    return Finding(
        name="unknown pieces",
        severity=severity_of(odd, tokens, math.inf if learnt else 0.01),
        count=odd,
        share=share,
        message=f"{share:.2%} of the pieces spell a character in bytes or are unknown (by {by})",
        examples=listed.examples,
    )


# --- chinese ---
# Simplified and traditional characters: which of the two a Chinese line is written in.
# The list holds common characters that have one form here and another there, and neither form in both.


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
SIMPLIFIED, TRADITIONAL = (frozenset(pair[place] for pair in _PAIRS.split()) for place in (0, 1))
_KANA = re.compile("[\u3040-\u30ff]")
_CHINESE_SHARE = 0.2  # of a side's lines that must have such a character for it to be Chinese


def chinese_finding(text: CorpusText) -> Finding:
    """Lines in the script that is the rarer one on a side, or in both at once."""
    found = [_odd_lines(side) for side in text.sides]
    message = "{count} in the other of simplified and traditional Chinese, or in both: convert one into the other"
    return line_finding(text, "mixed Chinese scripts", (found[0], found[1]), message, 0.01)


def _odd_lines(side: Side) -> list[int]:
    simplified, traditional, both = [], [], []
    for number, line in enumerate(side.lines):
        if line.isascii():
            continue
        characters = set(line)
        kinds = not SIMPLIFIED.isdisjoint(characters), not TRADITIONAL.isdisjoint(characters)
        if kinds == (True, False):
            simplified.append(number)
        elif kinds == (False, True):
            traditional.append(number)
        elif all(kinds):
            both.append(number)
    if sum(_KANA.search(side.lines[number]) is not None for number in both) > 0.1 * len(both):
        return []  # Japanese has some of each
    if len(simplified) + len(traditional) + len(both) < _CHINESE_SHARE * len(side.lines):
        return []
    rarer = min(simplified, traditional, key=len)
    return sorted([*rarer, *both])


# --- findings ---


_WORD = re.compile(r"[^\W\d_]+")
_OWN_SHARE = 0.05  # of a side's lines, from which on a script is its own
_SURE_NATS = 12.0
_FEWEST_WORDS = 4


def language_findings(text: CorpusText) -> list[Finding]:
    """Wrong scripts; and, where both sides have the same script, lines in the other side's language."""
    scripts = [[main_script(line) for line in side.lines] for side in text.sides]
    misplaced = _misplaced(text, scripts)
    own = [_own_scripts(side, other) for side, other in zip(scripts, misplaced, strict=True)]
    source, target = (
        [
            number
            for number, script in enumerate(side)
            if number in other or (script is not None and script not in expected)
        ]
        for side, other, expected in zip(scripts, misplaced, own, strict=True)
    )
    names = f"source: {_listed(own[0])}; target: {_listed(own[1])}"
    script = line_finding(
        text, "wrong script", (source, target), f"{{count}} in another script than their side's ({names})", 0.01
    )
    if not (own[0] & own[1]):
        return [script]
    message = "{count} in the other side's language by their words: untranslated, or the sides are swapped there"
    return [script, line_finding(text, "wrong language", _other_language(text), message, 0.01)]


def _misplaced(text: CorpusText, scripts: Sequence[Sequence[str | None]]) -> tuple[set[int], set[int]]:
    """Lines of each side in the other's main script, opposite this side's own or their very copy: however many, they
    make no script their side's.
    """
    found: tuple[set[int], set[int]] = (set(), set())
    usual = [next((name for name, _ in Counter(filter(None, side)).most_common(1)), None) for side in scripts]
    if None in usual or usual[0] == usual[1]:
        return found
    for number, lines in enumerate(zip(*(side.lines for side in text.sides), strict=False)):
        is_copy = lines[0].strip() == lines[1].strip()
        for here, there in ((0, 1), (1, 0)):
            is_swapped = scripts[there][number] == usual[here]
            if scripts[here][number] == usual[there] and (is_swapped or is_copy):
                found[here].add(number)
    return found


def _own_scripts(scripts: Sequence[str | None], misplaced: Container[int]) -> set[str]:
    counts = Counter(script for number, script in enumerate(scripts) if script is not None and number not in misplaced)
    return {script for script, count in counts.items() if count >= _OWN_SHARE * sum(counts.values())}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _other_language(text: CorpusText) -> tuple[list[int], list[int]]:
    """By how much likelier a line's words are on the other side, the line itself left out."""
    words = [[_WORD.findall(line.casefold()) for line in side.lines] for side in text.sides]
    counts = [Counter(word for line in side for word in line) for side in words]
    totals = [sum(count.values()) + len(count) + 1 for count in counts]
    found: tuple[list[int], list[int]] = ([], [])
    for here in (0, 1):
        there = 1 - here
        for number, line in enumerate(words[here]):
            if len(line) < _FEWEST_WORDS:
                continue
            nats = sum(
                math.log((counts[there][word] + 0.5) / totals[there])
                - math.log((max(0, counts[here][word] - 1) + 0.5) / totals[here])
                for word in line
            )
            if nats > _SURE_NATS and nats > 1.5 * len(line):
                found[here].append(number)
    return found
