// The beam search tree: a column per step, a box per hypothesis. Branches that do not matter are folded at first.

const HOPEFUL = Math.log(10);

const isFound = node => node.score != null; // a result of the search, ended or cut

// Which nodes matter: those on the way to a result, and the dropped tokens that were at least a tenth as probable as the
// hypothesis that their parent leads to.
function whatMatters(nodes) {
  const matters = nodes.map(() => false);
  nodes.forEach((node, number) => { for (let at = number; isFound(node) && at >= 0; at = nodes[at].parent) matters[at] = true; });
  const kept = [...matters];
  return nodes.map((node, number) => kept[number] || (node.parent >= 0 && kept[node.parent] && nodes.some((other, beside) =>
    kept[beside] && other.parent === node.parent && other.log_probability - node.log_probability < HOPEFUL)));
}

// The nodes that are shown, with parents renumbered and `folded`, the number of their children that are not shown.
function prune(nodes, isShown) {
  const numbers = [], positions = new Map();
  nodes.forEach((node, number) => {
    if (!isShown[number]) return;
    positions.set(number, numbers.length);
    numbers.push(number);
  });
  const folded = numbers.map(number => nodes.filter((node, child) => node.parent === number && !isShown[child]).length);
  return {numbers, nodes: numbers.map((number, position) => ({
    ...nodes[number], parent: positions.get(nodes[number].parent) ?? -1, folded: folded[position],
  }))};
}

// The position {x, y} of each node in columns and lines, and the number of both. A column holds the hypotheses of one
// length: the translation first, then children in the order of their parents, likelier ones first.
function layOutTree(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, number) => { if (node.parent >= 0) children[node.parent].push(number); });
  const positions = nodes.map(() => ({x: 0, y: 0}));
  const better = (one, other) => nodes[other].best - nodes[one].best || nodes[other].log_probability - nodes[one].log_probability;
  let column = [0], columns = 0, lines = 1;
  while (column.length) {
    column.forEach((number, line) => { positions[number] = {x: columns, y: line}; });
    lines = Math.max(lines, column.length);
    columns += 1;
    column.forEach(number => children[number].sort(better));
    column = column.flatMap(number => children[number]);
  }
  return {positions, children, columns, lines};
}

// The text of a hypothesis.
function textOf(nodes, number) {
  const tokens = [];
  for (let at = number; at > 0; at = nodes[at].parent) tokens.unshift(nodes[at].token);
  return tokens.filter(token => token !== "</s>").join("").replaceAll("▁", " ").trim();
}

// The results of the search, best first.
function resultsView(nodes, words) {
  const found = nodes.map((_, number) => number).filter(number => isFound(nodes[number])).sort((one, other) => nodes[other].score - nodes[one].score);
  return make("ol", {class: "results", "aria-label": words.results}, ...found.map(number => make("li", {},
    make(nodes[number].best ? "strong" : "span", {dir: "auto"}, textOf(nodes, number) || "–"), " ",
    make("small", {}, `${words.score} ${nodes[number].score.toFixed(3)}`))));
}

// The tree with a button that shows and hides what does not matter. Choosing a box with a dashed frame unfolds it.
function treeView(all, words) {
  const box = make("div");
  const matters = whatMatters(all), some = matters.filter(each => !each).length;
  let isShown = matters;
  const show = (shown, focused) => {
    isShown = shown;
    const isWhole = isShown.every(each => each);
    const {numbers, nodes} = prune(all, isShown);
    const unfold = number => show(isShown.map((each, other) => each || isBelow(all, other, numbers[number])), numbers[number]);
    const {picture, boxes} = treePicture(nodes, words, unfold);
    box.replaceChildren(resultsView(all, words), ...(some ? [make("div", {class: "bar"}, make("button", {
      type: "button", class: "unfold", "aria-pressed": isWhole, onclick: () => {
        show(isWhole ? matters : all.map(() => true));
        box.querySelector(".unfold").focus();
      },
    }, words.unfold(all.length - 1)))] : []), picture);
    if (focused !== undefined) boxes[numbers.indexOf(focused)].focus();
  };
  show(matters);
  return box;
}

function isBelow(nodes, number, top) {
  for (let at = nodes[number].parent; at >= 0; at = nodes[at].parent) if (at === top) return true;
  return false;
}

function treePicture(nodes, words, unfold) {
  const {positions, children, columns, lines} = layOutTree(nodes);
  const widths = Array.from({length: columns}, () => 44);
  nodes.forEach((node, number) => { widths[positions[number].x] = Math.max(widths[positions[number].x], widthOf(visible(node.token) || words.begin) + 18, isFound(node) || node.folded ? 84 : 0); });
  const lefts = widths.reduce((all, width) => [...all, all[all.length - 1] + width + 34], [4]);
  const lineHeight = 46, boxHeight = 36, top = 4;
  const width = lefts[columns] + 4, height = top + lineHeight * lines + 4;
  const picture = draw("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": words.tree});
  const readout = make("div", {class: "readout dim", "aria-live": "polite"});
  const middle = number => top + lineHeight * positions[number].y + boxHeight / 2;
  const describe = number => {
    const node = nodes[number];
    const end = node.ended ? words.ended : words.cut;
    const outcome = isFound(node) ? `${end}, ${words.score} ${node.score.toFixed(3)}` : children[number].length || node.folded ? words.goesOn : words.left;
    const folded = node.folded ? `; ${words.folded(node.folded)}` : "";
    return `${textOf(nodes, number) || words.begin} — ${words.logProbability} ${node.log_probability.toFixed(3)}, ${outcome}${folded}`;
  };
  const say = number => { readout.textContent = describe(number); };
  nodes.forEach((node, number) => {
    if (node.parent < 0) return;
    const from = lefts[positions[node.parent].x] + widths[positions[node.parent].x], to = lefts[positions[number].x];
    const start = middle(node.parent), end = middle(number), bend = from + 17;
    picture.append(draw("path", {
      class: node.best ? "best" : "", d: `M${from} ${start} C${bend} ${start} ${bend} ${end} ${to} ${end}`,
    }));
  });
  const boxes = nodes.map((node, number) => {
    const lost = !isFound(node) && !children[number].length && !node.folded;
    const x = lefts[positions[number].x], y = middle(number) - boxHeight / 2;
    const sum = isFound(node) ? `${words.score} ${node.score.toFixed(2)}` : number ? node.log_probability.toFixed(2) : "";
    const figure = node.folded ? `${sum} +${node.folded}` : sum;
    const act = () => node.folded ? unfold(number) : say(number);
    const box = draw("g", {
      class: `node${node.best ? " best" : ""}${node.ended ? " ended" : ""}${lost ? " left" : ""}${node.folded ? " folded" : ""}`,
      role: node.folded ? "button" : "img", "aria-label": `${visible(node.token) || words.begin} ${figure}: ${describe(number)}`,
      onmouseenter: () => say(number), onfocus: () => say(number), onclick: act,
      onkeydown: event => { if (node.folded && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); act(); } },
    }, draw("rect", {x, y, width: widths[positions[number].x], height: boxHeight, rx: 6}));
    const center = x + widths[positions[number].x] / 2;
    box.append(draw("text", {x: center, y: y + 15, "text-anchor": "middle"}, visible(node.token) || words.begin));
    box.append(draw("text", {x: center, y: y + 30, "text-anchor": "middle", class: "figure"}, figure));
    picture.append(box);
    return box;
  });
  const beside = (number, by) => positions.findIndex(position =>
    position.x === positions[number].x && position.y === positions[number].y + by);
  oneStop(picture, boxes, {move: (at, key) => ({
    ArrowLeft: nodes[at].parent, ArrowRight: children[at][0], ArrowUp: beside(at, -1), ArrowDown: beside(at, 1), Home: 0,
  }[key])});
  return {picture: make("div", {}, make("div", {class: "scroll"}, picture), readout), boxes};
}
