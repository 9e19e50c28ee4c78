// Error growth through the depth: the residual stream after each layer, and the band of rounding.

const RESIDUAL = ["embed", "attn.out", "mlp.out", "resid_mid", "resid_post"];

// Rounding units of a healthy op; see docs/rounding.md.
const HEALTHY = 8;

// Of one candidate: [depth, max abs] and, where its dtype is known, [depth, band].
function growthOf(data, candidate, roundoff, prompt, chunk) {
  const errors = new Map();
  const units = new Map();
  for (const row of selectRows(data, { a: candidate }, prompt)) {
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
  const values = [...drawn.flatMap(({ line }) => line), ...band].map(([, v]) => v).filter((v) => v > 0 && Number.isFinite(v));
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values))));
  const depths = drawn.flatMap(({ line }) => line.map(([depth]) => depth));
  const deepest = Math.max(1, ...depths);
  const x = (depth) => 60 + (depth / deepest) * 720;
  const y = (value) => {
    const at = value > 0 ? Math.log10(Number.isFinite(value) ? value : 10 ** high) : low;
    return 20 + ((high - Math.min(high, Math.max(low, at))) / (high - low)) * 210;
  };
  const path = (points) => points.map(([depth, value]) => `${x(depth).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  if (band.length) {
    const floor = `${x(band.at(-1)[0])},230 ${x(band[0][0])},230`;
    svg.append(draw("polygon", { class: "band", points: `${path(band)} ${floor}` }));
  }
  const every = Math.ceil((high - low) / 8);
  for (let power = low; power <= high; power += every) {
    svg.append(draw("line", { class: "rule", x1: 60, x2: 780, y1: y(10 ** power), y2: y(10 ** power) }));
    svg.append(draw("text", { x: 54, y: y(10 ** power) + 4, "text-anchor": "end" }, `1e${power}`));
  }
  const step = Math.ceil(deepest / 16);
  for (let depth = 0; depth <= deepest; depth += step) {
    svg.append(draw("text", { x: x(depth), y: 248, "text-anchor": "middle" }, depth ? String(depth - 1) : "embed"));
  }
  for (const one of drawn) {
    svg.append(draw("polyline", { class: `line ${one.style}${one.chosen ? " chosen" : ""}`, points: path(one.line) }));
    for (const [depth, value] of one.line) {
      const words = `${one.name}, ${depth ? `layer ${depth - 1}` : "embed"}: ${sayNumber(value)}`;
      svg.append(draw("circle", { class: one.style, cx: x(depth), cy: y(value), r: 2.5 }, draw("title", {}, words)));
    }
  }
  const last = (one) => `${one.name}: ${sayNumber(one.line.at(-1)[1])} after the last layer`;
  svg.setAttribute("aria-label", `Largest error of the residual stream by layer, log scale. ${drawn.map(last).join("; ")}`);
  const key = (one) =>
    make("li", {}, draw("svg", { viewBox: "0 0 30 8", class: "key", "aria-hidden": "true" }, draw("line", { class: `line ${one.style}`, x1: 0, x2: 30, y1: 4, y2: 4 })), ` ${last(one)}`);
  legend.replaceChildren(make("ul", {}, drawn.map(key)));
}
