// The page of texts as models of any kind read them: renders one inspection, and keeps the reader's selections.

const {inspections, language, view} = JSON.parse(document.getElementById("payload").textContent);
const fresh = number => ({
  number, position: inspections[number].steps.length ? leastSure(inspections[number].steps) : 0,
  head: {layer: inspections[number].weights.shape[0] - 1, head: -1},
});
const chosen = {
  ...firstAppearance(language), method: inspections[0].attributions[0]?.method ?? "attention", ...fresh(0), ...view,
};

function choose(change) {
  Object.assign(chosen, change);
  render();
}

function textChoice(words) {
  if (inspections.length < 2) return [];
  const choice = make("select", {onchange: () => choose(fresh(choice.selectedIndex))},
    ...inspections.map(each => make("option", {}, each.text)));
  choice.selectedIndex = chosen.number;
  return [make("div", {class: "bar"}, make("label", {}, words.shown, choice))];
}

function answerSection(inspection, words) {
  const shown = inspection.model.startsWith("Forecaster: ") ? words.series : text => text;
  const answer = inspection.answer ? [make("p", {class: "answer", dir: "auto"}, shown(inspection.answer))] : [];
  return section(words.answer, words.model(inspection.model), make("p", {class: "text", dir: "auto"}, shown(inspection.text)), ...answer);
}

// A model of numbers or vectors has no probabilities.
function chances(inspection, words) {
  return inspection.steps.length ? [probabilitiesSection(inspection, words, chosen, choose)] : [];
}

// The words of a language model's predictions are tokens, with ▁ for spaces.
function readable(inspection) {
  const of = words => ({...words, source_words: words.source_words.map(visible), target_words: words.target_words.map(visible)});
  return {...inspection, answer: visible(inspection.answer), words: of(inspection.words),
    attributions: inspection.attributions.map(each => ({...each, words: of(each.words)}))};
}

function render() {
  const all = WORDS[chosen.language], inspection = readable(inspections[chosen.number]);
  const words = {...all, ...all.ofText, alignmentHelp: all.ofText.readsHelp[inspection.attention]};
  const {text, answer} = inspection;
  appear(chosen);
  document.title = [text, answer].filter(Boolean).join(" → ");
  refill(document.getElementById("page"),
    make("header", {}, make("h1", {}, words.title), appearanceBar(words, chosen, choose,
      ...shareButtons(words, [text, answer].filter(Boolean).join("\n"), {inspections, language, view: chosen}, answer || text))),
    ...textChoice(words), answerSection(inspection, words), ...chances(inspection, words),
    wordsSection(inspection, words, chosen, choose),
    section(words.attention, words.attentionHelp, ...attentionViews(
      decodeAttention(inspection.weights), words, chosen.head, head => choose({head}), inspection.rows.map(visible), inspection.columns.map(visible))));
}

systemIsDark.addEventListener("change", event => choose({theme: event.matches ? "dark" : "light"}));
render();
