// Attention from a pronoun: the sentence shaded by one head, and every head with the candidate it points to.

Object.assign(WORDS.en, {
  coreference: "What the pronoun attends to",
  coreferenceHelp: "Each button is an attention head, with the candidate word that gets most attention from the pronoun. Green ones point to the word that the pronoun refers to. Choose one to see its attention to all words.",
  pointing: (right, all, chance) => `${right} of ${all} heads point to it; by chance it would be ${chance}.`,
  leftToRight: "The model reads from left to right, so the words after the pronoun cannot change this.",
});
Object.assign(WORDS.zh, {
  coreference: "代词在看什么",
  coreferenceHelp: "每个按钮是一个注意力头，写着代词在它那里最注意的前文词语。绿色的指向代词真正所指的词。选中一个，可以看到它还注意哪里。",
  pointing: (right, all, chance) => `${all} 个头中有 ${right} 个指向它；随机选择的话是 ${chance} 个。`,
  leftToRight: "模型从左到右阅读：代词后面的内容不会改变这里的结果。",
});

// The candidate that gets most of a head's attention, and the attention to all its words.
function favorite(found, weights) {
  const sums = found.candidates.map(words => words.reduce((sum, word) => sum + weights[word], 0));
  const best = sums.indexOf(Math.max(...sums));
  return {best, weight: sums[best], points: best === found.antecedent};
}

function candidateName(found, number) {
  const parts = found.candidates[number].map(word => found.words[word]);
  return parts.join(parts.every(part => [...part].length === 1) ? "" : " ");
}

// The head that is shown first: the one with most attention to its best candidate, preferably the antecedent.
function firstPointer(found) {
  let first = {layer: 0, head: 0, value: -1};
  found.weights.forEach((heads, layer) => heads.forEach((weights, head) => {
    const {weight, points} = favorite(found, weights);
    const value = weight + (points ? 1 : 0);
    if (value > first.value) first = {layer, head, value};
  }));
  return {layer: first.layer, head: first.head};
}

function pronounSentence(found, {layer, head}) {
  const weights = found.weights[layer][head];
  const most = Math.max(0.001, ...weights);
  return make("p", {class: "sentence"}, ...found.words.map((word, number) => make("span", {
    class: number === found.pronoun ? "word from" : "word",
    style: `--shade: ${(weights[number] / most).toFixed(3)}`,
    title: percent(weights[number]),
  }, word)));
}

function pointerTable(found, words, chosen, choose) {
  const rows = found.weights.map((heads, layer) => make("div", {class: "bar"},
    make("span", {class: "dim"}, `${words.layer} ${layer + 1}`),
    ...heads.map((weights, head) => {
      const {best, weight, points} = favorite(found, weights);
      const text = `${candidateName(found, best)} ${percent(weight)}`;
      return make("button", {
        type: "button", class: points ? "pointer points" : "pointer",
        "aria-label": `${words.layer} ${layer + 1}, ${words.head} ${head + 1}: ${text}`,
        "aria-pressed": chosen.layer === layer && chosen.head === head, onclick: () => choose({layer, head}),
      }, text);
    })));
  return make("div", {}, ...rows);
}

// No section if the inspection has no pronoun.
function coreferenceSections(inspection, words, chosen, choose) {
  const found = inspection.coreference;
  if (!found) return [];
  const heads = found.weights.flat();
  const right = heads.filter(weights => favorite(found, weights).points).length;
  const chance = Math.round(heads.length / found.candidates.length);
  const notes = found.antecedent === null ? [] : [words.pointing(right, heads.length, chance)];
  if (found.left_to_right) notes.push(words.leftToRight);
  return [section(words.coreference, words.coreferenceHelp,
    pronounSentence(found, chosen.pointer), pointerTable(found, words, chosen.pointer, choose),
    make("p", {class: "dim"}, notes.join(" ")))];
}
