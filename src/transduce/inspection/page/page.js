// The page of one translation: renders the sections and keeps the reader's selections.

const inspection = JSON.parse(document.getElementById("payload").textContent);
const chosen = {
  ...firstAppearance(), place: leastSure(inspection.steps), kind: "memory", head: firstHead(inspection, "memory"),
  pointer: inspection.coreference && firstPointer(inspection.coreference),
};

function choose(change) {
  Object.assign(chosen, change);
  render();
}

function render() {
  const words = WORDS[chosen.language];
  appear(chosen);
  document.title = `${inspection.source} → ${inspection.translation}`;
  refill(document.getElementById("page"),
    make("header", {}, make("h1", {}, words.title), appearanceBar(words, chosen, choose)),
    make("p", {class: "dim"}, factsOf(inspection, words)),
    wordsSection(inspection, words),
    probabilitiesSection(inspection, words, chosen, choose),
    ...coreferenceSections(inspection, words, chosen, pointer => choose({pointer})),
    attentionSection(inspection, words, chosen, choose),
    treeSection(inspection, words));
}

systemIsDark.addEventListener("change", event => choose({theme: event.matches ? "dark" : "light"}));
render();
