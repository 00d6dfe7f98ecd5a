// The built-in page as a user meets it: a real server, a real browser, real keys and clicks.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { Browser, eventually, pause } from "./browser.mjs";

const [chromium, binary, screenshot] = process.argv.slice(2);
const kChat = "/v1/chat/completions";
const kFact = "The access code for Silver Falcon is 4821.";
const kQuestion = `${kFact} What is the access code for Silver Falcon?`;
const kLongText = readFileSync(new URL("../../tools/examples/long.txt", import.meta.url), "utf8");
const kDeadline = 280; // seconds; no process stays behind when a check hangs

let failures = 0;
function check(name, passed, detail = "") {
  console.log(`${passed ? "ok  " : "FAIL"} ${name}${passed || detail === "" ? "" : `: ${detail}`}`);
  if (!passed) ++failures;
}

// ---- The server ----

const server = spawn(binary, ["--serve", "--port", "0", "--max-context", "4096"], {
  stdio: ["ignore", "ignore", "pipe"],
});
const serverEnded = new Promise((resolve) => server.once("close", (code, signal) => resolve(code ?? signal)));
let serverLog = "";
server.stderr.setEncoding("utf8").on("data", (text) => (serverLog += text));
server.once("error", (error) => (serverLog += error.message));

async function serverAddress() {
  const ready = () => serverLog.match(/is ready at (http:\/\/127\.0\.0\.1:\d+)/)?.[1];
  const address = await Promise.race([eventually(ready), serverEnded.then(() => null)]);
  if (!address) throw new Error(`the server did not get ready: ${serverLog}`);
  return address;
}
const serverSays = async (path) => (await fetch(address + path)).json();

// ---- What a user does and sees ----

const see = (expression) => page.evaluate(expression);
const query = (selector) => `document.querySelector(${JSON.stringify(selector)})`;
const text = (selector) => see(`${query(selector)}?.innerText ?? ""`);
const lastAnswer = () => see(`[...document.querySelectorAll("#log .answer .content")].at(-1)?.innerText ?? ""`);
const lastNote = () => see(`[...document.querySelectorAll("#log .answer .note")].at(-1)?.innerText ?? ""`);
const idle = () => see(`${query("#stop")}.hidden`);
const chatRequests = () => page.requests.filter(({ url }) => url.endsWith(kChat));
const lastBody = () => JSON.parse(chatRequests().at(-1).postData);

async function fill(selector, value) {
  await see(`${query("#settings")}.open = true`);
  await page.click(selector);
  await see(`${query(selector)}.select()`);
  await page.type(value);
  await see(`${query("#settings")}.open = false`);
}

// Sends a text with the mouse, long ones pasted, and waits for the end of its answer.
async function ask(words) {
  await page.click("#input");
  if (words.length < 300) await page.type(words);
  else await page.send("Input.insertText", { text: words });
  await page.click("#send");
  return eventually(idle);
}

// What is drawn: the size in pixels, the colour of the first selected one, the opacity of each, row by row. Read from a
// copy: reading a canvas itself often makes the browser warn.
const strip = () =>
  see(`(() => {
  const { width, height } = ${query("#canvas")};
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(${query("#canvas")}, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  const opacity = Array.from({ length: width * height }, (_, i) => data[4 * i + 3]);
  const first = 4 * opacity.findIndex((value) => value === 255);
  return { width, height, color: [...data.slice(first, first + 3)].join(), opacity };
})()`);

// Takes the failures that a check has provoked out of those that must not be.
function provoked(pattern) {
  const before = page.problems.length;
  page.problems = page.problems.filter((problem) => !pattern.test(problem));
  return page.problems.length < before;
}

const events = (...data) =>
  data.map((entry) => `data: ${typeof entry === "string" ? entry : JSON.stringify(entry)}\n\n`).join("");
const delta = (fields) => ({ id: "chatcmpl-x", choices: [{ index: 0, delta: fields, finish_reason: null }] });
const pretendAnswer = (...data) =>
  page.pretend({ path: kChat, answer: () => ({ status: 200, type: "text/event-stream", body: events(...data) }) });
// The server's own answer, going on as long as it may.
const makeLong = () =>
  page.pretend({
    path: kChat,
    answer: ({ postData }) => ({
      postData: JSON.stringify({ ...JSON.parse(postData), ignore_eos: true, max_tokens: 3500 }),
    }),
  });

// ---- The checks ----

async function chatByMouse() {
  await page.open(address);
  check("the page loads", (await see("document.title")) === "Strata");
  check("the state gets ready", await eventually(async () => (await text("#state")) === "ready"), await text("#state"));
  const status = await serverSays("/v1/status");
  check("the model is named", (await text("#model")).startsWith(status.model), await text("#model"));
  await fill("#temperature", "0");
  await fill("#max_tokens", "40");
  check("an answer ends", await ask(kQuestion));
  check("the answer is right", (await lastAnswer()).includes("4821"), await lastAnswer());
  check("the question is shown", (await text("#log .user .text")) === kQuestion);
  check(
    "the rate and the usage are shown",
    /[\d.]+ tok\/s . answer \d+ tokens . prompt \d+/.test(await lastNote()),
    await lastNote(),
  );
  check("the settings are sent", lastBody().temperature === 0 && lastBody().max_tokens === 40);
  await ask("And again?");
  const roles = lastBody()
    .messages.map(({ role }) => role)
    .join(" ");
  check("the second turn brings the first", roles === "user assistant user", roles);
  check("both answers stay", (await see(`document.querySelectorAll("#log .answer .content").length`)) === 2);
}

async function selectionView() {
  const asked = () => page.requests.filter(({ url }) => url.includes("/v1/selections"));
  const before = asked().length;
  await page.click("#clear");
  // Longer than what a step selects, shorter than the strip is wide.
  await ask(kLongText.slice(0, 900) + kQuestion);
  check("the selection is asked for", await eventually(() => asked().length > before));
  const id = asked().at(-1).url.split("id=")[1];
  const { pieces, layers } = await serverSays(`/v1/selections?id=${id}`);
  const steps = layers[0].steps;
  const wanted = (of) =>
    steps.flatMap((_, s) => pieces.map((_, p) => of.filter(({ steps }) => steps[s].ids.includes(p)).length));
  const shows = async (counts) => {
    const { width, height, opacity } = await strip();
    return (
      width === pieces.length && height === steps.length && counts.every((count, i) => opacity[i] > 0 === count > 0)
    );
  };
  check("steps leave tokens out", steps[0].ids.length < steps[0].position, steps[0].ids.length);
  check("the strip shows what the server said of all layers", await eventually(() => shows(wanted(layers)), 5));
  check("there is a choice for each layer", (await see(`${query("#layer")}.options.length`)) === layers.length + 1);
  for (const [i, layer] of layers.entries()) {
    await see(`${query("#layer")}.focus()`);
    await page.key("ArrowDown");
    check(
      `the strip shows layer ${layer.layer} alone`,
      await eventually(() => shows(wanted([layer])), 5),
      `choice ${await see(`${query("#layer")}.selectedIndex`)} of ${i + 1}`,
    );
  }
  const step = steps.length - 1;
  const chosen = layers.at(-1).steps[step].ids;
  const visible = (position) => pieces[position].replaceAll("\n", "\u21b5");
  for (const position of [chosen[0], chosen.at(-1)]) {
    await page.moveMouse("#canvas", (position + 0.5) / pieces.length, (step + 0.5) / steps.length);
    const here = () => see(`${query("#words .here")}.textContent`);
    check(
      `hovering shows the word at ${position}`,
      await eventually(async () => (await here()) === visible(position), 5),
      await here(),
    );
    check("it is marked as selected", (await see(`${query("#words .here")}.tagName`)) === "MARK");
    const around = chosen.filter((id) => Math.abs(id - position) <= 10).length;
    check("so are the others around it", (await see(`document.querySelectorAll("#words mark").length`)) === around);
    check(
      "the step is named",
      (await text("#where")).includes(`step ${step + 1} of ${steps.length}`),
      await text("#where"),
    );
  }
}

async function longText() {
  const pieces = Array.from({ length: 100_000 }, (_, i) => ` w${i}`);
  const ids = (layer, step) => Array.from({ length: 2048 }, (_, i) => i * 40 + ((layer + step) % 40));
  const layers = [0, 1].map((layer) => {
    return {
      layer,
      steps: Array.from({ length: 64 }, (_, step) => ({ position: 99_935 + step, ids: ids(layer, step) })),
    };
  });
  const body = JSON.stringify({ id: "x", prompt_tokens: 99_936, pieces, kpool: 1, layers });
  await page.pretend({ path: "/v1/selections", answer: () => ({ status: 200, body }) });
  await page.click("#log .link");
  const atEnd = async () => (await see(`${query("#strip")}.ariaValueMax`)) === "99999";
  check("100,000 tokens are shown", await eventually(atEnd));
  const { width, opacity } = await strip();
  check("they are drawn in a column for each pixel", width === (await see(`${query("#canvas")}.clientWidth`)), width);
  // The selected ids end at 81,919.
  const right = opacity.every((value, i) => value > 0 === (i % width) * 100_000 < 81_920 * width);
  check("the columns are where the tokens are", right);
  const [draw, move] = await see(`(() => {
    const start = performance.now();
    drawStrip();
    const drawn = performance.now();
    for (let i = 0; i < 50; ++i) moveTo(i * 1999, i);
    return [drawn - start, (performance.now() - drawn) / 50];
  })()`);
  check(`drawing takes ${draw.toFixed(1)} ms, a move ${move.toFixed(2)} ms`, draw < 500 && move < 50);
  await page.moveMouse("#canvas", 0.5, 0.5);
  check(
    "hovering finds a selected word",
    await eventually(() => see(`${query("#words .here")}.tagName === "MARK"`), 5),
  );
  await view(900, 800);
  const resized = async () =>
    (await strip()).width !== width && (await strip()).width === (await see(`${query("#canvas")}.clientWidth`));
  check("it is drawn again when resized", await eventually(resized, 5));
  await view(1280, 800);
  await page.pretend();
}

async function stopping() {
  await makeLong();
  const ways = { "the button": () => page.click("#stop"), Escape: () => page.key("Escape") };
  for (const [name, act] of Object.entries(ways)) {
    await page.click("#clear");
    await page.click("#input");
    await page.type("Tell a long story.");
    await page.click("#send");
    check("a long answer starts", await eventually(async () => (await lastAnswer()).length > 20));
    check("the server runs it", (await serverSays("/v1/status")).running === 1);
    const rate = () => see(`Number(${query("#n-decode")}.textContent) > 0`);
    check("the monitor shows its rate", await eventually(rate, 10), await text("#numbers"));
    await act();
    check(
      `${name} stops it`,
      (await eventually(idle, 5)) && /^stopped after [\d.]+ s$/.test(await lastNote()),
      await lastNote(),
    );
    check("the server ends it", await eventually(async () => (await serverSays("/v1/status")).running === 0, 5));
    check("its text stays", (await lastAnswer()).length > 20);
    check("one can type on", (await see("document.activeElement.id")) === "input");
  }
  await page.pretend();
}

async function endInSight() {
  await view(1280, 420);
  await makeLong();
  await page.click("#clear");
  await page.click("#input");
  await page.type("Tell a long story.");
  await page.click("#send");
  const place = () =>
    see(`(({ scrollTop, scrollHeight, clientHeight }) => {
    return { top: scrollTop, below: scrollHeight - scrollTop - clientHeight };
  })(${query("#log")})`);
  check("an answer grows out of sight", await eventually(async () => (await place()).top > 100));
  check("its end stays in sight", await eventually(async () => (await place()).below < 60, 2), (await place()).below);
  const at = await page.moveMouse("#log");
  await page.send("Input.dispatchMouseEvent", { type: "mouseWheel", ...at, deltaX: 0, deltaY: -90 });
  check("one can scroll up", await eventually(async () => (await place()).below > 60, 5));
  const { top, below } = await place();
  check("it grows on", await eventually(async () => (await place()).below > below + 20));
  check("the place read stays in sight", (await place()).top <= top, `${(await place()).top} after ${top}`);
  await page.key("Escape");
  await eventually(idle);
  await page.pretend();
  await view(1280, 800);
}

async function promptProgress() {
  // Every text that is ever put there, however short it stays.
  await see(`notes = [], new MutationObserver((records) => {
    for (const { addedNodes } of records) for (const node of addedNodes) notes.push(node.textContent);
  }).observe(${query("#log")}, { childList: true, subtree: true })`);
  await page.click("#clear");
  check("a long prompt is answered", await ask(kLongText));
  check(
    "the reading of a prompt shows",
    await see(`notes.some((note) => /reading the prompt: [\\d,]+ of [\\d,]+ tokens/.test(note))`),
  );
}

async function darkAndNarrow() {
  const back = () => see("getComputedStyle(document.body).backgroundColor");
  const [light, drawn] = [await back(), (await strip()).color];
  await page.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: "dark" }] });
  check("dark mode changes the page", (await back()) !== light, light);
  check("dark mode changes the strip", await eventually(async () => (await strip()).color !== drawn, 5), drawn);
  await page.send("Emulation.setEmulatedMedia", { features: [] });
  await view(360, 700);
  check("nothing is wider than a phone", (await see("document.documentElement.scrollWidth")) <= 360);
  const box = await see(`JSON.parse(JSON.stringify(${query("#send")}.getBoundingClientRect()))`);
  check("a phone shows the send button at once", box.right <= 360 && box.bottom <= 700, JSON.stringify(box));
  await view(1280, 800);
}

async function keyboardAlone() {
  await page.open(address + "/");
  check("the settings outlive a reload", (await see(`${query("#temperature")}.value`)) === "0");
  check("the message has the focus", await eventually(() => see("document.activeElement.id === 'input'"), 5));
  await page.type(kFact);
  await page.key("Enter", { shift: true });
  await page.type("What is the access code for Silver Falcon?");
  check("Shift+Enter starts a line", (await see(`${query("#input")}.value`)) === kQuestion.replace(". W", ".\nW"));
  await page.key("Enter");
  check(
    "Enter sends",
    (await eventually(() => see(`!${query("#view")}.hidden`))) && (await lastAnswer()).includes("4821"),
  );
  const visited = [];
  for (let i = 0; i < 12 && visited.at(-1) !== "strip"; ++i) {
    await page.key("Tab");
    visited.push(await see("document.activeElement.id"));
  }
  check("Tab leads from the message to the strip", visited.join(" ") === "send clear layer strip", visited.join(" "));
  const now = () => see(`${query("#strip")}.ariaValueNow`).then(Number);
  const last = await see(`${query("#strip")}.ariaValueMax`).then(Number);
  const said = () => see(`${query("#strip")}.ariaValueText`);
  await page.key("Home");
  check("Home goes to the first token", (await now()) === 0);
  await page.key("ArrowRight");
  check("an arrow goes one token on", (await now()) === 1);
  await page.key("End");
  check("End goes to the last token", (await now()) === last, await now());
  await page.key("ArrowLeft", { shift: true });
  check("Shift+arrow goes to a selected token", /, selected by [1-9]/.test(await said()), await said());
  const step = await said();
  await page.key("ArrowUp");
  check("an arrow goes one step up", (await said()) !== step && /, step \d+ of \d+$/.test(await said()), await said());
}

async function failuresShown() {
  await page.click("#clear");
  await fill("#temperature", "1000");
  await ask("Hello");
  check(
    "an error is shown in the server's words",
    (await text("#log .error")).includes("temperature"),
    await text("#log"),
  );
  check("it was a refused request", provoked(/status 400/));
  check("the message can be sent again", (await see(`${query("#input")}.value`)) === "Hello");
  await fill("#temperature", "0");
  await page.click("#send");
  check("so it is, alone", (await eventually(idle)) && lastBody().messages.length === 1 && (await lastAnswer()) !== "");
  await page.click("#clear");
  await fill("#tools", "[{");
  await ask("Hello");
  check("broken tools are named", (await text("#log .error")).includes("tools"), await text("#log .error"));
  await see(`${query("#input")}.value = ${query("#tools")}.value = ""`);

  const halfACall = { index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: '{"ci' } };
  await pretendAnswer(delta({ content: "Half" }), delta({ tool_calls: [halfACall] }));
  await ask("Cut");
  check("a cut connection is named", (await text("#log")).includes("The connection ended"), await text("#log"));
  await pretendAnswer({ error: { message: "<b>the server gave up</b>" } }, "[DONE]");
  await ask("Fail");
  const [half, next] = lastBody().messages.slice(-2);
  check("half an answer stays", half.content === "Half" && next.content === "Fail", JSON.stringify(half));
  check("half a call does not", half.tool_calls.length === 0 && next.role === "user", JSON.stringify(half));
  check(
    "an error in the stream is shown",
    (await text("#log")).includes("<b>the server gave up</b>"),
    await text("#log"),
  );
  await page.pretend();
}

async function hostileText() {
  await see(`${query("#input")}.value = ""`);
  await page.click("#clear");
  const markup = `<img src="x" onerror="document.title='markup'"><b>bold</b>`;
  await pretendAnswer(
    delta({ reasoning_content: "Let me " }),
    delta({ reasoning_content: "think." }),
    delta({ content: markup }),
    delta({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: '{"city": ' } }] }),
    delta({ tool_calls: [{ index: 0, function: { arguments: '"<i>Oslo</i>"}' } }] }),
    { id: "chatcmpl-x", choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] },
    "[DONE]",
  );
  await ask("What is the weather?");
  check("markup in an answer is text", (await lastAnswer()) === markup, await lastAnswer());
  check("no element comes of it", (await see(`document.querySelectorAll("#log :is(img, b, i)").length`)) === 0);
  check("no script of it ran", (await see("document.title")) === "Strata");
  check("reasoning is folded", (await see(`${query("#log .reasoning")}.open`)) === false);
  await page.click("#log .reasoning summary");
  check("reasoning unfolds", (await text("#log .reasoning .text")) === "Let me think.", await text("#log .reasoning"));
  check(
    "the call is shown",
    (await text("#log .call0")).includes('{"city": "<i>Oslo</i>"}'),
    await text("#log .call0"),
  );
  await ask("rain");
  const [, answer, result] = lastBody().messages;
  check(
    "the next message is the tool's result",
    result.role === "tool" && result.tool_call_id === "call_1" && result.content === "rain",
  );
  check("the call goes back with it", answer.tool_calls[0].function.arguments === '{"city": "<i>Oslo</i>"}');
  await page.pretend();
}

async function keyAndStates() {
  await fill("#key", "secret");
  await page.click("#clear");
  await ask(kQuestion);
  check("the key is sent", chatRequests().at(-1).headers.Authorization === "Bearer secret");
  check(
    "the key stays in the session",
    await see(`sessionStorage.strata?.includes("secret") && localStorage.length === 0`),
  );

  const wake = () => see(`document.dispatchEvent(new Event("visibilitychange"))`);
  await page.pretend({ path: "/health", answer: () => ({ status: 503, body: { status: "loading", percent: 42 } }) });
  await wake();
  check(
    "loading is shown in percent",
    await eventually(async () => (await text("#state")) === "loading 42 %", 5),
    await text("#state"),
  );
  await page.pretend({
    path: "/v1/status",
    answer: () => ({ status: 401, body: { error: { message: "the API key is wrong" } } }),
  });
  check(
    "a missing key is named",
    await eventually(async () => (await text("#state")).includes("API key"), 5),
    await text("#state"),
  );
  await page.pretend({ path: "/v1/selections", answer: () => ({ status: 404, body: { error: { message: "gone" } } }) });
  await page.click("#log .link");
  check(
    "a forgotten selection is named",
    await eventually(async () => (await text("#selection-note")).includes("no longer"), 5),
  );
  check("these were refused requests", provoked(/status (503|401|404)/));
  await page.pretend();

  const polls = () => page.requests.filter(({ url }) => url.endsWith("/v1/status")).length;
  await wake();
  check("the monitor goes on", await eventually(async () => (await text("#state")) === "ready", 5));
  check(
    "it shows the stages",
    /scan \d+ %/.test(await text("#meters")) && /free \d/.test(await text("#meters")),
    await text("#meters"),
  );
  await see(`Object.defineProperty(document, "hidden", { value: true, configurable: true })`);
  await wake();
  await pause(300);
  const before = polls();
  await pause(2000);
  check("a hidden page does not poll", polls() === before, polls() - before);
  await see(`delete document.hidden`);
  await wake();
  check("it does again when shown", await eventually(() => polls() > before, 5));
}

async function takePicture() {
  await page.open(address + "/");
  await see(`${query("#system")}.value = ${JSON.stringify(kLongText)}`);
  await ask("What is the access code for Silver Falcon?");
  await eventually(() => see(`!${query("#view")}.hidden`));
  // The step that gives the code's first token, where it looks at the code.
  const [x, y] = await see(`(() => {
    const { pieces, steps } = shown;
    let position = 0;
    for (let before = pieces.join("").indexOf("48213"); before > 0; ++position) before -= pieces[position].length;
    const step = steps.findIndex((step) => pieces[step.position + 1] === pieces[position]);
    return [(position + 0.5) / pieces.length, (step + 0.5) / steps.length];
  })()`);
  await page.moveMouse("#canvas", x, y);
  await eventually(() => see(`Number(${query("#n-decode")}.textContent) > 0`), 5);
  writeFileSync(screenshot, await page.screenshot());
  console.log(`picture: ${screenshot}`);
}

const view = (width, height) =>
  page.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });

// ---- From start to end ----

let page;
async function abandon(reason) {
  console.log(`FAIL ${reason}`);
  server.kill("SIGKILL");
  page?.process.kill("SIGKILL");
  await Promise.race([Promise.all([serverEnded, page?.ended]), pause(5000)]);
  process.exit(1);
}
setTimeout(() => abandon(`the checks took longer than ${kDeadline} s`), kDeadline * 1000).unref();
process.once("SIGTERM", () => abandon("ended from outside"));

let address;
try {
  address = await serverAddress();
  page = await Browser.start(chromium);
  await view(1280, 800);
  for (const part of [
    chatByMouse,
    selectionView,
    longText,
    stopping,
    endInSight,
    promptProgress,
    darkAndNarrow,
    keyboardAlone,
    failuresShown,
    hostileText,
    keyAndStates,
  ]) {
    console.log(`-- ${part.name}`);
    await part();
  }
  if (screenshot) await takePicture();
  check("no console errors, no failed requests", page.problems.length === 0, page.problems.join(" | "));
  await page.close();
  server.kill("SIGTERM");
  check("the server ends well", (await serverEnded) === 0, serverLog);
} catch (error) {
  await abandon(error.stack);
}
console.log(failures === 0 ? "all checks passed" : `${failures} checks failed`);
process.exit(failures === 0 ? 0 : 1);
