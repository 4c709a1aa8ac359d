// Sections of a page: a heading, an explanation, views and controls. They are plain functions.

function section(heading, help, ...content) {
  return make("section", {}, make("h2", {}, heading), make("p", {class: "dim"}, help), ...content);
}

function toggle(text, pressed, onclick) {
  return make("button", {type: "button", "aria-pressed": pressed, onclick}, text);
}

// The weights of one kind of attention, with the tokens of its rows and columns.
function attentionOf(inspection, kind) {
  const before = ["<start>", ...inspection.target_tokens.slice(0, -1)];
  const from = kind === "encoder" ? inspection.source_tokens : inspection.target_tokens;
  const to = kind === "decoder" ? before : inspection.source_tokens;
  return {attention: decodeAttention(inspection[kind]), from: from.map(visible), to: to.map(visible)};
}

// The head that is selected first: the mean of the last layer's heads.
const firstHead = (inspection, kind) => ({layer: inspection[kind].shape[0] - 1, head: -1});

// The position of the least probable token.
const leastSure = steps => steps.reduce((worst, step, position) => step.probability < steps[worst].probability ? position : worst, 0);

// The words with the shades of attention, or of a method of attribution if the inspection has some.
function wordsSection(inspection, words, {method = "attention"} = {}, choose = () => {}) {
  const found = inspection.attributions.find(each => each.method === method);
  const languages = [inspection.source_language, inspection.target_language];
  const names = ["attention", ...inspection.attributions.map(each => each.method)];
  const choice = make("select", {class: "method", onchange: () => choose({method: names[choice.selectedIndex]})},
    ...names.map(name => make("option", {}, words.methods[name])));
  choice.selectedIndex = found ? names.indexOf(method) : 0;
  const bar = names.length > 1 ? [make("div", {class: "bar"}, make("label", {}, words.shadesOf, choice))] : [];
  return section(words.alignment, found ? words.methodHelp[method] : words.alignmentHelp,
    ...bar, alignmentView(found ? found.words : inspection.words, languages, words.pointHelp));
}

function probabilitiesSection(inspection, words, chosen, choose, actionFor, differs) {
  return section(words.probabilities, words.probabilitiesHelp,
    tokensView(inspection.steps, chosen.position, position => choose({position}), differs, inspection.outputs),
    make("h3", {}, words.candidates(chosen.position + 1)),
    make("div", {class: "scroll", tabindex: 0, role: "group", "aria-label": words.candidates(chosen.position + 1)},
      candidatesView(inspection.steps[chosen.position], actionFor)));
}

// `isOff` and `bar` are used by the page on which heads can be switched off.
function attentionSection(inspection, words, chosen, choose, {isOff, bar = []} = {}) {
  const {attention, from, to} = attentionOf(inspection, chosen.kind);
  const kinds = ["memory", "encoder", "decoder"].map(kind =>
    toggle(words[kind], kind === chosen.kind, () => choose({kind, head: firstHead(inspection, kind)})));
  return section(words.attention, words.attentionHelp, make("div", {class: "bar"}, ...kinds),
    ...attentionViews(attention, words, chosen.head, head => choose({head}), from, to, {isOff, bar}));
}

// All heads small, and the chosen one as lines and as a heat map.
function attentionViews(attention, words, head, onchoose, from, to, {isOff, bar = []} = {}) {
  return [headsView(attention, words, head, onchoose, isOff), make("div", {class: "bar"}, ...bar),
    make("div", {class: "attention"},
      make("div", {}, make("h3", {}, words.lines), linesView(attention, head, from, to, `${words.attention}: ${words.lines}`)),
      make("div", {}, make("h3", {}, words.heatMap), heatMapView(attention, head, from, to, words)))];
}

function treeSection(inspection, words) {
  const help = inspection.beam_size > 1 ? words.treeHelp(inspection.beam_size) : words.greedyHelp;
  return section(words.tree, help, treeView(inspection.tree, words));
}

// A line with the languages, the model and the score.
function factsOf(inspection, words) {
  const languages = [inspection.source_language, inspection.target_language].filter(Boolean).join(" → ");
  return [languages, words.model(inspection.model), `${words.score} ${inspection.score.toFixed(3)}`].filter(Boolean).join(" · ");
}

// --- language and theme of the page -----------------------------------------------------------------------------

const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

// The browser's language, unless the page has one.
const firstAppearance = language => ({
  language: language || ((navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en"),
  theme: systemIsDark.matches ? "dark" : "light",
});

function appear({language, theme}) {
  document.documentElement.lang = language;
  document.documentElement.dataset.theme = theme;
}

function appearanceBar(words, chosen, choose, ...before) {
  return make("div", {class: "bar"}, ...before,
    make("button", {type: "button", lang: words.otherLanguage, onclick: () => choose({language: words.otherLanguage})}, words.other),
    make("button", {type: "button", onclick: () => choose({theme: chosen.theme === "dark" ? "light" : "dark"})}, words.theme));
}

// Replaces a container's content. The control at the same index as the focused one gets the focus; nothing scrolls.
function refill(container, ...children) {
  const stops = () => [...container.querySelectorAll("button, input, select, textarea, summary, [tabindex]")];
  const boxes = () => [...container.querySelectorAll(".scroll")];
  const focused = stops().indexOf(document.activeElement);
  const positions = boxes().map(box => [box.scrollLeft, box.scrollTop]);
  const at = window.scrollY;
  container.replaceChildren(...children);
  boxes().forEach((box, number) => { [box.scrollLeft, box.scrollTop] = positions[number] || [0, 0]; });
  if (focused >= 0) stops()[focused]?.focus({preventScroll: true});
  window.scrollTo(0, at);
}

// --- copying and sharing -------------------------------------------------------------------------------------------

const PAGE = `<!doctype html>\n${document.documentElement.outerHTML}`; // as it was sent

// The page as a file that opens on `content`, its data and what is selected now.
function pageAsIs(content) {
  const before = document.getElementById("payload").textContent;
  return PAGE.replace(before, () => JSON.stringify(content).replaceAll("<", "\\u003c"));
}

// Copies without the clipboard's interface where a browser withholds it, as in a notebook's frame.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", {readonly: "", "aria-hidden": "true"}, text);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

async function share(content, title) {
  const name = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "inspection"}.html`;
  const file = new File([pageAsIs(content)], name, {type: "text/html"});
  if (navigator.canShare?.({files: [file]})) {
    await navigator.share({files: [file], title: document.title}).catch(() => {}); // the reader may think better of it
    return;
  }
  const address = URL.createObjectURL(file);
  make("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// `text` is what is copied, `content` the data of the page that is saved under a name made of `title`.
function shareButtons(words, text, content, title) {
  const copying = make("button", {type: "button", class: "copy", onclick: async () => {
    copying.textContent = await copy(text) ? words.copied : words.notCopied;
    copying.focus();
  }}, words.copy);
  return [copying, make("button", {type: "button", class: "share", onclick: () => share(content, title)}, words.share)];
}
