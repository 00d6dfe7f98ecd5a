// A headless Chromium with one page, driven over the DevTools protocol's pipe.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const kKeys = {
  Enter: { code: "Enter", windowsVirtualKeyCode: 13, text: "\r" },
  Tab: { code: "Tab", windowsVirtualKeyCode: 9 },
  Escape: { code: "Escape", windowsVirtualKeyCode: 27 },
  End: { code: "End", windowsVirtualKeyCode: 35 },
  Home: { code: "Home", windowsVirtualKeyCode: 36 },
  ArrowLeft: { code: "ArrowLeft", windowsVirtualKeyCode: 37 },
  ArrowUp: { code: "ArrowUp", windowsVirtualKeyCode: 38 },
  ArrowRight: { code: "ArrowRight", windowsVirtualKeyCode: 39 },
  ArrowDown: { code: "ArrowDown", windowsVirtualKeyCode: 40 },
};
const kShift = 8;

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// The first true value of the condition; false when it has none for that long.
export async function eventually(condition, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  do {
    const value = await condition();
    if (value) return value;
    await pause(20);
  } while (Date.now() < end);
  return false;
}

export class Browser {
  requests = []; // {url, method, headers, postData} of everything the page sent
  problems = []; // errors and warnings of the console, exceptions, failed requests
  #waiting = new Map();
  #pretended = [];
  #lastId = 0;
  #rest = "";

  static async start(executable) {
    const browser = new Browser();
    const profile = mkdtempSync(join(tmpdir(), "strata-page-"));
    process.once("exit", () => rmSync(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
    const flags = [
      "--headless=new",
      "--remote-debugging-pipe",
      `--user-data-dir=${profile}`,
      "--disable-gpu",
      "--disable-dev-shm-usage",
      "--disable-extensions",
      "--disable-background-networking",
      "--no-first-run",
    ];
    // The sandbox cannot be set up by root.
    if (process.getuid() === 0) flags.push("--no-sandbox");
    browser.process = spawn(executable, [...flags, "about:blank"], {
      stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"],
    });
    browser.ended = new Promise((resolve) => browser.process.once("close", resolve));
    // A browser that dies breaks its pipes; `ended` is what tells of it.
    for (const pipe of browser.process.stdio.slice(3)) pipe.on("error", () => {});
    browser.process.stdio[4].setEncoding("utf8").on("data", (text) => browser.#read(text));
    browser.ended.then(() => browser.#waiting.forEach(({ reject }) => reject(new Error("the browser ended"))));
    const { targetInfos } = await browser.send("Target.getTargets");
    const { targetId } = targetInfos.find(({ type }) => type === "page");
    browser.session = (await browser.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Network", "Log"]) await browser.send(domain + ".enable");
    return browser;
  }

  async close() {
    await this.send("Browser.close", {}, null);
    await this.ended;
  }

  send(method, params = {}, sessionId = this.session) {
    const id = ++this.#lastId;
    const message = { id, method, params, ...(sessionId && { sessionId }) };
    this.process.stdio[3].write(JSON.stringify(message) + "\0");
    return new Promise((resolve, reject) => this.#waiting.set(id, { method, resolve, reject }));
  }

  #read(text) {
    const pieces = (this.#rest + text).split("\0");
    this.#rest = pieces.pop();
    for (const piece of pieces) {
      const { id, method, params, result, error } = JSON.parse(piece);
      if (!id) {
        this.#notice(method, params);
        continue;
      }
      const call = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error) call.reject(new Error(`${call.method}: ${error.message}`));
      else call.resolve(result);
    }
  }

  #notice(method, params) {
    const notices = {
      "Network.requestWillBeSent": ({ request }) => this.requests.push(request),
      "Network.loadingFailed": ({ canceled, errorText }) => canceled || this.problems.push(errorText),
      "Network.responseReceived": ({ response: { status, url } }) =>
        status < 400 || this.problems.push(`status ${status} of ${url}`),
      "Runtime.exceptionThrown": ({ exceptionDetails: { text, exception } }) =>
        this.problems.push(exception?.description ?? text),
      "Runtime.consoleAPICalled": ({ type, args }) =>
        !["error", "warning", "assert"].includes(type) || this.problems.push(args.map(({ value }) => value).join(" ")),
      // A failed request is noted above already.
      "Log.entryAdded": ({ entry: { level, source, text } }) =>
        source === "network" || !["error", "warning"].includes(level) || this.problems.push(text),
      "Fetch.requestPaused": ({ requestId, request }) => this.#answer(requestId, request),
    };
    notices[method]?.(params);
  }

  #answer(requestId, request) {
    const found = this.#pretended.find(({ path }) => new URL(request.url).pathname === path);
    const { status, body, type, postData } = found?.answer(request) ?? {};
    const send = status
      ? this.send("Fetch.fulfillRequest", {
          requestId,
          responseCode: status,
          responseHeaders: [{ name: "Content-Type", value: type ?? "application/json" }],
          body: Buffer.from(typeof body === "string" ? body : JSON.stringify(body)).toString("base64"),
        })
      : this.send("Fetch.continueRequest", {
          requestId,
          postData: postData && Buffer.from(postData).toString("base64"),
        });
    send.catch(() => {}); // the page has given the request up
  }

  // From now on these paths are answered in the server's place by {status, body, type}, or asked with another
  // {postData}; an empty list ends that.
  async pretend(...pretended) {
    this.#pretended = pretended;
    const patterns = pretended.map(({ path }) => ({ urlPattern: `*${path}*` }));
    await this.send(patterns.length > 0 ? "Fetch.enable" : "Fetch.disable", patterns.length > 0 ? { patterns } : {});
  }

  async open(url) {
    await this.send("Page.navigate", { url });
    await eventually(() => this.evaluate("document.readyState === 'complete' && location.href !== 'about:blank'"));
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", {
      expression,
      returnByValue: true,
      awaitPromise: true,
    });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
    return result.value;
  }

  async key(name, { shift = false } = {}) {
    const key = { key: name, modifiers: shift ? kShift : 0, ...kKeys[name] };
    await this.send("Input.dispatchKeyEvent", { type: key.text ? "keyDown" : "rawKeyDown", ...key });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...key, text: undefined });
  }

  async type(text) {
    for (const key of text) {
      await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, text: key });
      await this.send("Input.dispatchKeyEvent", { type: "keyUp", key });
    }
  }

  // To a place inside an element, given as shares of its width and height.
  async moveMouse(selector, x = 0.5, y = 0.5) {
    const place = await this.evaluate(`(() => {
      const node = document.querySelector(${JSON.stringify(selector)});
      node.scrollIntoView({ block: "nearest" });
      const box = node.getBoundingClientRect();
      return { x: box.left + ${x} * box.width, y: box.top + ${y} * box.height };
    })()`);
    await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", ...place });
    return place;
  }

  async click(selector) {
    const place = { ...(await this.moveMouse(selector)), button: "left", clickCount: 1 };
    await this.send("Input.dispatchMouseEvent", { type: "mousePressed", ...place });
    await this.send("Input.dispatchMouseEvent", { type: "mouseReleased", ...place });
  }

  async screenshot() {
    return Buffer.from((await this.send("Page.captureScreenshot")).data, "base64");
  }
}
