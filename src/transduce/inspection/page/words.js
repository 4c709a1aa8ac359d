// Texts of both pages, in English and Chinese.
const WORDS = {
  en: {
    title: "How this translation was made", theme: "Dark / light", other: "中文", otherLanguage: "zh",
    alignment: "Word by word", alignmentHelp: "Point at a word, or move to it with Tab and the arrow keys: darker words get more attention.",
    probabilities: "Probabilities", probabilitiesHelp: "How probable the model considered each token. Choose one to see the alternatives at its position.",
    candidates: place => `Likeliest tokens at position ${place}`,
    attention: "Attention", attentionHelp: "Each small picture is an attention head: rows attend to columns. Choose one to enlarge it.",
    memory: "Target → source", encoder: "Source → source", decoder: "Target → target before it",
    layer: "layer", head: "head", mean: "mean", lines: "Lines", heatMap: "Heat map",
    heatHelp: "Arrow keys move the frame.", looks: (from, to, weight) => `${from} → ${to}: ${weight}`,
    tree: "Beam search tree", treeHelp: width => `Every hypothesis that was kept, at most ${width} at each step; the number is its log-probability. Filled boxes are finished hypotheses with their score; the thick line is the translation; gray branches were dropped. The arrow keys move along the branches.`,
    greedyHelp: "Greedy search keeps a single hypothesis: the tree is one line.",
    score: "score", ended: "ended", cut: "cut at the maximum length", left: "dropped", goesOn: "continued", begin: "start", logProbability: "log-probability",
  },
  zh: {
    title: "这句译文是怎样产生的", theme: "深色 / 浅色", other: "English", otherLanguage: "en",
    alignment: "逐词对照", alignmentHelp: "指向一个词，或用 Tab 键和方向键移到它上面：颜色越深，受到的注意越多。",
    probabilities: "概率", probabilitiesHelp: "模型对每个子词有多大把握。选中一个，可以看到那里还考虑过什么。",
    candidates: place => `第 ${place} 位最可能的子词`,
    attention: "注意力", attentionHelp: "每张小图是一个注意力头：行注视列。选中一个，可以放大来看。",
    memory: "译文 → 原文", encoder: "原文 → 原文", decoder: "译文 → 之前的译文",
    layer: "层", head: "头", mean: "平均", lines: "连线", heatMap: "热图",
    heatHelp: "方向键移动方框。", looks: (from, to, weight) => `${from} → ${to}：${weight}`,
    tree: "束搜索树", treeHelp: width => `搜索保留过的每个假设，每步至多 ${width} 个；数字是它的对数概率。填色的方框表示到此结束，并标出得分；粗线是最终译文；灰色的分支被放弃。方向键沿着分支移动。`,
    greedyHelp: "贪心搜索只保留一个假设：树就是一条线。",
    score: "得分", ended: "结束", cut: "到达最大长度", left: "被放弃", goesOn: "继续", begin: "开始", logProbability: "对数概率",
  },
};
