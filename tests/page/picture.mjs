// Draws the built-in page as an SVG: node picture.mjs CHROMIUM FILE.svg URL
// A server runs at the URL; clients/run.sh starts one. The page is what the browser laid out: boxes, texts, the strip.
import { writeFileSync } from "node:fs";
import { Browser, eventually, pause } from "./browser.mjs";

const [chromium, file, url] = process.argv.slice(2);
const kSize = { width: 1240, height: 850 };
const kStory = `The harbour opens at six. The first boats bring fish, the next ones mail and newspapers. A clerk writes every
name into a long book and puts a stamp beside it. The access code for Silver Falcon is 4821. At nine the market begins
on the square behind the tower, where farmers sell apples, cheese and bread. The baker tells the same story every week,
and nobody minds. Rain comes in the afternoon and the children run under the roof of the old station. A train waits
there for the teacher, who carries two bags of books and a small green lamp. In the evening the lights go on along the
water. The captain counts the boats, closes the gate and hangs the key on its nail. Then it is quiet until the morning.
The clerk walks home past the mill, where the miller still works, and stops to talk about the weather. They agree that
the wind will turn before the week is over, and that the summer was too short again.`.replaceAll("\n", " ");

// Runs in the page; the SVG's text.
function draw({ width, height }) {
  const parts = [];
  const round = (number) => Math.round(number * 10) / 10;
  const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const seen = (color) => color !== "transparent" && !/, 0\)$/.test(color);
  const element = (name, attributes, text) => {
    const list = Object.entries(attributes).map(([key, value]) => {
      return ` ${key}="${typeof value === "number" ? round(value) : escape(value)}"`;
    });
    parts.push(`<${name}${list.join("")}${text === undefined ? "/>" : `>${escape(text)}</${name}>`}`);
  };
  const measure = document.createElement("canvas").getContext("2d");

  function writeText(text, box, style, fill = style.color) {
    measure.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const y = box.top + measure.measureText("x").fontBoundingBoxAscent;
    const attributes = { x: box.left, y, fill, "font-size": parseFloat(style.fontSize) };
    if (Number(style.fontWeight) > 400) attributes["font-weight"] = style.fontWeight;
    if (style.fontFamily.includes("mono")) attributes.class = "mono";
    if (style.textDecorationLine !== "none") attributes["text-decoration"] = style.textDecorationLine;
    // Other fonts than the browser's must still fit.
    element("text", { ...attributes, textLength: box.right - box.left, lengthAdjust: "spacingAndGlyphs" }, text);
  }

  // The lines of a text node, as far as they lie in `clip`.
  function writeLines(node, style, clip) {
    let line = null;
    const end = () => {
      if (line && line.top >= clip.top - 1 && line.bottom <= clip.bottom + 1) writeText(line.text.trimEnd(), line, style);
      line = null;
    };
    for (const { 0: word, index } of node.data.matchAll(/\S+\s*/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.trimEnd().length);
      const box = range.getClientRects()[0];
      if (!box) continue;
      if (line && Math.abs(line.top - box.top) > 2) end();
      line ??= { text: "", left: box.left, top: box.top, bottom: box.bottom };
      line.text += word;
      line.right = box.right;
    }
    end();
  }

  function drawBox(box, style) {
    const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
      side,
      width: style[`border${side}Style`] === "none" ? 0 : parseFloat(style[`border${side}Width`]),
      color: style[`border${side}Color`],
      dash: style[`border${side}Style`] === "dashed",
    }));
    const whole = sides.every(({ width }) => width > 0);
    const fill = seen(style.backgroundColor) ? style.backgroundColor : "none";
    if (fill !== "none" || whole) {
      const inset = whole ? sides[0].width / 2 : 0;
      const shape = { x: box.left + inset, y: box.top + inset, width: box.width - 2 * inset, height: box.height - 2 * inset };
      const radius = parseFloat(style.borderTopLeftRadius);
      element("rect", { ...shape, ...(radius > 0 && { rx: radius }), fill, ...(whole && { stroke: sides[0].color }) });
    }
    for (const { side, width, color, dash } of whole ? [] : sides.filter(({ width }) => width > 0)) {
      const across = side === "Top" || side === "Bottom";
      const at = { Top: box.top, Bottom: box.bottom, Left: box.left + width / 2, Right: box.right }[side];
      const [x1, y1, x2, y2] = across ? [box.left, at, box.right, at] : [at, box.top, at, box.bottom];
      element("line", { x1, y1, x2, y2, stroke: color, "stroke-width": width, ...(dash && { "stroke-dasharray": "4 3" }) });
    }
    if (style.outlineStyle === "solid" && parseFloat(style.outlineWidth) > 0) {
      const shape = { x: box.left - 1, y: box.top - 1, width: box.width + 2, height: box.height + 2, rx: 3 };
      element("rect", { ...shape, fill: "none", stroke: style.outlineColor, "stroke-width": 2 });
    }
  }

  // Runs of pixels of about the same opacity, a path for each of eight levels.
  function drawCanvas(canvas, box) {
    const pixels = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
    pixels.drawImage(canvas, 0, 0);
    const { data } = pixels.getImageData(0, 0, canvas.width, canvas.height);
    const level = (x, y) => Math.ceil(data[4 * (y * canvas.width + x) + 3] / 32);
    const paths = Array(9).fill("");
    for (let y = 0; y < canvas.height; ++y) {
      for (let x = 0, end; x < canvas.width; x = end) {
        for (end = x + 1; end < canvas.width && level(end, y) === level(x, y); ) ++end;
        paths[level(x, y)] += `M${x} ${y}h${end - x}v1h${x - end}z`;
      }
    }
    const scale = `${box.width / canvas.width} ${box.height / canvas.height}`;
    const transform = `translate(${round(box.left)} ${round(box.top)}) scale(${scale})`;
    const fill = getComputedStyle(canvas).color;
    paths.forEach((d, i) => i > 0 && d && element("path", { d, fill, "fill-opacity": i / 8, transform }));
  }

  function drawElement(node, clip) {
    const style = getComputedStyle(node);
    const box = node.getBoundingClientRect();
    if (style.display === "none" || style.visibility === "hidden") return;
    if (node.tagName === "CANVAS") return drawCanvas(node, box);
    const inside = (part) => part.bottom > clip.top && part.top < clip.bottom && part.bottom <= clip.bottom + 1;
    if (node !== document.body) [...node.getClientRects()].filter(inside).forEach((part) => drawBox(part, style));
    if (style.overflowY === "auto") clip = box;
    if (getComputedStyle(node, "::before").content === '""') {
      const size = parseFloat(style.fontSize) * 0.6;
      const y = box.top + (box.height - size) / 2;
      element("rect", { x: box.left, y, width: size, height: size, fill: getComputedStyle(node, "::before").backgroundColor });
    }
    const shown = node.tagName === "SELECT" ? node.selectedOptions[0]?.text : node.placeholder;
    if (shown) {
      const left = box.left + parseFloat(style.paddingLeft) + 1;
      measure.font = `${style.fontSize} ${style.fontFamily}`;
      const right = left + measure.measureText(shown).width;
      const { color } = getComputedStyle(node, node.placeholder ? "::placeholder" : null);
      return writeText(shown, { left, right, top: box.top + parseFloat(style.paddingTop) + 1 }, style, color);
    }
    const closed = node.tagName === "DETAILS" && !node.open;
    for (const child of closed ? node.querySelectorAll("summary") : node.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) writeLines(child, style, clip);
      else if (child.nodeType === Node.ELEMENT_NODE && !["SCRIPT", "OPTION"].includes(child.tagName)) drawElement(child, clip);
    }
  }

  element("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
  drawElement(document.body, { top: 0, bottom: height });
  const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif">`;
  return `${head}\n<style>.mono { font-family: ui-monospace, monospace }</style>\n${parts.join("\n")}\n</svg>\n`;
}

const page = await Browser.start(chromium);
await page.send("Emulation.setDeviceMetricsOverride", { ...kSize, deviceScaleFactor: 1, mobile: false });
await page.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: "light" }] });
await page.open(url);
const idle = () => page.evaluate('document.querySelector("#stop").hidden');
await page.evaluate('document.querySelector("#temperature").value = 0');
for (const words of ["Who are you?", `${kStory} What is the access code for Silver Falcon?`]) {
  await page.click("#input");
  await page.send("Input.insertText", { text: words });
  await page.click("#send");
  if (!(await eventually(idle))) throw new Error("the answer does not end");
}
// The step that writes the code, at the place where the text says it.
await page.evaluate(`document.activeElement.blur()`);
const ready = await eventually(() => page.evaluate('shown?.pieces.join("").includes("Falcon is")'));
if (!ready) throw new Error("the selection does not come");
await page.evaluate(`(() => {
  const { pieces, steps } = shown;
  const at = pieces.findIndex((_, i) => pieces.slice(0, i + 1).join("").includes("Falcon is 4"));
  moveTo(at, steps.findIndex(({ position }) => pieces[position + 1] === pieces[at] && position > at));
})()`);
await pause(2500); // the monitor looks again
writeFileSync(file, await page.evaluate(`(${draw})(${JSON.stringify(kSize)})`));
await page.close();
