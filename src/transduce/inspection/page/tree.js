// The beam search tree: a column per step, a box per hypothesis.

// The position {x, y} of each node in columns and lines, and the number of both. A column holds the hypotheses of one
// length: the translation first, then children in the order of their parents, likelier ones first.
function layOutTree(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, number) => { if (node.parent >= 0) children[node.parent].push(number); });
  const places = nodes.map(() => ({x: 0, y: 0}));
  const better = (one, other) => nodes[other].best - nodes[one].best || nodes[other].log_probability - nodes[one].log_probability;
  let column = [0], columns = 0, lines = 1;
  while (column.length) {
    column.forEach((number, line) => { places[number] = {x: columns, y: line}; });
    lines = Math.max(lines, column.length);
    columns += 1;
    column.forEach(number => children[number].sort(better));
    column = column.flatMap(number => children[number]);
  }
  return {places, children, columns, lines};
}

function treeView(nodes, words) {
  const {places, children, columns, lines} = layOutTree(nodes);
  const widths = Array.from({length: columns}, () => 44);
  nodes.forEach((node, number) => { widths[places[number].x] = Math.max(widths[places[number].x], widthOf(visible(node.piece) || words.begin) + 18); });
  const lefts = widths.reduce((all, width) => [...all, all[all.length - 1] + width + 34], [4]);
  const lineHeight = 46, boxHeight = 36, top = 4;
  const width = lefts[columns] + 4, height = top + lineHeight * lines + 4;
  const picture = draw("svg", {width, height, viewBox: `0 0 ${width} ${height}`});
  const readout = make("div", {class: "readout dim", "aria-live": "polite"});
  const middle = number => top + lineHeight * places[number].y + boxHeight / 2;
  const text = number => {
    const pieces = [];
    for (let at = number; at > 0; at = nodes[at].parent) pieces.unshift(nodes[at].piece);
    return pieces.join("").replaceAll("▁", " ").trim();
  };
  const found = node => node.score != null; // a result of the search, ended or cut
  const say = number => {
    const node = nodes[number];
    const end = node.ended ? words.ended : words.cut;
    const outcome = found(node) ? `${end}, ${words.score} ${node.score.toFixed(3)}` : children[number].length ? words.goesOn : words.left;
    readout.textContent = `${text(number) || words.begin} — ${words.logProbability} ${node.log_probability.toFixed(3)}, ${outcome}`;
  };
  nodes.forEach((node, number) => {
    if (node.parent < 0) return;
    const from = lefts[places[node.parent].x] + widths[places[node.parent].x], to = lefts[places[number].x];
    const start = middle(node.parent), end = middle(number), bend = from + 17;
    picture.append(draw("path", {
      class: node.best ? "best" : "", d: `M${from} ${start} C${bend} ${start} ${bend} ${end} ${to} ${end}`,
    }));
  });
  const boxes = nodes.map((node, number) => {
    const lost = !found(node) && !children[number].length;
    const x = lefts[places[number].x], y = middle(number) - boxHeight / 2;
    const figure = found(node) ? `${words.score} ${node.score.toFixed(2)}` : number ? node.log_probability.toFixed(2) : "";
    const box = draw("g", {
      class: `node${node.best ? " best" : ""}${node.ended ? " ended" : ""}${lost ? " left" : ""}`,
      onmouseenter: () => say(number), onfocus: () => say(number), onclick: () => say(number),
    }, draw("rect", {x, y, width: widths[places[number].x], height: boxHeight, rx: 6}));
    const centre = x + widths[places[number].x] / 2;
    box.append(draw("text", {x: centre, y: y + 15, "text-anchor": "middle"}, visible(node.piece) || words.begin));
    box.append(draw("text", {x: centre, y: y + 30, "text-anchor": "middle", class: "figure"}, figure));
    picture.append(box);
    return box;
  });
  const beside = (number, by) => places.findIndex(place =>
    place.x === places[number].x && place.y === places[number].y + by);
  oneStop(picture, boxes, {move: (at, key) => ({
    ArrowLeft: nodes[at].parent, ArrowRight: children[at][0], ArrowUp: beside(at, -1), ArrowDown: beside(at, 1), Home: 0,
  }[key])});
  return make("div", {}, make("div", {class: "scroll"}, picture), readout);
}
