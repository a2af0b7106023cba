// The TypeScript SDK 2 uses everything of a server; prints what it got as JSON.
// Arguments: the folder of the SDK, the era, a plan as JSON, and the server's URL or command.
import { createRequire } from "node:module";

const [folder, era, text, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const plan = JSON.parse(text);
const modern = era !== "legacy";
const own = new Set(["lease_acquire", "lease_release", "mcp_release"]);
const report = {};
let asked = [];
let logs = [];
let session = {};
let onUpdated = () => {};

function fill(schema) {
  const content = {};
  for (const [name, member] of Object.entries(schema.properties ?? {})) {
    const choices = member.enum ?? (member.oneOf ?? []).map((each) => each.const);
    if ("default" in member) content[name] = member.default;
    else if (choices.length) content[name] = choices[0];
    else if (member.type === "array")
      content[name] = (member.items.enum ?? member.items.anyOf.map((each) => each.const)).slice(0, 1);
    else if (member.format === "uri") content[name] = "https://example.com/";
    else if (member.format === "date") content[name] = "2026-01-01";
    else content[name] = { string: "ada@example.com", boolean: true, integer: 42, number: 42 }[member.type];
  }
  return content;
}

const client = new Client(
  { name: "tour", version: "1" },
  {
    capabilities: { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } },
    versionNegotiation: { mode: modern ? { pin: era } : "legacy" },
  },
);
client.setRequestHandler("elicitation/create", async ({ params }) => {
  asked.push(["elicitation", params.message]);
  if (params.mode === "url") return { action: "accept" };
  return { action: "accept", content: fill(params.requestedSchema) };
});
client.setRequestHandler("sampling/createMessage", async ({ params }) => {
  asked.push(["sampling", params.messages[0].content.text]);
  return { role: "assistant", content: { type: "text", text: "sampled" }, model: "none" };
});
client.setRequestHandler("roots/list", async () => {
  asked.push(["roots"]);
  return { roots: [{ uri: "file:///srv/data", name: "data" }] };
});
client.setNotificationHandler("notifications/message", async ({ params }) => {
  logs.push([params.level, params.data]);
});
client.setNotificationHandler("notifications/resources/updated", async () => onUpdated());

async function call(name, options = {}) {
  const given = { name, arguments: { ...plan.tools[name], ...session } };
  if (modern) given._meta = { "io.modelcontextprotocol/logLevel": "debug" };
  const result = await client.callTool(given, options);
  const handle = result._meta?.["leaseway/session"];
  if (handle && modern) session = { session: handle };
  return result;
}

async function tool(name) {
  asked = [];
  logs = [];
  const progress = [];
  const onprogress = (each) => progress.push([each.progress, each.total, each.message]);
  let result;
  try {
    result = await call(name, { onprogress });
  } catch (error) {
    result = { error: [error.code, error.message] };
  }
  if (name.startsWith("toggle-")) await call(name);
  return { result, asked, logs, progress };
}

async function watch({ uri, tool: trigger }) {
  const updated = new Promise((resolve) => (onUpdated = resolve));
  let listening;
  if (modern) listening = await client.listen({ resourceSubscriptions: [uri] });
  else await client.subscribeResource({ uri });
  await call(trigger);
  await updated;
  if (modern) await listening.close();
  else await client.unsubscribeResource({ uri });
  await call(trigger);
  return "updated";
}

async function cancel(name) {
  const controller = new AbortController();
  const onprogress = () => controller.abort("enough");
  try {
    await call(name, { signal: controller.signal, onprogress });
    return "finished";
  } catch {
    return "cancelled";
  }
}

const target = words[0].startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(words[0]))
  : new StdioClientTransport({ command: words[0], args: words.slice(1) });
await client.connect(target);
if (!modern) await client.setLoggingLevel("debug");
const listed = async () => (await client.listTools()).tools.map((each) => each.name).filter((name) => !own.has(name)).sort();
report.tools = await listed();
for (const name of report.tools)
  if (!plan.skip.includes(name)) report[`tool ${name}`] = await tool(name);
report["tools at the end"] = await listed();
report.prompts = (await client.listPrompts()).prompts.map((each) => each.name).sort();
for (const [name, args] of Object.entries(plan.prompts))
  report[`prompt ${name}`] = await client.getPrompt({ name, arguments: args });
for (const [ref, argument] of plan.completions)
  report[`completion ${ref.name}`] = await client.complete({ ref, argument });
report.resources = (await client.listResources()).resources.map((each) => each.uri).sort();
report.templates = (await client.listResourceTemplates()).resourceTemplates.map((each) => each.uriTemplate).sort();
for (const uri of plan.read) report[`resource ${uri}`] = await client.readResource({ uri });
if (plan.watch) report.watch = await watch(plan.watch);
if (plan.cancel) report.cancel = await cancel(plan.cancel);
report.after = (await tool(plan.last)).result;
console.log(JSON.stringify(report));
await client.close();
process.exit(0);
