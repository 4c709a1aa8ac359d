// The page of translations: renders one or two of the inspections side by side, and keeps the reader's selections.

const {inspections, language, view} = JSON.parse(document.getElementById("payload").textContent);
const fresh = number => ({
  number, position: leastSure(inspections[number].steps), kind: "memory", head: firstHead(inspections[number], "memory"),
  pointer: inspections[number].coreference && firstPointer(inspections[number].coreference),
});
// `sides` are the inspections that are shown, one or two.
const chosen = {
  ...firstAppearance(language), method: inspections[0].attributions[0]?.method ?? "attention",
  sides: inspections.slice(0, 2).map((_, number) => fresh(number)), ...view,
};

function choose(change) {
  Object.assign(chosen, change);
  render();
}

function chooseSide(side, change) {
  choose({sides: chosen.sides.map((each, number) => number === side ? {...each, ...change} : each)});
}

function nameOf({label, source}) {
  return [label, source].filter(Boolean).join(": ");
}

// The inspection of a side can be changed, and the second side be closed and opened.
function sideBar(side, words) {
  if (inspections.length < 2) return [];
  const name = chosen.sides.length < 2 ? words.shown : side ? words.rightSide : words.leftSide;
  const choice = make("select", {onchange: () => chooseSide(side, fresh(choice.selectedIndex))},
    ...inspections.map(each => make("option", {}, nameOf(each))));
  choice.selectedIndex = chosen.sides[side].number;
  return [make("div", {class: "bar"}, make("label", {}, name, choice))];
}

function besideButton(words) {
  if (inspections.length < 2) return [];
  const {sides} = chosen, other = (sides[0].number + 1) % inspections.length;
  return [toggle(words.beside, sides.length > 1, () => choose({sides: sides.length > 1 ? sides.slice(0, 1) : [...sides, fresh(other)]}))];
}

function column(side, words) {
  const state = chosen.sides[side], inspection = inspections[state.number];
  const other = chosen.sides.length > 1 ? inspections[chosen.sides[1 - side].number] : inspection;
  const change = selection => chooseSide(side, selection);
  return make("div", {class: "column"}, ...sideBar(side, words),
    make("p", {class: "dim"}, factsOf(inspection, words)),
    wordsSection(inspection, words, chosen, choose),
    probabilitiesSection(inspection, words, state, change, undefined, newOnes(other.target_tokens, inspection.target_tokens)),
    ...coreferenceSections(inspection, words, state, pointer => change({pointer})),
    attentionSection(inspection, words, state, change),
    treeSection(inspection, words));
}

function shownText() {
  return chosen.sides.map(({number}) => {
    const {label, source, translation} = inspections[number];
    return [...(label ? [label] : []), source, translation].join("\n");
  }).join("\n\n");
}

function render() {
  const words = WORDS[chosen.language], {source, translation} = inspections[chosen.sides[0].number];
  appear(chosen);
  document.title = `${source} → ${translation}`;
  const main = document.getElementById("page");
  main.classList.toggle("wide", chosen.sides.length > 1);
  refill(main,
    make("header", {}, make("h1", {}, words.title), appearanceBar(words, chosen, choose, ...besideButton(words),
      ...shareButtons(words, shownText(), {inspections, language, view: chosen}, translation))),
    make("div", {class: "columns"}, ...chosen.sides.map((_, side) => column(side, words))));
}

systemIsDark.addEventListener("change", event => choose({theme: event.matches ? "dark" : "light"}));
render();
