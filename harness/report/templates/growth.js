// Error growth through the depth: the residual stream after each layer, and the band of rounding.

const RESIDUAL = ["embed", "attn.out", "mlp.out", "resid_mid", "resid_post"];

// Rounding units of a healthy op; see docs/rounding.md.
const HEALTHY = 8;

function residualNames(data) {
  data.residual ??= new Set([...data.names.keys()].filter((i) => RESIDUAL.includes(splitTap(data.names[i]).kind)));
  return data.residual;
}

// Of one candidate: [depth, max abs] and, where its dtype is known, [depth, band].
function growthOf(data, candidate, roundoff, prompt, chunk) {
  const errors = new Map();
  const units = new Map();
  for (const row of selectRows(data, { a: candidate }, prompt, residualNames(data))) {
    if ((chunk >= 0 && row.chunk !== chunk) || row.maxAbs === null) continue;
    const { layer, kind } = splitTap(row.tap);
    const depth = layer === null ? 0 : layer + 1;
    if (kind === "resid_post" || kind === "embed") errors.set(depth, Math.max(errors.get(depth) ?? 0, row.maxAbs));
    if (RESIDUAL.includes(kind)) {
      const most = units.get(row.tap)?.[1] ?? 0;
      units.set(row.tap, [depth, Math.max(most, row.magnitude ?? 0)]);
    }
  }
  const line = [...errors].sort((a, b) => a[0] - b[0]);
  if (!roundoff) return { line, band: [] };
  let sum = 0;
  const band = line.map(([depth]) => {
    for (const [at, magnitude] of units.values()) if (at === depth) sum += HEALTHY * roundoff * magnitude;
    return [depth, sum];
  });
  return { line, band };
}

// Where a depth and a size are in the picture; sizes by powers of ten.
function growthScale(values, deepest) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const x = (depth) => 60 + (depth / deepest) * 720;
  const y = (value) => {
    const power = value > 0 ? Math.log10(Number.isFinite(value) ? value : 10 ** high) : low;
    return 20 + ((high - Math.min(high, Math.max(low, power))) / (high - low)) * 210;
  };
  const path = (points) => points.map(([depth, value]) => `${x(depth).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return { low, high, deepest, x, y, path };
}

function growthAxes({ low, high, deepest, x, y }) {
  const marks = [];
  for (let power = low; power <= high; power += Math.ceil((high - low) / 8)) {
    const at = y(10 ** power);
    marks.push(draw("line", { class: "rule", x1: 60, x2: 780, y1: at, y2: at }));
    marks.push(draw("text", { x: 54, y: at + 4, "text-anchor": "end" }, `1e${power}`));
  }
  for (let depth = 0; depth <= deepest; depth += Math.ceil(deepest / 16)) {
    const name = depth ? String(depth - 1) : "embed";
    marks.push(draw("text", { x: x(depth), y: 248, "text-anchor": "middle" }, name));
  }
  return marks;
}

function growthLine(one, { x, y, path }) {
  const style = `line ${one.style}${one.chosen ? " chosen" : ""}`;
  const points = one.line.map(([depth, value]) => {
    const words = `${one.name}, ${depth ? `layer ${depth - 1}` : "embed"}: ${sayNumber(value)}`;
    return draw("circle", { class: one.style, cx: x(depth), cy: y(value), r: 2.5 }, draw("title", {}, words));
  });
  return [draw("polyline", { class: style, points: path(one.line) }), ...points];
}

function growthKey(one, words) {
  const line = draw("line", { class: `line ${one.style}`, x1: 0, x2: 30, y1: 4, y2: 4 });
  return make("li", {}, draw("svg", { viewBox: "0 0 30 8", class: "key", "aria-hidden": "true" }, line), ` ${words}`);
}

function showGrowth(svg, legend, data, chosen, prompt, chunk) {
  const series = data.candidates.map(([number, roundoff], i) => ({
    name: data.names[number],
    style: `line${i % 4}`,
    chosen: number === chosen,
    ...growthOf(data, number, roundoff, prompt, chunk),
  }));
  const drawn = series.filter(({ line }) => line.some(([, value]) => value > 0));
  svg.replaceChildren();
  svg.toggleAttribute("hidden", !drawn.length);
  if (!drawn.length) {
    legend.replaceChildren(make("p", {}, "No errors of the residual stream (embed, resid_post) to draw."));
    return;
  }
  const band = (drawn.find((one) => one.chosen) ?? drawn[0]).band.filter(([, value]) => value > 0);
  const points = [...drawn.flatMap(({ line }) => line), ...band];
  const values = points.map(([, value]) => value).filter((value) => value > 0 && Number.isFinite(value));
  const scale = growthScale(values.length ? values : [1], Math.max(1, ...points.map(([depth]) => depth)));
  if (band.length) {
    const floor = `${scale.x(band.at(-1)[0])},230 ${scale.x(band[0][0])},230`;
    svg.append(draw("polygon", { class: "band", points: `${scale.path(band)} ${floor}` }));
  }
  svg.append(...growthAxes(scale), ...drawn.flatMap((one) => growthLine(one, scale)));
  const last = (one) => `${one.name}: ${sayNumber(one.line.at(-1)[1])} after the last layer`;
  const said = drawn.map(last);
  svg.setAttribute("aria-label", `Largest error of the residual stream by layer, log scale. ${said.join("; ")}`);
  legend.replaceChildren(make("ul", {}, drawn.map((one, i) => growthKey(one, said[i]))));
}
