"""Find Chinese lines in the other script: simplified or traditional characters.

The list has common characters whose simplified and traditional forms are never used in the other script.
"""

import re

from transduce.inspection.corpus_doctor.report import Finding
from transduce.inspection.corpus_doctor.text import CorpusText, Side, line_finding

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
_CHINESE_SHARE = 0.2  # least share of lines with such a character on a Chinese side


def chinese_finding(text: CorpusText) -> Finding:
    """Report lines in the rarer script of a side, or in both scripts at once."""
    line_numbers = [_rarer_script_lines(side) for side in text.sides]
    message = "{count} in the other of simplified and traditional Chinese, or in both: convert one into the other"
    return line_finding(text, "mixed Chinese scripts", (line_numbers[0], line_numbers[1]), message, 0.01)


def _rarer_script_lines(side: Side) -> list[int]:
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
        return []  # Japanese text mixes both forms
    if len(simplified) + len(traditional) + len(both) < _CHINESE_SHARE * len(side.lines):
        return []
    rarer = min(simplified, traditional, key=len)
    return sorted([*rarer, *both])
