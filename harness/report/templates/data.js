// The data block: base64 of gzip of JSON, in columns; see page_data.py.

async function unpack() {
  const packed = document.getElementById("data").textContent.trim();
  const signs = atob(packed);
  const bytes = new Uint8Array(signs.length); // a loop: a call for each sign takes four times as long
  for (let i = 0; i < signs.length; i += 1) bytes[i] = signs.charCodeAt(i);
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(plain).text());
}

// NaN and infinity are text in JSON.
function toNumber(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? NaN;
}

// Sizes from signs; see harness/spread.py.
function decodeSigns(signs, data) {
  return Array.from(signs, (sign) => {
    const step = data.signs.indexOf(sign);
    return step > 0 ? 2 ** (data.lowest + (step - 1) / 2) : 0;
  });
}

function splitTap(name) {
  const found = /^layers\.(\d+)\.(.+)$/s.exec(name);
  return found ? { layer: Number(found[1]), kind: found[2] } : { layer: null, kind: name };
}

// One comparison, read from its columns.
function readRow(data, prompt, index) {
  const table = data.prompts[prompt].taps;
  const name = (column) => data.names[table[column][index]];
  const number = (column) => toNumber(table[column][index]);
  return {
    prompt,
    tap: name("tap"),
    candidate: name("candidate"),
    chunk: table.chunk[index],
    op: name("op"),
    axes: name("axes"),
    shape: name("shape"),
    status: name("status"),
    note: name("note"),
    weights: table.weights[index],
    units: number("units"),
    median: number("median"),
    error: number("error"),
    bound: number("bound"),
    over: table.over[index],
    inherited: table.inherited[index],
    ownWorst: table.own_worst[index],
    ownSpread: table.own_spread[index],
    maxAbs: number("max_abs"),
    meanAbs: number("mean_abs"),
    magnitude: number("magnitude"),
    beyond: table.beyond[index],
    count: table.count[index],
    endWorst: table.end_worst[index],
    endSpread: table.end_spread[index],
  };
}

// The forward pass of a row, in words.
function passOf(row, data) {
  return data.prompts[row.prompt].chunks[row.chunk] ?? `pass ${row.chunk}`;
}

// Rows of one candidate, or of one pair of candidates, on one prompt or (-1) on all.
function selectRows(data, view, prompt) {
  const rows = [];
  data.prompts.forEach((one, at) => {
    if (prompt >= 0 && at !== prompt) return;
    if (view.b === undefined) {
      one.taps.candidate.forEach((who, index) => {
        if (who === view.a) rows.push(readRow(data, at, index));
      });
      return;
    }
    one.pairs.a.forEach((who, index) => {
      if (who !== view.a || one.pairs.b[index] !== view.b) return;
      rows.push({
        prompt: at,
        tap: data.names[one.pairs.tap[index]],
        chunk: one.pairs.chunk[index],
        status: "compared",
        maxAbs: toNumber(one.pairs.max_abs[index]),
        meanAbs: toNumber(one.pairs.mean_abs[index]),
        units: null,
        magnitude: null,
        note: "",
        pair: true,
      });
    });
  });
  return rows;
}
