// The server's page. `chosen` has the reader's selections, `found` the server's results; a part of the page is redrawn
// when its data has changed.

const settings = JSON.parse(document.getElementById("payload").textContent);
const PAUSE_MILLISECONDS = 500;
const ALTERNATIVES = Math.min(3, settings.maxAlternatives);

const chosen = {
  ...firstAppearance(), pair: settings.pairs[0], key: "", line: 0, position: 0, kind: "memory", head: null, method: "value", change: noChange(),
};
const found = {inspection: null, comparison: null};
const words = () => WORDS[chosen.language];

// --- the parts of the page -----------------------------------------------------------------------------------------

const parts = {
  header: make("header"), asked: make("div", {class: "side"}), answered: make("div", {class: "side"}),
  look: make("div"), inside: make("div"), changes: make("div", {class: "changes", role: "region", hidden: ""}),
};
const text = make("textarea", {id: "text", rows: 5, dir: "auto", spellcheck: "false"});
const counter = make("span", {class: "dim counter"});
const output = make("div", {id: "output", class: "output", dir: "auto", role: "region"});
const state = make("p", {class: "dim state", role: "status"});
const error = make("p", {class: "error", role: "alert"});
const others = make("div", {class: "others"});
const details = make("details", {class: "how"}, make("summary"), parts.inside);
const lookError = make("p", {class: "error", role: "alert"});

document.getElementById("page").append(parts.header,
  make("section", {class: "translate"}, parts.asked, parts.answered), lookError, parts.look, details, parts.changes);

// --- drawing -------------------------------------------------------------------------------------------------------

function languageName(code) {
  try {
    return new Intl.DisplayNames([chosen.language], {type: "language"}).of(code);
  } catch {
    return code;
  }
}

function pairChoice() {
  const choice = make("select", {id: "pair", "aria-label": words().pair, onchange: () => choosePair(settings.pairs[choice.selectedIndex])},
    ...settings.pairs.map(([source, target]) => make("option", {}, `${languageName(source)} → ${languageName(target)}`)));
  choice.selectedIndex = settings.pairs.indexOf(chosen.pair);
  const [source, target] = chosen.pair;
  const back = settings.pairs.find(pair => pair[0] === target && pair[1] === source);
  return [choice, ...(back ? [make("button", {type: "button", onclick: () => turnRound(back), "aria-label": words().swap, title: words().swap}, "⇄")] : [])];
}

function keyField() {
  if (!settings.needsKey) return [];
  const field = make("input", {type: "password", autocomplete: "off", placeholder: words().key, "aria-label": words().key, title: words().keyHelp, value: chosen.key});
  field.addEventListener("change", () => { chosen.key = field.value.trim(); translate(); });
  return [field];
}

function drawHeader() {
  refill(parts.header, make("h1", {}, "transduce"), make("div", {class: "bar pairs"}, ...pairChoice(), ...keyField()), appearanceBar(words(), chosen, choosePage));
}

function drawSides() {
  text.placeholder = words().placeholder;
  text.lang = chosen.pair[0];
  output.lang = chosen.pair[1];
  output.setAttribute("aria-label", words().into);
  parts.asked.replaceChildren(make("label", {for: "text"}, `${words().from} · ${languageName(chosen.pair[0])}`), text,
    make("div", {class: "bar"}, make("button", {type: "button", class: "main", title: "Ctrl + Enter", onclick: translate}, words().translate), counter));
  parts.answered.replaceChildren(make("h2", {}, `${words().into} · ${languageName(chosen.pair[1])}`), output, state, error, others);
  if (!text.value) output.replaceChildren(make("span", {class: "dim"}, words().waiting), ...sampleButtons());
  count();
}

// Sentences to begin with; one that is chosen becomes the text.
function sampleButtons() {
  const samples = settings.samples[settings.pairs.indexOf(chosen.pair)] || [];
  if (!samples.length) return [];
  const [source] = chosen.pair;
  return [make("p", {class: "dim"}, words().samples), make("div", {class: "samples"}, ...samples.map(sample =>
    make("button", {type: "button", class: "sample", lang: source, dir: "auto", onclick: () => { text.value = sample; count(); translate(); text.focus(); }}, sample)))];
}

function drawLook() {
  const {inspection} = found;
  if (!inspection) {
    parts.look.replaceChildren();
    return;
  }
  refill(parts.look, ...lineChoice(), wordsSection(inspection, words(), chosen, chooseInside),
    probabilitiesSection(inspection, words(), chosen, chooseInside, row => [tokenActions(row)]));
}

function drawInside() {
  const {inspection} = found;
  details.hidden = !inspection;
  details.querySelector("summary").textContent = words().how;
  // Closed details are drawn when they are opened.
  if (!inspection || !details.open) return;
  refill(parts.inside, make("p", {class: "dim facts"}, factsOf(inspection, words())),
    attentionSection(inspection, words(), chosen, chooseInside, {isOff, bar: headSwitches()}),
    section(words().whatIf, words().whatIfHelp, replaceView(inspection.source, inspection.words.source_words, words(), changed => makeChange({...chosen.change, changed}))),
    treeSection(inspection, words()));
}

function drawChanges(sentence = "") {
  parts.changes.hidden = !isChanged(chosen.change);
  if (parts.changes.hidden) {
    parts.changes.replaceChildren();
    return;
  }
  parts.changes.setAttribute("aria-label", words().whatIf);
  const chips = changesInWords(chosen.change, words(), found.inspection).map(({text, without}) =>
    make("button", {type: "button", class: "chip", "aria-label": `${words().undo}: ${text}`, onclick: () => makeChange(without)}, text, " ✕"));
  refill(parts.changes, make("div", {class: "bar"}, make("h2", {}, words().whatIf), ...chips,
    ...(chips.length > 1 ? [make("button", {type: "button", onclick: () => makeChange(noChange())}, words().undoAll)] : [])),
    make("p", {class: "error", role: "alert"}, sentence),
    ...(found.comparison ? [comparisonView(found.comparison, words())] : [make("p", {class: "dim", role: "status"}, sentence ? "" : words().working)]));
}

function drawAll() {
  appear(chosen);
  drawHeader();
  drawSides();
  drawLook();
  drawInside();
  drawChanges();
}

// --- translating ---------------------------------------------------------------------------------------------------

const running = {translation: new AbortController(), change: new AbortController()};
let pause = 0;

function begin(what) {
  running[what].abort();
  running[what] = new AbortController();
  return {key: chosen.key, words: words(), signal: running[what].signal};
}

const request = q => ({q, source: chosen.pair[0], target: chosen.pair[1], alternatives: ALTERNATIVES});
const spokenLines = () => text.value.split(/\r?\n/).filter(line => line.trim());

function count() {
  const {length} = [...text.value];
  counter.textContent = words().characters(length, settings.maxCharacters);
}

function typed() {
  count();
  clearTimeout(pause);
  pause = setTimeout(translate, PAUSE_MILLISECONDS);
}

// A line for each line of the text: the final part, and the rest of the best guess.
function showProgress(lines) {
  let number = -1;
  output.replaceChildren(...text.value.split(/\r?\n/).map(line => {
    if (line.trim()) number++;
    const {text: certain = "", draft = ""} = (line.trim() && lines[number]) || {};
    const guess = draft.startsWith(certain) ? draft.slice(certain.length) : draft;
    return make("div", {}, certain, make("span", {class: "guess"}, guess), "\u200b");
  }));
}

function showResult({translatedText, alternatives = []}) {
  output.replaceChildren(translatedText);
  others.replaceChildren(...(alternatives.length ? [make("h3", {}, words().alternatives),
    make("ul", {lang: chosen.pair[1], dir: "auto"}, ...alternatives.map(each => make("li", {}, each)))] : []));
}

function setBusy(sentence) {
  state.textContent = sentence;
  output.setAttribute("aria-busy", sentence !== "");
}

async function translate() {
  clearTimeout(pause);
  const asked = begin("translation");
  forgetChange();
  error.textContent = lookError.textContent = "";
  others.replaceChildren();
  if (!spokenLines().length) {
    forget();
    drawSides();
    setBusy("");
    return;
  }
  parts.look.classList.add("stale");
  setBusy(words().working);
  const lines = {};
  try {
    const {length} = [...text.value];
    if (length > settings.maxCharacters) throw new Error(words().tooLong(length, settings.maxCharacters));
    showResult(await translation(request(text.value), {...asked, onprogress: progress => {
      lines[progress.line] = progress;
      showProgress(lines);
    }}));
    chosen.line = Math.min(chosen.line, spokenLines().length - 1);
    await look(asked);
  } catch (problem) {
    if (wasLeft(problem)) return;
    output.replaceChildren();
    forget();
    error.textContent = problem.message;
  }
  setBusy("");
}

// --- inspection ----------------------------------------------------------------------------------------------------

function forget() {
  found.inspection = null;
  parts.look.classList.remove("stale");
  drawLook();
  drawInside();
}

// A failed inspection keeps the translation: the line may be too long, or the model may have no attention.
async function look(asked) {
  setBusy(words().looking);
  try {
    const response = await ask("inspect", {...request(spokenLines()[chosen.line]), attribution: true}, asked);
    found.inspection = await response.json();
  } catch (problem) {
    if (wasLeft(problem)) throw problem;
    forget();
    lookError.textContent = problem.message;
    return;
  }
  Object.assign(chosen, {position: leastSure(found.inspection.steps), kind: "memory", head: firstHead(found.inspection, "memory")});
  parts.look.classList.remove("stale");
  drawLook();
  drawInside();
}

function lineChoice() {
  const lines = spokenLines();
  const notes = lines.length === 1 && found.inspection.source === lines[0] && found.inspection.translation !== output.textContent
    ? [make("p", {class: "dim"}, words().differs(found.inspection.translation))] : [];
  if (lines.length < 2) return notes;
  const choice = make("select", {"aria-label": words().line, onchange: () => chooseLine(choice.selectedIndex)},
    ...lines.map((line, number) => make("option", {}, `${number + 1}: ${line.length > 40 ? `${line.slice(0, 40)}…` : line}`)));
  choice.selectedIndex = chosen.line;
  return [make("div", {class: "bar lines"}, make("label", {}, `${words().line} `, choice))];
}

async function chooseLine(line) {
  chosen.line = line;
  forgetChange();
  lookError.textContent = "";
  try {
    await look(begin("translation"));
  } catch {
    return;  // another line was chosen meanwhile
  }
  setBusy("");
}

// --- interventions -------------------------------------------------------------------------------------------------

const isOff = ({layer, head}) => chosen.change.headsOff.some(sameHead({kind: chosen.kind, layer, head}));

// A button for the chosen head, or for all heads of the layer whose mean is chosen.
function headSwitches() {
  const {layer, head} = chosen.head;
  const {kind} = chosen;
  const several = Array.from({length: found.inspection[kind].shape[1]}, (_, each) => ({kind, layer, head: each}));
  const heads = head < 0 ? several : several.slice(head, head + 1);
  const areOff = heads.every(isOff);
  const name = head < 0 ? (areOff ? words().layerOn : words().layerOff) : (areOff ? words().headOn : words().headOff);
  return [make("button", {type: "button", class: "switch", onclick: () => makeChange(switchHeads(chosen.change, heads))}, name)];
}

// The last token is the end symbol, which can be forbidden like any other.
function tokenActions(row) {
  const {position} = chosen;
  const isTaken = row.token === found.inspection.steps[position].token;
  const change = isTaken ? forbidToken : forceToken;
  return make("td", {}, make("button", {
    type: "button", class: "small", onclick: () => makeChange(change(chosen.change, position, row.token)),
  }, isTaken ? words().forbid : words().write));
}

function forgetChange() {
  running.change.abort();
  chosen.change = noChange();
  found.comparison = null;
  drawChanges();
}

async function makeChange(change) {
  chosen.change = change;
  drawInside();
  if (!isChanged(change)) {
    forgetChange();
    return;
  }
  const asked = begin("change");
  let sentence = "";
  drawChanges();
  try {
    const response = await ask("intervene", {...request(found.inspection.source), ...changeMessage(change)}, asked);
    found.comparison = await response.json();
  } catch (problem) {
    if (wasLeft(problem)) return;
    found.comparison = null;
    sentence = problem.message;
  }
  drawChanges(sentence);
}

// --- choosing ------------------------------------------------------------------------------------------------------

function chooseInside(change) {
  Object.assign(chosen, change);
  if ("position" in change || "method" in change) drawLook();
  else drawInside();
}

function choosePage(change) {
  Object.assign(chosen, change);
  drawAll();
}

function choosePair(pair) {
  chosen.pair = pair;
  drawHeader();
  drawSides();
  translate();
}

function turnRound(pair) {
  if (spokenLines().length && output.getAttribute("aria-busy") === "false") text.value = output.textContent;
  choosePair(pair);
}

text.addEventListener("input", event => { if (!event.isComposing) typed(); });
text.addEventListener("compositionend", typed);
text.addEventListener("keydown", event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate(); });
details.addEventListener("toggle", drawInside);
systemIsDark.addEventListener("change", event => choosePage({theme: event.matches ? "dark" : "light"}));
drawAll();
text.focus();
