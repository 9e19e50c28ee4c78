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

function startExplorer(data) {
  const by = (id) => document.getElementById(id);
  const [viewBox, promptBox, chunkBox, measureBox] = ["view", "prompt", "chunk", "measure"].map(by);
  const views = viewsOf(data);
  const against = data.against;
  const nameOf = ({ a, b }) => `${data.names[a]} against ${b === undefined ? against : data.names[b]}`;
  addOptions(viewBox, views.map((view, i) => [i, nameOf(view)]));
  addOptions(promptBox, [...data.prompts.map(({ name }, i) => [i, name]), [-1, "worst of all prompts"]]);
  addOptions(measureBox, Object.entries(MEASURES).map(([name, { title }]) => [name, title]));
  if (data.start) {
    viewBox.value = views.findIndex(({ a, b }) => a === data.start.candidate && b === undefined);
    promptBox.value = data.start.prompt;
  }
  const panel = by("detail");
  let opened = null;
  const map = new LayerMap(by("map-table"), (field, button, byKey) => {
    opened = button;
    map.focus(button);
    const heading = showDetail(panel, field, data, close);
    for (const other of map.fields.keys()) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    if (byKey) heading.focus();
  });
  map.onMove = (field, button) => {
    if (!panel.hidden) {
      opened = button;
      showDetail(panel, field, data, close);
    }
  };
  function close() {
    panel.hidden = true;
    if (opened?.isConnected) map.focus(opened);
  }
  panel.addEventListener("keydown", (event) => event.key === "Escape" && close());
  by("map-table").addEventListener("keydown", (event) => event.key === "Escape" && close());

  function showChunks() {
    const shown = Number(promptBox.value);
    const names = shown < 0 ? [] : data.prompts[shown]?.chunks ?? [];
    addOptions(chunkBox, [[-1, "worst of all"], ...names.map((name, i) => [i, name])]);
  }
  function show() {
    const view = views[Number(viewBox.value)] ?? { a: -1 };
    const pair = view.b !== undefined;
    for (const option of measureBox.options) option.disabled = pair && option.value !== "absolute";
    if (pair) measureBox.value = "absolute";
    const measure = MEASURES[measureBox.value];
    const [prompt, chunk] = [Number(promptBox.value), Number(chunkBox.value)];
    map.show(arrange(selectRows(data, view, prompt), measure, data, chunk), data);
    by("map-legend").replaceChildren(
      `${measure.title}: `,
      ...measure.legend(data).map(([style, text]) => make("span", { class: style }, text)),
      make("span", { class: "none" }, "\u00b7 cannot give"),
      make("span", { class: "unreplayed" }, "not replayed (max abs)"),
      make("span", { class: "broken" }, "! missing, misshapen or not finite"),
    );
    panel.hidden = true;
    showGrowth(by("growth"), by("growth-legend"), data, view.a, prompt, chunk);
  }
  promptBox.addEventListener("change", showChunks);
  for (const box of [viewBox, promptBox, chunkBox, measureBox]) box.addEventListener("change", show);
  showChunks();
  show();
  const culprit = data.start && map.find(data.names[data.start.tap]);
  if (culprit) {
    for (const other of map.fields.keys()) other.tabIndex = other === culprit ? 0 : -1;
  }
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
    const data = await unpack();
    startExplorer(data);
    startTokens(data);
  } catch (error) {
    document.getElementById("trouble").textContent =
      `The interactive map cannot be drawn here (${error.message}). The maps below are of each candidate's worst prompt.`;
    return;
  }
  explorer.hidden = false;
  document.getElementById("static-maps").classList.add("print-only");
  document.documentElement.dataset.ready = "yes";
}

start();
