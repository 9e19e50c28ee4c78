// Elements and numbers. Text goes in as text nodes only: nothing here reads markup.

const SVG = document.getElementById("growth").namespaceURI;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 }); // made once: it takes long

function significant(value, most) {
  const size = Math.abs(value);
  if (size >= 100 && size < 1e5) return GROUPED.format(Math.round(value));
  const rounded = Number(value.toPrecision(most));
  const text = String(rounded);
  return size >= 1e5 || text.length > most + 4 ? toPower(rounded) : text;
}

function toPower(value, most) {
  return value.toExponential(most).replace("e+", "e");
}

function sayNumber(value, most = 3) {
  if (value === null || value === undefined) return "-";
  return Number.isFinite(value) ? significant(value, most) : String(value).toLowerCase();
}

function sayUnits(value) {
  if (value === null || !Number.isFinite(value)) return sayNumber(value);
  if (value === 0) return "0";
  if (Math.abs(value) >= 1e7) return toPower(value, 1);
  return Math.abs(value) >= 1000 ? GROUPED.format(Math.round(value)) : value.toFixed(1);
}

// Nine digits, to be compared one by one.
function sayValue(value) {
  const number = toNumber(value);
  return number === null ? "-" : Number.isFinite(number) ? String(Number(number.toPrecision(9))) : String(value);
}

// A shade of one hue: up to `low` the lightest, one more for each `factor`, eight in all.
function shadeOf(value, low, factor) {
  if (value === null) return "none";
  if (!Number.isFinite(value)) return "g7";
  if (value <= low) return "g0";
  return `g${Math.min(7, Math.ceil(Math.log(value / low) / Math.log(factor) - 1e-9))}`;
}

// The shades of harness/report/layer_map.py: they change side at 1.
function shadeOfLimit(ratio) {
  if (ratio === null) return "none";
  if (!(ratio <= 1)) {
    return `x${Number.isFinite(ratio) ? Math.min(2, Math.floor(Math.log(ratio) / Math.log(16))) : 2}`;
  }
  return `u${ratio > 0 ? Math.max(0, 5 - Math.floor(Math.log2(1 / ratio))) : 0}`;
}
