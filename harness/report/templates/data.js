// The data blocks: base64 of gzip of JSON, in columns; see page_data.py.

async function unpack(id) {
  const packed = document.getElementById(id).textContent.trim();
  return JSON.parse(await gunzip(toBytes(packed)));
}

// By reader and writer alone: blobs and responses go through other processes, and each step of theirs
// would wait behind the page that is still being read.
async function gunzip(bytes) {
  const { readable, writable } = new DecompressionStream("gzip");
  const writer = writable.getWriter();
  const written = Promise.all([writer.write(bytes), writer.close()]);
  written.catch(() => {}); // what is wrong with the bytes the reader says, too
  const reader = readable.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += decoder.decode(part.value, { stream: true });
  }
  await written;
  return text + decoder.decode();
}

function toBytes(packed) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(packed); // browsers of before 2025 lack it
  const signs = atob(packed);
  const bytes = new Uint8Array(signs.length); // a loop: a call for each sign takes four times as long
  for (let i = 0; i < signs.length; i += 1) bytes[i] = signs.charCodeAt(i);
  return bytes;
}

// All of the page has been read; the script runs before that.
function whenRead() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
}

// What fields of a prompt say beyond the map: unpacked when the first of them is opened.
class DetailBlocks {
  #blocks = new Map();

  get(prompt) {
    if (!this.#blocks.has(prompt)) this.#blocks.set(prompt, whenRead().then(() => unpack(`details-${prompt}`)));
    return this.#blocks.get(prompt);
  }
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

// What the map shows of one comparison, read from its columns.
function readRow(data, prompt, index) {
  const table = data.prompts[prompt].taps;
  return {
    prompt,
    index,
    tap: data.names[table.tap[index]],
    chunk: table.chunk[index],
    status: data.names[table.status[index]],
    note: data.names[table.note[index]],
    units: toNumber(table.units[index]),
    maxAbs: toNumber(table.max_abs[index]),
    magnitude: toNumber(table.magnitude[index]),
  };
}

// The same with all that is known of it.
async function readWhole(row, data) {
  if (row.pair) return row;
  const table = await data.details.get(row.prompt);
  const at = row.index;
  const name = (column) => data.names[table[column][at]];
  const number = (column) => toNumber(table[column][at]);
  return {
    ...row,
    op: name("op"),
    axes: name("axes"),
    shape: name("shape"),
    weights: table.weights[at],
    median: number("median"),
    error: number("error"),
    bound: number("bound"),
    over: table.over[at],
    inherited: table.inherited[at],
    ownWorst: table.own_worst[at],
    ownSpread: table.own_spread[at],
    meanAbs: number("mean_abs"),
    beyond: table.beyond[at],
    count: table.count[at],
    endWorst: table.end_worst[at],
    endSpread: table.end_spread[at],
  };
}

// The forward pass of a row, in words.
function passOf(row, data) {
  return data.prompts[row.prompt].chunks[row.chunk] ?? `pass ${row.chunk}`;
}

// Rows of one candidate, or of one pair of candidates, on one prompt or (-1) on all; `wanted` may
// leave out taps by the number of their name.
function selectRows(data, view, prompt, wanted = null) {
  const rows = [];
  data.prompts.forEach((one, at) => {
    if (prompt >= 0 && at !== prompt) return;
    if (view.b === undefined) {
      one.taps.candidate.forEach((who, index) => {
        if (who !== view.a || (wanted && !wanted.has(one.taps.tap[index]))) return;
        rows.push(readRow(data, at, index));
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
