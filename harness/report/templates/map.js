// The map: layer by tap, one button a field, arrow keys between them.

const MEASURES = {
  bound: {
    title: "local error, times the limit",
    local: true,
    value: (row, data) => (row.units === null ? null : row.units / data.limit),
    say: (value) => sayNumber(value, 2),
    shade: (value) => shadeOfLimit(value),
    legend: (data) => [
      ...[32, 16, 8, 4, 2, 1].map((part, i) => [`u${i}`, `${i ? "" : "up to "}${part > 1 ? `1/${part}` : "1"}`]),
      ["x0", `over the limit of ${sayNumber(data.limit)} units`],
      ["x1", "16 times over"],
      ["x2", "256 times over"],
    ],
  },
  units: {
    title: "local error, rounding units",
    local: true,
    value: (row) => row.units,
    say: sayUnits,
    low: 0.125,
    factor: 4,
  },
  absolute: {
    title: "end to end, absolute",
    value: (row) => row.maxAbs,
    say: (value) => sayNumber(value, 2),
    low: 1e-7,
    factor: 10,
  },
  scaled: {
    title: "end to end, share of the largest value",
    value: (row) => (row.maxAbs === null || !row.magnitude ? null : row.maxAbs / row.magnitude),
    say: (value) => sayNumber(value, 2),
    low: 1e-8,
    factor: 10,
  },
};
for (const measure of Object.values(MEASURES)) {
  const { low, factor } = measure;
  measure.shade ??= (value) => shadeOf(value, low, factor);
  measure.legend ??= () =>
    Array.from({ length: 8 }, (_, i) => [
      `g${i}`,
      i === 7 ? "more" : `${i ? "" : "up to "}${sayNumber(low * factor ** i, 2)}`,
    ]);
}

const overLimit = (value, measure) => measure === MEASURES.bound && !(value <= 1);

// The rank of a comparison among those of a field.
function rankRow(row, measure, data) {
  if (row.status === "unavailable") return [0, 0];
  if (row.status !== "compared") return [3, 0];
  const value = measure.value(row, data);
  if (value === null) return measure.local && row.maxAbs !== null ? [1, row.maxAbs] : [0, 1];
  const bad = overLimit(value, measure) || Number.isNaN(value);
  return [bad ? 2 : 1, Number.isNaN(value) ? Infinity : value];
}

// What a field shows of a comparison: its text, style and words.
function describeRow(row, measure, data) {
  if (row.status === "unavailable") {
    return { text: "\u00b7", style: "none", words: `cannot give it (${row.note})` };
  }
  if (row.status !== "compared") {
    const text = row.status === "not finite" ? "nan" : "!";
    const note = row.note ? ` (${row.note})` : "";
    return { text, style: "broken", words: row.status + note };
  }
  const value = measure.value(row, data);
  if (value === null && measure.local && row.maxAbs !== null) {
    const said = sayNumber(row.maxAbs, 2);
    return { text: said, style: "unreplayed", words: `not replayed; max abs ${said} end to end` };
  }
  if (value === null) return { text: "-", style: "none", words: "no number" };
  const units = row.units === null ? "" : `${sayUnits(row.units)} units, `;
  const end = row.maxAbs === null ? "" : `max abs ${sayNumber(row.maxAbs)} end to end`;
  const words = `${units}${end}${overLimit(value, measure) ? ", over the limit" : ""}`;
  return { text: measure.say(value), style: measure.shade(value), words };
}

// Fields by layer and kind; each holds all its comparisons, the worst first, which it shows.
function arrange(rows, measure, data, chunk) {
  const layers = new Map();
  const kinds = new Map();
  const outside = new Map();
  for (const row of rows) {
    if (chunk >= 0 && row.chunk !== chunk) continue;
    const { layer, kind } = splitTap(row.tap);
    const place = layer === null ? outside : layers.get(layer) ?? layers.set(layer, new Map()).get(layer);
    if (layer !== null) kinds.set(kind, true);
    const field = place.get(kind) ?? place.set(kind, { tap: row.tap, rows: [] }).get(kind);
    field.rows.push({ row, rank: rankRow(row, measure, data) });
  }
  const worse = (a, b) => b.rank[0] - a.rank[0] || b.rank[1] - a.rank[1];
  for (const place of [outside, ...layers.values()]) {
    for (const field of place.values()) {
      field.rows.sort(worse);
      field.shown = describeRow(field.rows[0].row, measure, data);
    }
  }
  const sorted = [...layers.keys()].sort((a, b) => a - b);
  return { layers: sorted.map((layer) => [layer, layers.get(layer)]), kinds: [...kinds.keys()], outside };
}

class LayerMap {
  constructor(table, onOpen) {
    this.table = table;
    this.onOpen = onOpen;
    this.buttons = [];
    table.addEventListener("keydown", (event) => this.move(event));
    table.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.onOpen(this.fields.get(button), button, event.detail === 0);
    });
  }

  show(arranged, data) {
    this.fields = new Map();
    this.buttons = [];
    const heads = arranged.kinds.map((kind) => make("th", { scope: "col" }, make("span", {}, kind)));
    const body = arranged.layers.map(([layer, fields]) => {
      const cells = arranged.kinds.map((kind) => this.cell(fields.get(kind), data));
      this.buttons.push(cells.map((cell) => cell.querySelector("button")));
      return make("tr", {}, make("th", { scope: "row" }, String(layer)), cells);
    });
    const outside = [...arranged.outside].map(([kind, field]) => {
      const cell = this.cell(field, data);
      cell.setAttribute("colspan", Math.max(1, arranged.kinds.length));
      this.buttons.push([cell.querySelector("button")]);
      return make("tr", {}, make("th", { scope: "row" }, kind), cell);
    });
    this.table.replaceChildren(
      make("caption", { class: "hidden" }, "Layer by tap. Arrow keys move, Enter opens the details of a field."),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", {}, "layer")), heads)),
      make("tbody", {}, body),
      make("tbody", { class: "outside" }, outside),
    );
    const first = this.buttons.flat().find((button) => button);
    if (first) first.tabIndex = 0;
  }

  cell(field, data) {
    if (!field) return make("td", { class: "absent" });
    const { rows: [{ row }], shown } = field;
    const where = `${passOf(row, data)} of ${data.prompts[row.prompt].name}`;
    const words = `${field.tap}: ${shown.words}; ${where}`;
    // The name holds the text that is seen, for those who speak to their computer.
    const name = { "aria-label": `${shown.text}, ${words}`, title: words };
    const button = make("button", { type: "button", tabindex: -1, ...name }, shown.text);
    button.dataset.tap = field.tap;
    this.fields.set(button, field);
    return make("td", { class: shown.style }, button);
  }

  // Where Tab enters the map.
  startAt(tap) {
    const buttons = [...this.fields.keys()];
    const found = buttons.find((button) => button.dataset.tap === tap);
    if (found) for (const button of buttons) button.tabIndex = button === found ? 0 : -1;
  }

  focus(button) {
    for (const other of this.fields.keys()) other.tabIndex = other === button ? 0 : -1;
    button.focus();
  }

  move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const jumps = { Home: 0, End: -1 };
    const y = this.buttons.findIndex((line) => line.includes(event.target));
    if (y < 0 || !(event.key in steps || event.key in jumps)) return;
    event.preventDefault();
    const x = this.buttons[y].indexOf(event.target);
    const target = event.key in jumps
      ? this.buttons[y].filter((button) => button).at(jumps[event.key])
      : this.next(y, x, ...steps[event.key]);
    if (!target) return;
    this.focus(target);
    this.onMove?.(this.fields.get(target), target);
  }

  // The next field in a direction; fields that a layer lacks are passed over.
  next(y, x, down, right) {
    for (let i = 1; ; i += 1) {
      const line = this.buttons[y + down * i];
      if (!line) return null;
      const at = down ? Math.min(x, line.length - 1) : x + right * i;
      if (at < 0 || at >= line.length) return null;
      if (line[at]) return line[at];
    }
  }
}
