// Puts the parts together once the data is there.

function addOptions(select, options) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
}

function viewsOf(data) {
  const views = data.candidates.map(([a]) => ({ a }));
  const pairs = new Map();
  for (const { pairs: { a, b } } of data.prompts) {
    a.forEach((who, i) => pairs.set(`${who} ${b[i]}`, { a: who, b: b[i] }));
  }
  return [...views, ...pairs.values()];
}

// The details of a field: opened by a click or Enter, closed by Escape, following the arrow keys.
class Details {
  constructor(panel, table, data) {
    this.panel = panel;
    this.data = data;
    this.map = new LayerMap(table, (field, button, byKey) => {
      this.map.focus(button);
      const heading = this.show(field, button);
      if (byKey) heading.focus();
    });
    this.map.onMove = (field, button) => {
      if (!panel.hidden) this.show(field, button);
    };
    for (const place of [panel, table]) {
      place.addEventListener("keydown", (event) => {
        if (event.key === "Escape" && !panel.hidden) this.close();
      });
    }
  }

  show(field, button) {
    this.opened?.removeAttribute("aria-current");
    this.opened = button;
    button.setAttribute("aria-current", "true");
    return showDetail(this.panel, field, this.data, () => this.close());
  }

  close() {
    this.panel.hidden = true;
    this.opened?.removeAttribute("aria-current");
    if (this.opened?.isConnected) this.map.focus(this.opened);
  }
}

function showLegend(place, measure, data) {
  place.replaceChildren(
    `${measure.title}: `,
    ...measure.legend(data).map(([style, text]) => make("span", { class: style }, text)),
    make("span", { class: "none" }, "\u00b7 cannot give"),
    make("span", { class: "unreplayed" }, "not replayed (max abs)"),
    make("span", { class: "broken" }, "! missing, misshapen or not finite"),
  );
}

function startExplorer(data) {
  const by = (id) => document.getElementById(id);
  const [viewBox, promptBox, chunkBox, measureBox] = ["view", "prompt", "chunk", "measure"].map(by);
  const views = viewsOf(data);
  const details = new Details(by("detail"), by("map-table"), data);
  const nameOf = ({ a, b }) => `${data.names[a]} against ${b === undefined ? data.against : data.names[b]}`;
  addOptions(viewBox, views.map((view, i) => [i, nameOf(view)]));
  addOptions(promptBox, [...data.prompts.map(({ name }, i) => [i, name]), [-1, "worst of all prompts"]]);
  addOptions(measureBox, Object.entries(MEASURES).map(([name, { title }]) => [name, title]));
  if (data.start) {
    viewBox.value = views.findIndex(({ a, b }) => a === data.start.candidate && b === undefined);
    promptBox.value = data.start.prompt;
  }
  function showChunks() {
    const names = data.prompts[Number(promptBox.value)]?.chunks ?? [];
    addOptions(chunkBox, [[-1, "worst of all"], ...names.map((name, i) => [i, name])]);
  }
  function show() {
    const view = views[Number(viewBox.value)] ?? { a: -1 };
    const pair = view.b !== undefined; // of which only end to end differences are known
    for (const option of measureBox.options) option.disabled = pair && option.value !== "absolute";
    if (pair) measureBox.value = "absolute";
    const measure = MEASURES[measureBox.value];
    const [prompt, chunk] = [Number(promptBox.value), Number(chunkBox.value)];
    by("detail").hidden = true;
    details.map.show(arrange(selectRows(data, view, prompt), measure, data, chunk), data);
    showLegend(by("map-legend"), measure, data);
    showGrowth(by("growth"), by("growth-legend"), data, view.a, prompt, chunk);
  }
  promptBox.addEventListener("change", showChunks);
  for (const box of [viewBox, promptBox, chunkBox, measureBox]) box.addEventListener("change", show);
  showChunks();
  show();
  if (data.start) details.map.startAt(data.names[data.start.tap]);
}

// Tokens can be shaded by any pair of engines; the page comes with the worst one.
function startTokens(data) {
  for (const place of document.querySelectorAll(".shaded")) {
    const { logits, shaded_by: at } = data.prompts[Number(place.dataset.prompt)];
    if (logits.length < 2) continue;
    const select = make("select", {}, logits.map(([a, b], i) => make("option", { value: i }, `${data.names[a]} and ${data.names[b]}`)));
    select.value = at;
    select.addEventListener("change", () => {
      const [a, b, , errors] = logits[Number(select.value)];
      const found = new Map(errors.map(([row, column, error]) => [`${row}:${column}`, toNumber(error)]));
      for (const token of place.querySelectorAll("[data-at]")) {
        const error = found.get(token.dataset.at) ?? null;
        token.classList.remove(...Array.from({ length: 8 }, (_, i) => `g${i}`));
        if (error !== null) token.classList.add(shadeOf(error, 1e-7, 10));
        const said = error === null ? "" : `; logits of ${data.names[a]} and ${data.names[b]} differ by ${sayNumber(error)}`;
        token.title = token.title.split("; logits of ")[0] + said;
      }
    });
    place.prepend(make("label", { class: "by" }, "Shaded by the difference between the logits of ", select));
  }
}

async function start() {
  const explorer = document.getElementById("explorer");
  try {
    const data = await unpack("data");
    data.details = new DetailBlocks();
    startExplorer(data);
    explorer.hidden = false;
    document.documentElement.dataset.ready = "map";
    await whenRead();
    startTokens(data);
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    explorer.hidden = true;
    delete document.documentElement.dataset.ready;
    document.getElementById("trouble").textContent =
      `The interactive map cannot be drawn here (${error.message}). The maps below are of each candidate's worst prompt.`;
  }
}

start();
