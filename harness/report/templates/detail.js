// Everything that is known of one field: numbers, sizes, worst elements, positions and heads.

function showDetail(panel, field, data, onClose) {
  const parts = field.rows.map(({ row }) => row);
  const close = make("button", { type: "button", class: "close" }, "Close");
  close.addEventListener("click", onClose);
  const heading = make("h3", { tabindex: -1 }, field.tap);
  const body = make("div", {});
  const label = (row) => `${data.prompts[row.prompt].name}, ${passOf(row, data)}`;
  let chosen = 0;
  const choose = async (index) => {
    chosen = index;
    panel.setAttribute("aria-busy", "true"); // the first time, its block has to be unpacked
    const shown = await readWhole(parts[index], data).then(
      (row) => describeField(row, data),
      (error) => [make("p", {}, `The details cannot be read here (${error.message}).`)],
    );
    if (chosen !== index || !body.isConnected) return; // something else was chosen meanwhile
    body.replaceChildren(...shown);
    panel.removeAttribute("aria-busy");
  };
  let chooser = null;
  if (parts.length > 1) {
    const select = make("select", {}, parts.map((row, i) => make("option", { value: i }, label(row))));
    select.addEventListener("change", () => choose(Number(select.value)));
    chooser = make("label", {}, "Comparison, the worst first ", select);
  } else {
    chooser = make("span", { class: "note" }, label(parts[0]));
  }
  panel.replaceChildren(make("div", { class: "bar" }, heading, chooser, close), body);
  panel.hidden = false;
  choose(0);
  return heading;
}

function describeField(row, data) {
  if (row.status !== "compared") return [make("p", {}, `${row.status}${row.note ? `: ${row.note}` : ""}`)];
  if (row.pair) {
    return [
      rowsTable([["max abs", sayNumber(row.maxAbs)], ["mean abs", sayNumber(row.meanAbs)]]),
      make("p", { class: "note" }, "Two candidates against each other; no reference takes part."),
    ];
  }
  return [
    make("div", { class: "columns" }, ownColumn(row, data), endColumn(row, data)),
    make("p", { class: "note" }, `op ${row.op}, ${row.shape}`),
  ];
}

function ownColumn(row, data) {
  if (row.units === null) return make("div", {}, make("h4", {}, "Added by this op"), make("p", {}, "Not replayed."));
  const inherited = row.inherited ? "; the unit came through ops that are not tapped" : "";
  const facts = [
    ["worst", `${sayUnits(row.units)} rounding units, limit ${sayNumber(data.limit)}`],
    ["median", `${sayUnits(row.median)} units`],
    ["there", `off by ${sayNumber(row.error)}, one unit is ${sayNumber(row.bound)}${inherited}`],
    ["over the limit", String(row.over)],
  ];
  if (row.weights) facts.push(["weights", `${row.weights} of its parameters differ from the checkpoint`]);
  return spreadColumn("Added by this op, in rounding units", facts, row, row.ownWorst, row.ownSpread, {
    data,
    side: "op on the candidate's inputs",
    shade: (value) => shadeOfLimit(value / data.limit),
    say: (value) => `${sayUnits(value)} units`,
  });
}

function endColumn(row, data) {
  if (row.maxAbs === null) return make("div", {});
  const facts = [
    ["max abs", sayNumber(row.maxAbs)],
    ["mean abs", sayNumber(row.meanAbs)],
    ["largest value", sayNumber(row.magnitude)],
    [`beyond ${sayNumber(data.tolerance)}`, `${row.beyond} of ${row.count}`],
  ];
  return spreadColumn("End to end, inherited error with it", facts, row, row.endWorst, row.endSpread, {
    data,
    side: data.side,
    shade: (value) => shadeOf(value, 1e-7, 10),
    say: (value) => sayNumber(value),
  });
}

function spreadColumn(title, facts, row, worst, spread, look) {
  const column = make("div", {}, make("h4", {}, title), rowsTable(facts));
  const others = (spread?.[3] ?? []).map(([flat, ...values]) => [...unravel(flat, row, worst), ...values]);
  const elements = [worst, ...others].filter((element) => element);
  column.append(elementsTable(elements, row, look.side));
  if (!spread) {
    column.append(make("p", { class: "note" }, "How it is spread was not kept for this field."));
    return column;
  }
  const { data } = look;
  const sizes = decodeSigns(spread[0], data);
  if (sizes.some((count) => count > 0)) column.append(histogram(sizes, data, look));
  const positions = decodeSigns(spread[1], data);
  const heads = decodeSigns(spread[2], data);
  const length = lengthOf(row, "T");
  const step = Math.ceil(length / data.stretches) || 1;
  const start = worst && worst[1] !== null ? worst[1] - indexOf(worst, row, "T") : 0;
  const stretch = (i) => {
    const at = start + i * step;
    return step > 1 ? `positions ${at} to ${start + Math.min((i + 1) * step, length) - 1}` : `position ${at}`;
  };
  if (positions.length > 1) column.append(strip("By position", positions, stretch, look));
  const head = row.axes.includes("H") ? "head" : "kv head";
  if (heads.length > 1) column.append(strip(`By ${head}`, heads, (i) => `${head} ${i}`, look));
  return column;
}

// Index and position from a flat index into what was compared: the tap, or its last positions.
function unravel(flat, row, worst) {
  const sizes = Array.from(row.axes, (axis) => lengthOf(row, axis));
  const at = row.axes.indexOf("T");
  const total = sizes.reduce((product, size) => product * size, 1);
  const skipped = at < 0 || !row.count ? 0 : Math.round(sizes[at] * (1 - row.count / total));
  if (at >= 0) sizes[at] -= skipped;
  const index = [];
  let rest = flat;
  for (const size of sizes.toReversed()) {
    index.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  if (at < 0) return [index, null];
  index[at] += skipped;
  const start = worst[1] === null ? null : worst[1] - indexOf(worst, row, "T");
  return [index, start === null ? null : start + index[at]];
}

function lengthOf(row, axis) {
  const found = new RegExp(`\\b${axis}=(\\d+)`).exec(row.shape);
  return found ? Number(found[1]) : 0;
}

function indexOf(element, row, axis) {
  const at = row.axes.indexOf(axis);
  return at < 0 ? 0 : element[0][at];
}

function rowsTable(rows) {
  const line = ([name, text]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, text));
  return make("table", { class: "rows" }, make("tbody", {}, rows.map(line)));
}

function elementsTable(elements, row, side) {
  const seen = new Set();
  const lines = [];
  for (const [index, position, reference, candidate] of elements) {
    const place = Array.from(row.axes, (axis, i) => `${axis}=${axis === "T" && position !== null ? position : index[i]}`);
    const where = place.join(", ") || "-";
    if (seen.has(where)) continue;
    seen.add(where);
    const left = toNumber(reference);
    const right = toNumber(candidate);
    const off = left === null || right === null ? null : right - left;
    const cells = [sayValue(reference), sayValue(candidate), sayNumber(off)];
    lines.push(make("tr", {}, make("th", { scope: "row" }, where), cells.map((text) => make("td", { class: "num" }, text))));
  }
  if (!lines.length) return make("div", {});
  const heads = ["worst elements", side, "candidate", "off by"];
  const head = make("tr", {}, heads.map((text, i) => make("th", { scope: "col", class: i ? "num" : null }, text)));
  return make("table", { class: "taps" }, make("thead", {}, head), make("tbody", {}, lines));
}

// How many of a sample are of which size; an octave a bar.
function histogram(counts, data, look) {
  const first = counts.findIndex((count) => count > 0);
  const most = Math.max(...counts);
  const shown = counts.slice(first);
  const width = 12;
  const height = 64;
  const bars = shown.map((count, i) => {
    const low = 2 ** (data.lowest + first + i);
    const tall = count ? Math.max(1, (count / most) * height) : 0;
    const words = `${first + i ? `${sayNumber(low, 2)} to ${sayNumber(2 * low, 2)}` : `below ${sayNumber(2 * low, 2)}`}: about ${sayNumber(count, 2)}`;
    const bar = { x: i * width, y: height - tall, width: width - 2, height: tall, class: `bar ${look.shade(2 * low)}` };
    return draw("rect", bar, draw("title", {}, words));
  });
  const low = sayNumber(2 ** (data.lowest + first), 2);
  const high = sayNumber(2 ** (data.lowest + counts.length), 2);
  const words = `Sizes of a sample of errors, an octave a bar, from ${low} to ${high}`;
  const box = { viewBox: `0 0 ${Math.max(1, shown.length) * width} ${height}`, class: "histogram", role: "img", "aria-label": words };
  return make("figure", {}, make("figcaption", {}, words), draw("svg", box, bars));
}

// The darkest box is the largest, each shade before it half of that.
function strip(title, values, name, look) {
  const largest = Math.max(...values);
  const most = 2 ** (look.data.lowest + (look.data.signs.length - 2) / 2); // that signs can say
  const about = (value) => `${value >= most ? "at least" : "about"} ${look.say(value)}`;
  const words = `${title}: largest at ${name(values.indexOf(largest))}, ${about(largest)}`;
  const cells = values.map((value, i) =>
    make("span", { class: shadeOf(value, largest / 128, 2), title: `${name(i)}: ${about(value)}` }),
  );
  return make("figure", {}, make("figcaption", {}, words), make("div", { class: "strip", role: "img", "aria-label": words }, cells));
}
