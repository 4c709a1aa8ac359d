// Views of one inspected translation: functions from data to an element, which call `on…` when the reader selects
// something. They keep no state except the position of the pointer and the keyboard focus.

function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function draw(name, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const percent = value => value >= 0.9995 ? "100 %" : value < 0.001 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`;
const isWide = text => /[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60]/u.test(text);
// Tokens spell a space as ▁, which most fonts draw as a heavy block.
const visible = token => token.replaceAll("▁", "_");
// The approximate width in pixels of a text of 14 pixels height.
const widthOf = text => [...text].reduce((sum, character) => sum + (isWide(character) ? 14.5 : 8), 0);

// --- the keyboard ------------------------------------------------------------------------------------------------

// Makes a group of items one stop for the Tab key. `move` maps an index and a key to the next index; by default the arrow
// keys move in rows of `columns` items.
function oneStop(container, items, {start = 0, columns = 1, move} = {}) {
  const along = (at, key) => at + ({
    ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: items.length - 1 - at,
  }[key] ?? NaN);
  const stopAt = number => items.forEach((item, other) => item.setAttribute("tabindex", other === number ? 0 : -1));
  items.forEach((item, number) => item.addEventListener("focus", () => stopAt(number)));
  container.addEventListener("keydown", event => {
    const at = items.indexOf(event.target);
    const next = at < 0 ? undefined : items[(move || along)(at, event.key)];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  stopAt(start);
}

// --- attention: bytes to numbers ---------------------------------------------------------------------------------

// {shape: [layers, heads, queries, keys], at(layer, head, query, key)}; head -1 is the mean of the layer's heads.
function decodeAttention(packed) {
  const [layers, heads, queries, keys] = packed.shape;
  const bytes = Uint8Array.from(atob(packed.weights), character => character.charCodeAt(0));
  const one = (layer, head, query, key) => bytes[((layer * heads + head) * queries + query) * keys + key] / 255;
  const mean = (layer, query, key) => {
    let sum = 0;
    for (let head = 0; head < heads; head++) sum += one(layer, head, query, key);
    return sum / heads;
  };
  const at = (layer, head, query, key) => head < 0 ? mean(layer, query, key) : one(layer, head, query, key);
  return {shape: packed.shape, at};
}

// --- words -------------------------------------------------------------------------------------------------------

// Both sentences; the word under the pointer shades the words that it depends on or attends to, or that do so to it. A
// line below names the strongest ones. `languages` are the codes of both sentences.
function alignmentView(words, languages, help) {
  const most = Math.max(0.001, ...words.weights.flat());
  const rows = {source: [], target: []};
  const clear = () => [...rows.source, ...rows.target].forEach(word => {
    word.classList.remove("from");
    word.style.setProperty("--shade", 0);
  });
  const readout = make("div", {class: "readout dim", "aria-live": "polite"}, help);
  const point = (side, number) => {
    clear();
    const weightOf = other => side === "source" ? words.weights[other][number] : words.weights[number][other];
    const texts = side === "source" ? words.target_words : words.source_words;
    const strongest = texts.map((text, other) => [text, weightOf(other)]).filter(([, weight]) => weight >= 0.05)
      .sort((one, other) => other[1] - one[1]).slice(0, 4).map(([text, weight]) => `${text} ${percent(weight)}`);
    readout.textContent = `${words[`${side}_words`][number]} ${side === "source" ? "→" : "←"} ${strongest.join(", ") || "–"}`;
    rows[side][number].classList.add("from");
    const others = rows[side === "source" ? "target" : "source"];
    others.forEach((word, other) => {
      word.style.setProperty("--shade", (weightOf(other) / most).toFixed(3));
    });
  };
  const line = (side, texts) => {
    rows[side] = texts.map((text, number) => make("button", {
      class: "word", type: "button", onmouseenter: () => point(side, number), onfocus: () => point(side, number),
      onmouseleave: clear, onblur: clear, onclick: () => point(side, number),
    }, text));
    const tight = texts.some(isWide) ? " tight" : "";
    const language = languages[side === "source" ? 0 : 1];
    const sentence = make("div", {class: `sentence${tight}`, dir: "auto", ...(language ? {lang: language} : {})}, ...rows[side]);
    oneStop(sentence, rows[side]);
    return sentence;
  };
  return make("div", {}, line("source", words.source_words), line("target", words.target_words), readout);
}

// --- probabilities -----------------------------------------------------------------------------------------------

// `differs` marks tokens that the other one of two translations lacks; `outputs` names what each step predicts, such as
// the word that a tag belongs to.
function tokensView(steps, chosen, onchoose, differs = [], outputs = []) {
  const nameOf = ({token}, position) => [outputs[position], token].filter((name, at) => name && (at || name !== token)).map(visible).join(" → ");
  const buttons = steps.map((step, position) => {
    const sureness = step.probability < 0.2 ? " doubtful" : step.probability < 0.6 ? " unsure" : "";
    return make("button", {
      class: `token${sureness}${differs[position] ? " differs" : ""}`, type: "button", "aria-pressed": position === chosen, onclick: () => onchoose(position),
    }, make("span", {}, nameOf(step, position)), make("i", {}, make("b", {style: `width:${100 * step.probability}%`})),
    make("small", {}, percent(step.probability)));
  });
  const tokens = make("div", {class: "tokens"}, ...buttons);
  oneStop(tokens, buttons, {start: chosen});
  return tokens;
}

// A row for each candidate; `actionFor` may add a button to it.
function candidatesView(step, actionFor = () => []) {
  const known = step.candidates.some(candidate => candidate.token === step.token);
  const taken = {token: step.token, probability: step.probability};
  const rows = known ? step.candidates : [...step.candidates, taken];
  return make("table", {class: "candidates"}, make("tbody", {}, ...rows.map(row =>
    make("tr", {class: row.token === step.token ? "taken" : ""}, make("th", {scope: "row"}, visible(row.token)),
      make("td", {}, make("div", {class: "length", style: `width:${100 * row.probability}%`})),
      make("td", {}, percent(row.probability)), ...actionFor(row)))));
}

// Whether each item of `after` is outside the longest common subsequence with `before`.
function newOnes(before, after) {
  const lengths = Array.from({length: before.length + 1}, () => new Array(after.length + 1).fill(0));
  for (let one = before.length - 1; one >= 0; one--) {
    for (let other = after.length - 1; other >= 0; other--) {
      lengths[one][other] = before[one] === after[other] ? lengths[one + 1][other + 1] + 1
        : Math.max(lengths[one + 1][other], lengths[one][other + 1]);
    }
  }
  const isNew = after.map(() => true);
  for (let one = 0, other = 0; one < before.length && other < after.length;) {
    if (before[one] === after[other]) {
      isNew[other] = false;
      one++;
      other++;
    } else if (lengths[one + 1][other] >= lengths[one][other + 1]) one++;
    else other++;
  }
  return isNew;
}

// --- attention ---------------------------------------------------------------------------------------------------

const accent = () => getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").trim();

// Small pictures of all heads of all layers; the last column is the mean of each layer. Heads that are off are crossed out.
function headsView(attention, words, chosen, onchoose, isOff = () => false) {
  const [layers, heads, queries, keys] = attention.shape;
  const width = Math.max(28, Math.min(84, Math.floor(Math.min(880, window.innerWidth - 120) / (heads + 1))));
  const grid = make("div", {class: "heads", style: `grid-template-columns:auto repeat(${heads + 1}, ${width}px)`});
  const buttons = [];
  grid.append(make("span"));
  for (let head = 0; head <= heads; head++) grid.append(make("span", {}, head < heads ? `${words.head} ${head + 1}` : words.mean));
  for (let layer = 0; layer < layers; layer++) {
    grid.append(make("span", {}, `${words.layer} ${layer + 1}`));
    for (let column = 0; column <= heads; column++) {
      const head = column < heads ? column : -1;
      const canvas = make("canvas", {width: keys, height: queries});
      paintPixels(canvas.getContext("2d"), attention, layer, head);
      buttons.push(make("button", {
        type: "button", "aria-pressed": layer === chosen.layer && head === chosen.head, class: isOff({layer, head}) ? "off" : "",
        "aria-label": `${words.layer} ${layer + 1}, ${head < 0 ? words.mean : `${words.head} ${head + 1}`}`,
        onclick: () => onchoose({layer, head}),
      }, canvas));
      grid.append(buttons[buttons.length - 1]);
    }
  }
  const start = chosen.layer * (heads + 1) + (chosen.head < 0 ? heads : chosen.head);
  oneStop(grid, buttons, {start, columns: heads + 1});
  return make("div", {class: "scroll"}, grid);
}

// One pixel per pair of tokens, which is fast enough for all heads of a long sentence.
function paintPixels(context, attention, layer, head) {
  const [, , queries, keys] = attention.shape;
  const [red, green, blue] = accent().split(",").map(Number);
  const image = context.createImageData(keys, queries);
  for (let query = 0; query < queries; query++) {
    for (let key = 0; key < keys; key++) {
      const opacity = 255 * Math.pow(attention.at(layer, head, query, key), 0.7);
      const at = 4 * (query * keys + key);
      image.data[at] = red;
      image.data[at + 1] = green;
      image.data[at + 2] = blue;
      image.data[at + 3] = opacity;
    }
  }
  context.putImageData(image, 0, 0);
}

function paintCells(context, attention, layer, head, size, left, top) {
  const [, , queries, keys] = attention.shape;
  const color = accent();
  for (let query = 0; query < queries; query++) {
    for (let key = 0; key < keys; key++) {
      const weight = attention.at(layer, head, query, key);
      if (weight < 0.004) continue;
      context.fillStyle = `rgba(${color}, ${Math.pow(weight, 0.7)})`;
      context.fillRect(left + key * size, top + query * size, size - (size > 6 ? 1 : 0), size - (size > 6 ? 1 : 0));
    }
  }
}

// Two columns of tokens, with a line from each token to those that it attends to, darker for more attention.
function linesView(attention, chosen, from, to, label) {
  const step = 26, gap = 150, left = Math.max(40, ...from.map(widthOf)) + 16;
  const height = step * Math.max(from.length, to.length) + 8;
  const width = left + gap + Math.max(40, ...to.map(widthOf)) + 16;
  const picture = draw("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label});
  const middle = number => 4 + step * number + step / 2;
  const lines = draw("g");
  const show = only => {
    lines.replaceChildren();
    from.forEach((_, query) => to.forEach((_, key) => {
      const weight = attention.at(chosen.layer, chosen.head, query, key);
      if (weight < 0.03 || (only !== null && only !== query)) return;
      lines.append(draw("line", {
        x1: left + 4, y1: middle(query), x2: left + gap - 4, y2: middle(key), "stroke-opacity": weight.toFixed(3),
      }));
    }));
    rows.forEach((row, query) => row.classList.toggle("chosen", only === query));
  };
  // The tokens that a token attends to most, for screen readers.
  const strongest = query => to.map((token, key) => [token, attention.at(chosen.layer, chosen.head, query, key)])
    .sort((one, other) => other[1] - one[1]).slice(0, 3).map(([token, weight]) => `${token} ${percent(weight)}`).join(", ");
  const rows = from.map((token, query) => draw("g", {
    class: "row", role: "img", "aria-label": `${token} → ${strongest(query)}`, onmouseenter: () => show(query), onmouseleave: () => show(null),
    onfocus: () => show(query), onblur: () => show(null), onclick: () => show(query),
  }, draw("rect", {x: 0, y: 4 + step * query, width: left, height: step, rx: 4}),
  draw("text", {x: left - 6, y: middle(query) + 5, "text-anchor": "end"}, token)));
  const targets = to.map((token, key) => draw("text", {x: left + gap + 6, y: middle(key) + 5}, token));
  picture.append(lines, ...rows, ...targets);
  oneStop(picture, rows);
  show(null);
  return make("div", {class: "scroll"}, picture);
}

// A square per pair of tokens; a frame follows the pointer and the arrow keys, and a line below describes its square.
function heatMapView(attention, chosen, from, to, words) {
  // Chinese, Japanese and Korean characters stand upright, one below another; other tokens are turned.
  const stacked = to.map(token => isWide(token) ? [...token] : null);
  const lengthOf = (token, key) => stacked[key] ? 15 * stacked[key].length : widthOf(token);
  const left = Math.max(30, ...from.map(widthOf)) + 10, top = Math.max(20, ...to.map(lengthOf)) + 10;
  const available = Math.min(565, window.innerWidth - 80) - left; // of a card's wider column, or of a narrow window
  const size = Math.max(10, Math.min(34, Math.floor(available / Math.max(from.length, to.length))));
  const font = `${Math.max(10, Math.min(14, size - 2))}px system-ui, "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif`;
  const width = left + size * to.length + 2, height = top + size * from.length + 2, scale = window.devicePixelRatio || 1;
  const canvas = make("canvas", {
    width: width * scale, height: height * scale, style: `width:${width}px;height:${height}px`, tabindex: 0, role: "img",
    "aria-label": words.heatMap,
  });
  const readout = make("div", {class: "readout dim", "aria-live": "polite"}, words.heatHelp);
  let frame = null;
  const paint = () => {
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    paintCells(context, attention, chosen.layer, chosen.head, size, left, top);
    context.font = font;
    context.fillStyle = style.getPropertyValue("--ink");
    context.textBaseline = "middle";
    context.textAlign = "right";
    from.forEach((token, query) => context.fillText(token, left - 6, top + size * (query + 0.5)));
    to.forEach((token, key) => {
      const middle = left + size * (key + 0.5);
      if (stacked[key]) {
        context.textAlign = "center";
        stacked[key].slice().reverse().forEach((character, line) => context.fillText(character, middle, top - 12 - 15 * line));
        return;
      }
      context.textAlign = "left";
      context.save();
      context.translate(middle, top - 6);
      context.rotate(-Math.PI / 2);
      context.fillText(token, 0, 0);
      context.restore();
    });
    context.strokeStyle = style.getPropertyValue("--edge");
    context.strokeRect(left - 0.5, top - 0.5, size * to.length, size * from.length);
    if (frame) {
      context.strokeStyle = style.getPropertyValue("--second");
      context.lineWidth = 2;
      context.strokeRect(left + size * frame.key - 1, top + size * frame.query - 1, size + 1, size + 1);
      context.lineWidth = 1;
    }
  };
  const moveTo = (query, key) => {
    frame = {query: clamp(query, from.length), key: clamp(key, to.length)};
    const weight = attention.at(chosen.layer, chosen.head, frame.query, frame.key);
    readout.textContent = words.looks(from[frame.query], to[frame.key], percent(weight));
    paint();
  };
  const clamp = (number, length) => Math.max(0, Math.min(length - 1, number));
  const follow = event => {
    const box = canvas.getBoundingClientRect();
    const query = Math.floor((event.clientY - box.top - top) / size), key = Math.floor((event.clientX - box.left - left) / size);
    if (query >= 0 && key >= 0) moveTo(query, key);
  };
  canvas.addEventListener("mousemove", follow);
  canvas.addEventListener("click", follow);
  canvas.addEventListener("keydown", event => {
    const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = frame || {query: -step[0], key: -step[1]};
    moveTo(at.query + step[0], at.key + step[1]);
  });
  paint();
  return make("div", {}, make("div", {class: "scroll"}, canvas), readout);
}
