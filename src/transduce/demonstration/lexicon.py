"""List the words of the demonstration's grammar, with their English forms and the words that they combine with."""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun of the demonstration, for a thing, an animal or a person's occupation, in Chinese and English."""

    source: str
    measure: str
    """The Chinese measure word after a number; empty if the noun is not counted: 打篮球, but not 三…篮球."""
    one: str
    """The English singular form of the noun; equal to the plural for uncountable nouns."""
    many: str
    """The English plural form of the noun; equal to the singular for uncountable nouns."""
    container: tuple[str, str] | None = None
    """English container to count instead, singular and plural: a cup of tea, two cups of tea; None: the noun is
    counted.
    """


class Verb(NamedTuple):
    """A verb with one meaning and the nouns that it combines with.

    A Chinese verb may have several entries: 看 has one as "read" and two as "watch", with different objects.
    """

    source: str
    english: str
    """Five English forms in the order of `BASE` to `GERUND`: "eat eats ate eaten eating".

    A word after "+" follows each form: "listen listens listened listened listening + to".
    """
    objects: str = ""
    """Chinese nouns that the verb takes as objects, separated by spaces; empty: none."""
    places: str = ""
    """Chinese names of places where the activity is done, separated by spaces; empty: none."""
    habitual: bool = True
    """True if the activity can be done regularly: one buys bread every day, but not cars."""

    def form(self, index: int) -> str:
        """Return an English form of the verb, by an index from `BASE` to `GERUND`, with its particle: "listened to"."""
        forms, _, particle = self.english.partition(" + ")
        return f"{forms.split()[index]} {particle}".rstrip()


BASE, THIRD_PERSON, PAST, PARTICIPLE, GERUND = range(5)


class Adjective(NamedTuple):
    """An adjective with its English forms.

    `nouns` are the Chinese nouns that the adjective describes, separated by spaces. If `nouns` is empty, the adjective
    describes people.
    """

    source: str
    english: str
    comparative: str
    nouns: str = ""
    generic: bool = False
    """True if the adjective can describe a kind (apples are cheap), not only an individual (this book is new)."""
    attributive: str = ""
    """The form before a noun: 新书 ("新"), 便宜的书 ("便宜 的"); empty if not used there."""


class Place(NamedTuple):
    """A place where people are or to which they go, in Chinese and English."""

    source: str
    """The Chinese name."""
    where: str
    """The English phrase for being there: "at school"."""
    destination: str
    """The English name after "go to": "school"; empty if no sentence is about going there."""


# --- people ---

# source, as subject, as object, as owner
PRONOUNS = (
    ("我", "I", "me", "my"),
    ("你", "you", "you", "your"),
    ("他", "he", "him", "his"),
    ("她", "she", "her", "her"),
    ("我们", "we", "us", "our"),
    ("他们", "they", "them", "their"),
)
NAMES = (("汤姆", "Tom"), ("玛丽", "Mary"), ("安娜", "Anna"), ("大卫", "David"), ("小明", "Xiaoming"))
# Relatives that follow their owner directly: 我妈妈.
FAMILY = (
    Noun("妈妈", "个", "mother", "mothers"),
    Noun("爸爸", "个", "father", "fathers"),
    Noun("哥哥", "个", "older brother", "older brothers"),
    Noun("姐姐", "个", "older sister", "older sisters"),
    Noun("弟弟", "个", "younger brother", "younger brothers"),
    Noun("妹妹", "个", "younger sister", "younger sisters"),
)
# People that follow their owner with 的: 我的朋友.
COMPANIONS = (
    Noun("朋友", "个", "friend", "friends"),
    Noun("同学", "个", "classmate", "classmates"),
    Noun("老师", "位", "teacher", "teachers"),
)
OCCUPATIONS = (
    Noun("老师", "位", "teacher", "teachers"),
    Noun("医生", "位", "doctor", "doctors"),
    Noun("司机", "位", "driver", "drivers"),
    Noun("护士", "位", "nurse", "nurses"),
    Noun("工程师", "位", "engineer", "engineers"),
    Noun("学生", "个", "student", "students"),
)
CHILDREN = (
    Noun("孩子", "个", "child", "children"),
    Noun("男孩", "个", "boy", "boys"),
    Noun("女孩", "个", "girl", "girls"),
)

# --- things ---

_CUP, _GLASS, _BOTTLE = ("cup", "cups"), ("glass", "glasses"), ("bottle", "bottles")
_BOWL, _PIECE = ("bowl", "bowls"), ("piece", "pieces")

THINGS = (
    Noun("苹果", "个", "apple", "apples"),
    Noun("香蕉", "根", "banana", "bananas"),
    Noun("鸡蛋", "个", "egg", "eggs"),
    Noun("饺子", "个", "dumpling", "dumplings"),
    Noun("鱼", "条", "fish", "fish"),
    Noun("面条", "碗", "noodles", "noodles", _BOWL),
    Noun("米饭", "碗", "rice", "rice", _BOWL),
    Noun("面包", "块", "bread", "bread", _PIECE),
    Noun("蛋糕", "块", "cake", "cake", _PIECE),
    Noun("茶", "杯", "tea", "tea", _CUP),
    Noun("咖啡", "杯", "coffee", "coffee", _CUP),
    Noun("牛奶", "杯", "milk", "milk", _GLASS),
    Noun("果汁", "杯", "juice", "juice", _GLASS),
    Noun("水", "瓶", "water", "water", _BOTTLE),
    Noun("啤酒", "瓶", "beer", "beer", _BOTTLE),
    Noun("书", "本", "book", "books"),
    Noun("小说", "本", "novel", "novels"),
    Noun("杂志", "本", "magazine", "magazines"),
    Noun("报纸", "份", "newspaper", "newspapers"),
    Noun("信", "封", "letter", "letters"),
    Noun("电影", "部", "movie", "movies"),
    Noun("歌", "首", "song", "songs"),
    Noun("照片", "张", "photo", "photos"),
    Noun("票", "张", "ticket", "tickets"),
    Noun("毛衣", "件", "sweater", "sweaters"),
    Noun("大衣", "件", "coat", "coats"),
    Noun("裙子", "条", "skirt", "skirts"),
    Noun("帽子", "顶", "hat", "hats"),
    Noun("雨伞", "把", "umbrella", "umbrellas"),
    Noun("手机", "部", "phone", "phones"),
    Noun("电脑", "台", "computer", "computers"),
    Noun("汽车", "辆", "car", "cars"),
    Noun("自行车", "辆", "bike", "bikes"),
    Noun("花", "朵", "flower", "flowers"),
    Noun("猫", "只", "cat", "cats"),
    Noun("狗", "只", "dog", "dogs"),
    Noun("鸟", "只", "bird", "birds"),
    Noun("电视", "", "TV", "TV"),
    Noun("音乐", "", "music", "music"),
    Noun("中文", "", "Chinese", "Chinese"),
    Noun("英文", "", "English", "English"),
    Noun("法语", "", "French", "French"),
    Noun("数学", "", "math", "math"),
    Noun("历史", "", "history", "history"),
    Noun("汉字", "", "Chinese characters", "Chinese characters"),
    Noun("作业", "", "homework", "homework"),
    Noun("篮球", "", "basketball", "basketball"),
    Noun("网球", "", "tennis", "tennis"),
    Noun("足球", "", "soccer", "soccer"),
    Noun("钢琴", "", "the piano", "the piano"),
    Noun("钱", "", "money", "money"),
    Noun("时间", "", "time", "time"),
)
FOODS = "苹果 香蕉 鸡蛋 饺子 鱼 面条 米饭 面包 蛋糕"
DRINKS = "茶 咖啡 牛奶 果汁 水 啤酒"
ANIMALS = "猫 狗 鸟"
_WARES = "毛衣 大衣 裙子 帽子 雨伞 手机 电脑 汽车 自行车"
GIFTS = "书 小说 花 毛衣 帽子 手机 雨伞 苹果 蛋糕 茶 咖啡 票 照片"
LIKED = f"{FOODS} {DRINKS} {ANIMALS} 书 小说 电影 花 音乐 中文 英文 法语 数学 历史 篮球 足球 网球"
NEEDED = "手机 电脑 雨伞 票 自行车 汽车 书 大衣 帽子 水 咖啡 茶"
OWNED = f"{_WARES} {ANIMALS} 书 小说 杂志 照片 票 苹果 鸡蛋 啤酒"
UNCOUNTED_GOODS = f"钱 时间 {DRINKS} 面包"
# Nouns without an owner: "David's movie" would be one that he made.
NOT_OWNED = frozenset(("电影", "歌"))

# --- what people do ---

VERBS = (
    Verb("吃", "eat eats ate eaten eating", FOODS, "家 学校 公司 饭馆"),
    Verb("喝", "drink drinks drank drunk drinking", DRINKS, "家 公司 饭馆 咖啡馆"),
    Verb("买", "buy buys bought bought buying", f"{FOODS} {DRINKS} 花", "商店 超市"),
    Verb("买", "buy buys bought bought buying", _WARES, "商店", habitual=False),
    Verb("买", "buy buys bought bought buying", "书 小说 杂志 报纸", "书店"),
    Verb("看", "read reads read read reading", "书 小说 杂志 报纸", "家 学校 公园 图书馆 教室 咖啡馆"),
    Verb("看", "watch watches watched watched watching", "电影", "家 电影院"),
    Verb("看", "watch watches watched watched watching", "电视", "家"),
    Verb("写", "write writes wrote written writing", "信 小说 汉字", "家 图书馆 教室"),
    Verb("学", "study studies studied studied studying", "中文 英文 法语 数学 历史 音乐", "家 学校 图书馆 北京"),
    Verb("听", "listen listens listened listened listening + to", "音乐 歌", "家 公园 咖啡馆"),
    Verb("唱", "sing sings sang sung singing", "歌", "家 学校 公园"),
    Verb("打", "play plays played played playing", "篮球 网球", "学校 公园"),
    Verb("踢", "play plays played played playing", "足球", "学校 公园"),
    Verb("弹", "play plays played played playing", "钢琴", "家 学校"),
    Verb("做", "make makes made made making", "蛋糕 饺子 面条 面包", "家"),
    Verb("做", "do does did done doing", "作业", "家 学校 图书馆 教室"),
    Verb("拍", "take takes took taken taking", "照片", "公园 学校 北京"),
    Verb("画", "draw draws drew drawn drawing", "猫 狗 鸟 花", "家 学校 公园"),
    Verb("洗", "wash washes washed washed washing", "毛衣 裙子 汽车 苹果", "家"),
    Verb("骑", "ride rides rode ridden riding", "自行车", "公园 学校"),
)
# Activities worth mentioning as experiences: to eat dumplings, not to drink water.
EXPERIENCES = "饺子 鱼 面条 咖啡 啤酒 果汁 小说 中文 英文 法语 历史 篮球 网球 足球 钢琴 自行车 花"
# Verbs that take a person.
HELPING_VERBS = (
    Verb("帮助", "help helps helped helped helping", "", "家 学校 公司"),
    Verb("等", "wait waits waited waited waiting + for", "", "家 学校 公园 电影院 咖啡馆"),
)
# Verbs without an object.
INTRANSITIVE_VERBS = (
    Verb("睡觉", "sleep sleeps slept slept sleeping", "", "家"),
    Verb("工作", "work works worked worked working", "", "家 公司 医院 学校 北京"),
    Verb("学习", "study studies studied studied studying", "", "家 学校 图书馆 教室"),
    Verb("跑步", "run runs ran run running", "", "公园 学校"),
    Verb("跳舞", "dance dances danced danced dancing", "", "公园 学校 家"),
    Verb("做饭", "cook cooks cooked cooked cooking", "", "家 饭馆"),
    Verb("吃饭", "eat eats ate eaten eating", "", "家 学校 公司 饭馆"),
    Verb("休息", "rest rests rested rested resting", "", "家 公园"),
)
SKILLS = (
    Verb("游泳", "swim swims swam swum swimming"),
    Verb("开车", "drive drives drove driven driving"),
    Verb("做饭", "cook cooks cooked cooked cooking"),
    Verb("跳舞", "dance dances danced danced dancing"),
)
SPOKEN = Verb("说", "speak speaks spoke spoken speaking", "中文 英文 法语")
PLAYED = Verb("弹", "play plays played played playing", "钢琴")

LIKE = Verb("喜欢", "like likes liked liked liking", LIKED)
NEED = Verb("需要", "need needs needed needed needing", NEEDED)
WISH = Verb("想要", "want wants wanted wanted wanting", NEEDED)
HAVE = Verb("有", "have has had had having", OWNED)
GO = Verb("去", "go goes went gone going + to")
# A verb whose place is asked for without a preposition: where does she go.
HEAD = Verb("去", "go goes went gone going")
# 去过: to have been there.
VISIT = Verb("去", "be is was been being + to")
GIVE = Verb("给", "give gives gave given giving", GIFTS)
TEACH = Verb("教", "teach teaches taught taught teaching", "中文 英文 法语 数学 历史 音乐")
THINK = Verb("觉得", "think thinks thought thought thinking")
KNOW = Verb("知道", "know knows knew known knowing")
# Feelings of one person for another. 想 with a person means to miss; with a verb it means to want.
FEELINGS = (
    LIKE,
    Verb("爱", "love loves loved loved loving"),
    Verb("认识", "know knows knew known knowing"),
    Verb("想", "miss misses missed missed missing"),
    Verb("相信", "believe believes believed believed believing"),
    Verb("需要", "need needs needed needed needing"),
)

# --- what people and things are like ---

PERSON_ADJECTIVES = (
    Adjective("高", "tall", "taller"),
    Adjective("忙", "busy", "busier"),
    Adjective("累", "tired", "more tired"),
    Adjective("饿", "hungry", "hungrier"),
    Adjective("聪明", "smart", "smarter"),
    Adjective("年轻", "young", "younger"),
    Adjective("高兴", "happy", "happier"),
)
_PRICED = f"{FOODS} {DRINKS} {_WARES} 书 花 票"
THING_ADJECTIVES = (
    Adjective("贵", "expensive", "more expensive", _PRICED, generic=True),
    Adjective("便宜", "cheap", "cheaper", _PRICED, generic=True, attributive="便宜 的"),
    Adjective("好吃", "delicious", "more delicious", FOODS, generic=True),
    Adjective("好喝", "tasty", "tastier", "茶 咖啡 牛奶 果汁 啤酒", generic=True),
    Adjective("有意思", "interesting", "more interesting", "书 小说 杂志 电影", generic=True, attributive="有意思 的"),
    Adjective("难", "difficult", "more difficult", "中文 英文 法语 数学", generic=True),
    Adjective("容易", "easy", "easier", "中文 英文 法语 数学", generic=True),
    Adjective("可爱", "cute", "cuter", ANIMALS, generic=True, attributive="可爱 的"),
    Adjective("漂亮", "beautiful", "more beautiful", "花 裙子 毛衣 大衣 帽子 照片 鸟", attributive="漂亮 的"),
    Adjective("大", "big", "bigger", "苹果 鱼 狗 猫 帽子 雨伞 照片", attributive="大"),
    Adjective("小", "small", "smaller", "苹果 鱼 狗 猫 鸟 帽子 雨伞", attributive="小"),
    Adjective("新", "new", "newer", f"{_WARES} 书", attributive="新"),
    Adjective("旧", "old", "older", f"{_WARES} 书", attributive="旧"),
    Adjective("红", "red", "redder", "苹果 花 裙子 帽子 毛衣 汽车", attributive="红"),
    Adjective("黑", "black", "blacker", "猫 狗 鸟 裙子 帽子 大衣", attributive="黑"),
    Adjective("白", "white", "whiter", "猫 狗 鸟 花 裙子 毛衣", attributive="白"),
)
COLOURS = frozenset(("红", "黑", "白"))
# Temporary states: 昨天我很忙.
MOODS = frozenset(("忙", "累", "饿", "高兴"))

# --- where, when, how ---

PLACES = (
    Place("家", "at home", ""),
    Place("学校", "at school", "school"),
    Place("公司", "at the office", "the office"),
    Place("医院", "at the hospital", "the hospital"),
    Place("饭馆", "at the restaurant", "the restaurant"),
    Place("咖啡馆", "at the cafe", "the cafe"),
    Place("商店", "at the shop", "the shop"),
    Place("超市", "at the supermarket", "the supermarket"),
    Place("书店", "at the bookstore", "the bookstore"),
    Place("图书馆", "at the library", "the library"),
    Place("电影院", "at the cinema", "the cinema"),
    Place("教室", "in the classroom", "the classroom"),
    Place("公园", "in the park", "the park"),
    Place("北京", "in Beijing", "Beijing"),
    Place("中国", "in China", "China"),
)
# Chinese, English, links, and the things that can be there.
SPOTS = (
    ("桌子 上", "on the table", "0-2 1-0", f"书 小说 杂志 报纸 信 照片 手机 电脑 帽子 花 猫 {FOODS} {DRINKS}"),
    ("椅子 上", "on the chair", "0-2 1-0", "书 小说 杂志 报纸 手机 大衣 毛衣 裙子 帽子 雨伞 猫"),
    ("公园 里", "in the park", "0-2 1-0", f"{ANIMALS} 花 自行车"),
    ("房间 里", "in the room", "0-2 1-0", f"{ANIMALS} 书 花 电脑"),
)
# Means of transport to places nearby and far away.
MEANS_NEARBY = (
    ("坐 公交车", "by bus", "0-0 1-1"),
    ("骑 自行车", "by bike", "0-0 1-1"),
    ("开车", "by car", ""),
    ("走路", "on foot", ""),
)
MEANS_FAR = (("坐 火车", "by train", "0-0 1-1"), ("坐 飞机", "by plane", "0-0 1-1"))
FAR = frozenset(("北京", "中国"))
# The Chinese words of each time at which people travel far, so not of "tonight"; () stands for a sentence without time.
TRAVEL_TIMES = frozenset(((), ("昨天",), ("明天",), ("上个", "星期"), ("下个", "星期")))
# Places where people are said to be.
ABODES = "家 学校 公司 医院 图书馆 教室 公园 咖啡馆 电影院 商店 北京 中国"

PAST_TIMES = (
    ("昨天", "yesterday", ""),
    ("昨天 晚上", "last night", "0-0 1-1"),
    ("昨天 下午", "yesterday afternoon", "0-0 1-1"),
    ("今天 早上", "this morning", "0-0 1-1"),
    ("上个 星期", "last week", "0-0 1-1"),
)
FUTURE_TIMES = (
    ("明天", "tomorrow", ""),
    ("明天 早上", "tomorrow morning", "0-0 1-1"),
    ("明天 下午", "tomorrow afternoon", "0-0 1-1"),
    ("今天 晚上", "tonight", ""),
    ("下个 星期", "next week", "0-0 1-1"),
)
HABITUAL_TIMES = (
    ("每天", "every day", ""),
    ("每天 早上", "every morning", "0-0 1-1"),
    ("每天 晚上", "every evening", "0-0 1-1"),
    ("周末", "on weekends", ""),
)
PRESENT_TIMES = (("现在", "now", ""),)

NUMBERS = (("一", ""), ("两", "two"), ("三", "three"), ("四", "four"), ("五", "five"), ("十", "ten"))
