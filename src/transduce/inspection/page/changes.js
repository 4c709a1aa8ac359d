// Interventions: the changes that a reader makes to one translation, and the two translations side by side.

const noChange = () => ({headsOff: [], step: null, force: null, forbid: [], changed: null});
const isChanged = change => change.headsOff.length > 0 || change.step !== null || change.changed !== null;
const sameHead = one => other => one.kind === other.kind && one.layer === other.layer && one.head === other.head;

// The change as fields of the body of `POST /intervene`.
function changeMessage({headsOff, step, force, forbid, changed}) {
  return {heads_off: headsOff, step, force, forbid, changed};
}

// Switches these heads off if any of them is on, else switches all of them on.
function switchHeads(change, heads) {
  const others = change.headsOff.filter(off => !heads.some(sameHead(off)));
  const areOff = heads.every(head => change.headsOff.some(sameHead(head)));
  return {...change, headsOff: areOff ? others : [...others, ...heads]};
}

function forceToken(change, step, force) {
  return {...change, step, force, forbid: []};
}

// Several tokens can be forbidden at one position; choosing another position starts a new list.
function forbidToken(change, step, token) {
  const before = change.step === step ? change.forbid : [];
  return {...change, step, force: null, forbid: before.includes(token) ? before : [...before, token]};
}

// Descriptions of the heads that are off; a layer whose heads are all off gets one description.
function headsInWords(change, words, inspection) {
  const isOfLayer = one => other => one.kind === other.kind && one.layer === other.layer;
  const firsts = change.headsOff.filter((off, number) => change.headsOff.findIndex(isOfLayer(off)) === number);
  return firsts.flatMap(first => {
    const heads = change.headsOff.filter(isOfLayer(first));
    const name = words.offNames[first.kind];
    if (heads.length > 1 && heads.length === inspection[first.kind].shape[1]) {
      return [{text: words.layerIsOff(name, first.layer + 1), without: switchHeads(change, heads)}];
    }
    return heads.map(off => ({text: words.off(name, off.layer + 1, off.head + 1), without: switchHeads(change, [off])}));
  });
}

// A description of each change, with the change that remains without it.
function changesInWords(change, words, inspection) {
  const heads = headsInWords(change, words, inspection);
  const noToken = {...change, step: null, force: null, forbid: []};
  const forbidden = change.forbid.map(token => `“${visible(token)}”`).join(", ");
  const token = change.step === null ? [] : [{
    text: change.force === null ? words.forbidden(forbidden, change.step + 1) : words.forced(visible(change.force), change.step + 1),
    without: noToken,
  }];
  const source = change.changed === null ? [] : [{text: words.changed(change.changed), without: {...change, changed: null}}];
  return [...heads, ...token, ...source];
}

// One translation with its tokens and their probabilities; tokens that the other one lacks are marked.
function outcomeView(heading, outcome, other) {
  const isNew = newOnes(other.tokens, outcome.tokens);
  const tokens = outcome.tokens.map((token, position) => {
    const probability = percent(Math.exp(outcome.token_log_probabilities[position] ?? -Infinity));
    return make("span", {class: isNew[position] ? "new" : ""}, visible(token), make("small", {}, probability));
  });
  return make("div", {class: "outcome"}, make("h3", {}, heading),
    make("p", {class: "translation", dir: "auto"}, outcome.translation), make("p", {class: "outcome-tokens"}, ...tokens));
}

function comparisonView({before, after}, words) {
  const isSame = before.translation === after.translation;
  return make("div", {}, ...(isSame ? [make("p", {class: "same"}, words.same)] : []),
    make("div", {class: "comparison"}, outcomeView(words.before, before, after), outcomeView(words.after, after, before)));
}

// The source's words as buttons; a chosen one becomes a text field for its replacement.
function replaceView(source, sourceWords, words, onreplace) {
  let from = 0;
  const spans = sourceWords.map(word => {
    const start = source.indexOf(word, from);
    from = start < 0 ? from : start + word.length;
    return {word, start, end: start + word.length};
  }).filter(span => span.start >= 0);
  const buttons = spans.map(({word, start, end}) => {
    const button = make("button", {type: "button", class: "word", "aria-label": words.replace(word)}, word);
    button.addEventListener("click", () => {
      const field = make("input", {
        class: "replacement", value: word, "aria-label": words.replace(word), title: words.close, size: Math.max(4, 2 * word.length),
      });
      // Removing the field also fires its blur event.
      const leave = () => field.replaceWith(button);
      field.addEventListener("blur", leave);
      field.addEventListener("keydown", event => {
        if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
        field.removeEventListener("blur", leave);
        leave();
        button.focus();
        const isNew = event.key === "Enter" && field.value.trim() && field.value !== word;
        if (isNew) onreplace(source.slice(0, start) + field.value + source.slice(end));
      });
      button.replaceWith(field);
      field.select();
    });
    return button;
  });
  const tight = sourceWords.some(isWide) ? " tight" : "";
  const sentence = make("div", {class: `sentence replaceable${tight}`, dir: "auto"}, ...buttons);
  oneStop(sentence, buttons);
  return sentence;
}
