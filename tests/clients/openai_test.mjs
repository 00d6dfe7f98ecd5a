// The openai package against a Strata server: node openai_test.mjs URL
// Needs the package where node finds it (npm install openai); exits with 77 where it is missing.
let OpenAI;
try {
  ({ default: OpenAI } = await import("openai"));
} catch {
  console.log("SKIP: the npm package openai is not installed");
  process.exit(77);
}
import assert from "node:assert/strict";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = (content, more = {}) => ({
  model, temperature: 0, max_tokens: 24, messages: [{ role: "user", content }], ...more,
});
const question =
  "The access code for Silver Falcon is 4821. What is the access code for Silver Falcon?";

const checks = {
  async "a chat answers"() {
    const answer = await client.chat.completions.create(ask(question));
    assert.match(answer.choices[0].message.content, /4821/);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async "a stream gives the same text, then usage"() {
    const whole = await client.chat.completions.create(ask(question));
    const stream = await client.chat.completions.create(
      ask(question, { stream: true, stream_options: { include_usage: true } }));
    let text = "", usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async "the stream helper collects the answer"() {
    const runner = client.chat.completions.stream(ask(question));
    assert.match((await runner.finalChatCompletion()).choices[0].message.content, /4821/);
  },
  async "completions"() {
    const answer = await client.completions.create({ model, prompt: "A tree is", max_tokens: 5, temperature: 0 });
    assert.equal(answer.usage.completion_tokens, 5);
  },
  async "a JSON schema is kept to"() {
    const answer = await client.chat.completions.create(ask("Describe a tree.", {
      max_tokens: 300, temperature: 1, seed: 4,
      response_format: { type: "json_schema", json_schema: { name: "tree", strict: true, schema: {
        type: "object", additionalProperties: false, required: ["kind", "tall"],
        properties: { kind: { enum: ["oak", "fir"] }, tall: { type: "boolean" } } } } },
    }));
    const tree = JSON.parse(answer.choices[0].message.content);
    assert.ok(["oak", "fir"].includes(tree.kind));
    assert.equal(typeof tree.tall, "boolean");
  },
  async "tools are taken and tool results answered"() {
    const tools = [{ type: "function", function: { name: "get_code", parameters: {
      type: "object", properties: { name: { type: "string" } } } } }];
    const first = await client.chat.completions.create(ask(question, { tools }));
    assert.ok(["stop", "length", "tool_calls"].includes(first.choices[0].finish_reason));
    const second = await client.chat.completions.create({ ...ask(question), tools, messages: [
      { role: "user", content: "What is the code?" },
      { role: "assistant", content: null, tool_calls: [
        { id: "call_1", type: "function", function: { name: "get_code", arguments: "{\"name\":\"x\"}" } }] },
      { role: "tool", tool_call_id: "call_1", content: "4821" }] });
    assert.equal(typeof second.choices[0].message.content, "string");
  },
  async "errors have the library's classes"() {
    await assert.rejects(client.chat.completions.create(ask("x", { temperature: -1 })),
      (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
    await assert.rejects(client.chat.completions.create(ask("x", { model: "other" })),
      (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  },
  async "an aborted stream frees its place"() {
    const controller = new AbortController();
    const stream = await client.chat.completions.create(
      ask("Tell me a story.", { stream: true, max_tokens: 3000 }), { signal: controller.signal });
    for await (const _ of stream) break;
    controller.abort();
    for (let i = 0; ; ++i) {
      const status = await (await fetch(`${process.argv[2]}/v1/status`)).json();
      if (status.running + status.waiting === 0) break;
      assert.ok(i < 200, "the answer still runs");
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`PASS ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}: ${error.message}`);
  }
}
process.exit(failed ? 1 : 0);
