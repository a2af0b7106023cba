// The server for the official conformance suite, on the TypeScript SDK 2.
//
// The first argument is the folder that has the SDK. Over HTTP on the port of the second argument, or
// over stdin and stdout if that is `--stdio`.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { randomBytes, randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

const [folder, where] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const {
  CLIENT_CAPABILITIES_META_KEY,
  InMemoryServerEventBus,
  MissingRequiredClientCapabilityError,
  ProtocolError,
  ProtocolErrorCode,
  Server,
  createMcpHandler,
  createRequestStateCodec,
  inputRequired,
  inputResponse,
  isLegacyRequest,
} = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");
const {
  NodeStreamableHTTPServerTransport,
  localhostHostValidation,
  localhostOriginValidation,
  toNodeHandler,
  toWebRequest,
} = require("@modelcontextprotocol/node");

const { ask, elicit, createMessage, listRoots } = { ask: inputRequired, ...inputRequired };
const states = createRequestStateCodec({ key: randomBytes(32) }); // worth nothing to another process
const bus = new InMemoryServerEventBus();
const announce = // on stdio, the one server of the connection knows its listeners
  where === "--stdio"
    ? { tools: (server) => server.sendToolListChanged(), prompts: (server) => server.sendPromptListChanged() }
    : {
        tools: () => bus.publish({ kind: "tools_list_changed" }),
        prompts: () => bus.publish({ kind: "prompts_list_changed" }),
      };
const added = { tools: 0, prompts: 0 };
const STEP = 50; // milliseconds between two notifications

const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const wav = Buffer.alloc(44);
wav.write("RIFF");
wav.writeUInt32LE(36, 4);
wav.write("WAVEfmt ", 8);
wav.writeUInt32LE(16, 16);
wav.writeUInt16LE(1, 20);
wav.writeUInt16LE(1, 22);
wav.writeUInt32LE(8000, 24);
wav.writeUInt32LE(8000, 28);
wav.writeUInt16LE(1, 32);
wav.writeUInt16LE(8, 34);
wav.write("data", 36);
const image = { type: "image", data: PNG, mimeType: "image/png" };
const audio = { type: "audio", data: wav.toString("base64"), mimeType: "audio/wav" };

const text = (said) => ({ content: [{ type: "text", text: said }] });
const embedded = (uri, mimeType, said) => ({ type: "resource", resource: { uri, mimeType, text: said } });
const form = (properties) => ({ type: "object", properties, required: Object.keys(properties) });
const person = (message, properties) => elicit({ message, requestedSchema: form(properties) });
const model = (said, maxTokens = 100) =>
  createMessage({ messages: [{ role: "user", content: { type: "text", text: said } }], maxTokens });
const string = { type: "string" };
const NAME = () => person("What is your name?", { name: string });

function given(context, key, kind) {
  const view = inputResponse(context.mcpReq.inputResponses, key);
  return view.kind === kind ? view : undefined;
}

// What the client of this request declared; on stdio, each request may be another client's.
function declared(context) {
  return context.mcpReq.envelope?.[CLIENT_CAPABILITIES_META_KEY] ?? {};
}

async function log(context, said) {
  await context.mcpReq.log("info", said);
}

async function progress(context, done, total) {
  const progressToken = context.mcpReq._meta?.progressToken;
  if (progressToken === undefined) return;
  const params = { progressToken, progress: done, total };
  await context.mcpReq.notify({ method: "notifications/progress", params });
}

// On the stream of the call: `context.mcpReq.elicitInput` and `requestSampling` use that of the session,
// which a client may have yet to open.
async function asked(context, message, requestedSchema) {
  const params = { mode: "form", message, requestedSchema };
  const answer = await context.mcpReq.send({ method: "elicitation/create", params });
  return `action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`;
}

const DEFAULTS = form({
  name: { type: "string", default: "John Doe" },
  age: { type: "integer", default: 30 },
  score: { type: "number", default: 95.5 },
  status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
  verified: { type: "boolean", default: true },
});
const OPTIONS = ["option1", "option2", "option3"];
const TITLED = ["First", "Second", "Third"].map((title, index) => ({
  const: `value${index + 1}`,
  title: `${title} Option`,
}));
const ENUMS = form({
  untitledSingle: { type: "string", enum: OPTIONS },
  titledSingle: { type: "string", oneOf: TITLED },
  legacyEnum: {
    type: "string",
    enum: ["opt1", "opt2", "opt3"],
    enumNames: ["Option One", "Option Two", "Option Three"],
  },
  untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
  titledMulti: { type: "array", items: { anyOf: TITLED } },
});
const SCHEMA_2020 = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: {
    address: { $anchor: "addressDef", type: "object", properties: { street: string, city: string } },
  },
  properties: {
    name: string,
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: string,
    email: string,
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};
const HEADERS = { type: "object", properties: { region: { ...string, "x-mcp-header": "Region" } } };

const simple = async () => text("This is a simple text response for testing.");
const schemas = {
  test_sampling: form({ prompt: string }),
  test_elicitation: form({ message: string }),
  test_x_mcp_header: HEADERS,
  json_schema_2020_12_tool: SCHEMA_2020,
};

// Each tool is a coroutine of its context, its arguments and the server.
const tools = {
  test_simple_text: simple,
  test_x_mcp_header: simple,
  json_schema_2020_12_tool: simple,
  test_image_content: async () => ({ content: [image] }),
  test_audio_content: async () => ({ content: [audio] }),
  test_embedded_resource: async () => ({
    content: [
      embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."),
    ],
  }),
  test_multiple_content_types: async () => ({
    content: [
      { type: "text", text: "Multiple content types test:" },
      image,
      embedded(
        "test://mixed-content-resource",
        "application/json",
        JSON.stringify({ test: "data", value: 123 }),
      ),
    ],
  }),
  test_error_handling: async () => ({
    ...text("This tool intentionally returns an error for testing"),
    isError: true,
  }),
  async test_tool_with_logging(context) {
    for (const said of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      await log(context, said);
      await pause(STEP);
    }
    return text("Logged.");
  },
  async test_logging_tool(context) {
    await log(context, "logged");
    return text("Logged.");
  },
  async test_tool_with_progress(context) {
    for (const done of [0, 50, 100]) {
      await progress(context, done, 100);
      await pause(STEP);
    }
    return text("Done.");
  },
  async test_reconnection(context) {
    context.http?.closeSSE?.();
    await pause(2 * STEP);
    return text("The stream was closed before this.");
  },
  async test_sampling(context, { prompt }) {
    const messages = [{ role: "user", content: { type: "text", text: prompt } }];
    const params = { messages, maxTokens: 100 };
    const answer = await context.mcpReq.send({ method: "sampling/createMessage", params });
    return text(`LLM response: ${answer.content.text}`);
  },
  async test_elicitation(context, { message }) {
    return text(`User response: ${await asked(context, message, form({ username: string, email: string }))}`);
  },
  async test_elicitation_sep1034_defaults(context) {
    return text(`Elicitation completed: ${await asked(context, "Who are you?", DEFAULTS)}`);
  },
  async test_elicitation_sep1330_enums(context) {
    return text(`Elicitation completed: ${await asked(context, "Choose.", ENUMS)}`);
  },
  async test_missing_capability(context) {
    if (declared(context).sampling) return text("fine");
    throw new MissingRequiredClientCapabilityError({ requiredCapabilities: { sampling: {} } });
  },
  async test_streaming_elicitation(context) {
    await progress(context, 1, 2);
    return ask({ inputRequests: { user_name: NAME() } });
  },
  async test_trigger_tool_change(context, _, server) {
    added.tools += 1;
    await announce.tools(server);
    return text("changed");
  },
  async test_trigger_prompt_change(context, _, server) {
    added.prompts += 1;
    await announce.prompts(server);
    return text("changed");
  },
  async test_input_required_result_elicitation(context) {
    const name = given(context, "user_name", "elicit")?.content?.name;
    return name ? text(`Hello, ${name}!`) : ask({ inputRequests: { user_name: NAME() } });
  },
  async test_input_required_result_sampling(context) {
    const answer = given(context, "capital_question", "sampling");
    if (answer) return text(`The model said: ${answer.result.content.text}`);
    return ask({ inputRequests: { capital_question: model("What is the capital of France?") } });
  },
  async test_input_required_result_list_roots(context) {
    const answer = given(context, "client_roots", "roots");
    if (answer) return text(`Roots: ${answer.roots.map((root) => root.uri).join(", ")}`);
    return ask({ inputRequests: { client_roots: listRoots() } });
  },
  async test_input_required_result_request_state(context) {
    if (given(context, "confirm", "elicit") && context.mcpReq.requestState() === "confirm") {
      return text("state-ok");
    }
    const confirm = person("Please confirm", { ok: { type: "boolean" } });
    return ask({ inputRequests: { confirm }, requestState: await states.mint("confirm") });
  },
  async test_input_required_result_multiple_inputs(context) {
    const answers = [
      given(context, "user_name", "elicit"),
      given(context, "greeting", "sampling"),
      given(context, "client_roots", "roots"),
    ];
    if (answers.every(Boolean)) return text("All three were answered.");
    const inputRequests = {
      user_name: NAME(),
      greeting: model("Generate a greeting", 50),
      client_roots: listRoots(),
    };
    return ask({ inputRequests, requestState: await states.mint("multiple") });
  },
  async test_input_required_result_multi_round(context) {
    const state = context.mcpReq.requestState();
    if (state === "2" && given(context, "step2", "elicit")) return text("Both steps are done.");
    if (state === "1" && given(context, "step1", "elicit")) {
      const step2 = person("Step 2: What is your favorite color?", { color: string });
      return ask({ inputRequests: { step2 }, requestState: await states.mint("2") });
    }
    const step1 = person("Step 1: What is your name?", { name: string });
    return ask({ inputRequests: { step1 }, requestState: await states.mint("1") });
  },
  async test_input_required_result_tampered_state(context) {
    if (context.mcpReq.requestState() === "intact") return text("intact");
    const confirm = person("Sure?", { ok: { type: "boolean" } });
    return ask({ inputRequests: { confirm }, requestState: await states.mint("intact") });
  },
  async test_input_required_result_capabilities(context) {
    if (context.mcpReq.inputResponses) return text("answered");
    const can = declared(context);
    const inputRequests = {
      ...(can.sampling && { greeting: model("Generate a greeting") }),
      ...(can.elicitation && { user_name: NAME() }),
    };
    if (Object.keys(inputRequests).length) return ask({ inputRequests });
    return text("The client answers nothing.");
  },
};

const resources = {
  "test://static-text": ["text/plain", { text: "This is the content of the static text resource." }],
  "test://static-binary": ["image/png", { blob: PNG }],
  "test://watched-resource": ["text/plain", { text: "It is watched." }],
};
const TEMPLATE = /^test:\/\/template\/([^/]+)\/data$/;

function read(uri) {
  if (resources[uri]) return resources[uri];
  const id = TEMPLATE.exec(uri)?.[1];
  if (id === undefined) return undefined;
  const data = { id, templateTest: true, data: `Data for ID: ${id}` };
  return ["application/json", { text: JSON.stringify(data) }];
}

const say = (...said) => ({
  messages: said.map((each) => ({
    role: "user",
    content: typeof each === "string" ? { type: "text", text: each } : each,
  })),
});

// Each prompt has the names of its arguments and a function of these and the context.
const prompts = {
  test_simple_prompt: [[], () => say("This is a simple prompt for testing.")],
  test_prompt_with_arguments: [
    ["arg1", "arg2"],
    ({ arg1, arg2 }) => say(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`),
  ],
  test_prompt_with_embedded_resource: [
    ["resourceUri"],
    ({ resourceUri }) =>
      say(
        embedded(resourceUri, "text/plain", "Embedded resource content for testing."),
        "Please process the embedded resource above.",
      ),
  ],
  test_prompt_with_image: [[], () => say(image, "Please analyze the image above.")],
  test_input_required_result_prompt: [
    [],
    (_, context) => {
      const answer = given(context, "user_context", "elicit");
      if (answer) return say(`Use this context: ${answer.content?.context}`);
      const user_context = person("What context should the prompt use?", { context: string });
      return ask({ inputRequests: { user_context } });
    },
  ],
};

const unknown = (what) => new ProtocolError(ProtocolErrorCode.InvalidParams, `Unknown ${what}`);
const more = (count) => Array.from({ length: count }, (_, number) => `test_added_${number}`);

function build() {
  const capabilities = {
    tools: { listChanged: true },
    prompts: { listChanged: true },
    resources: { subscribe: true, listChanged: true },
    completions: {},
    logging: {},
  };
  const options = { capabilities, requestState: { verify: states.verify } };
  const server = new Server({ name: "everything", version: "0" }, options);
  server.setRequestHandler("tools/list", () => ({
    tools: [...Object.keys(tools), ...more(added.tools)].map((name) => ({
      name,
      description: name,
      inputSchema: schemas[name] ?? { type: "object" },
    })),
  }));
  server.setRequestHandler("tools/call", async ({ params }, context) => {
    const tool = tools[params.name] ?? (params.name.startsWith("test_added_") && simple);
    if (!tool) throw unknown(`tool: ${params.name}`);
    return await tool(context, params.arguments ?? {}, server);
  });
  server.setRequestHandler("resources/list", () => ({
    resources: Object.entries(resources).map(([uri, [mimeType]]) => ({
      uri,
      name: uri.replace("test://", ""),
      description: uri,
      mimeType,
    })),
  }));
  server.setRequestHandler("resources/templates/list", () => ({
    resourceTemplates: [
      {
        uriTemplate: "test://template/{id}/data",
        name: "template",
        description: "Data for an id",
        mimeType: "application/json",
      },
    ],
  }));
  server.setRequestHandler("resources/read", ({ params: { uri } }) => {
    const found = read(uri);
    if (!found) throw new ProtocolError(ProtocolErrorCode.InvalidParams, "Resource not found", { uri });
    return { contents: [{ uri, mimeType: found[0], ...found[1] }] };
  });
  server.setRequestHandler("resources/subscribe", () => ({}));
  server.setRequestHandler("resources/unsubscribe", () => ({}));
  server.setRequestHandler("prompts/list", () => ({
    prompts: [...Object.keys(prompts), ...more(added.prompts)].map((name) => ({
      name,
      description: name,
      arguments: (prompts[name]?.[0] ?? []).map((argument) => ({
        name: argument,
        description: argument,
        required: true,
      })),
    })),
  }));
  server.setRequestHandler("prompts/get", ({ params }, context) => {
    const prompt = prompts[params.name];
    if (!prompt) throw unknown(`prompt: ${params.name}`);
    return prompt[1](params.arguments ?? {}, context);
  });
  server.setRequestHandler("completion/complete", ({ params: { argument } }) => {
    const values = ["paris", "park", "party"].filter((each) => each.startsWith(argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  return server;
}

// What a stream of a session said, for a client that comes back.
class Events {
  #said = [];
  async storeEvent(stream, message) {
    this.#said.push({ stream, message });
    return String(this.#said.length - 1);
  }
  async replayEventsAfter(last, { send }) {
    const { stream } = this.#said[Number(last)];
    for (const [id, event] of this.#said.entries()) {
      const isNew = id > Number(last) && event.stream === stream && event.message.jsonrpc;
      if (isNew) await send(String(id), event.message);
    }
    return stream;
  }
}

const sessions = new Map();

async function inSession(request, response, body) {
  const id = request.headers["mcp-session-id"];
  if (id !== undefined && !sessions.has(id)) {
    response.writeHead(404).end();
    return;
  }
  await (sessions.get(id) ?? (await newSession())).handleRequest(request, response, body);
}

async function newSession() {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: 2 * STEP,
    onsessioninitialized: (id) => sessions.set(id, transport),
    onsessionclosed: (id) => sessions.delete(id),
  });
  await build().connect(transport);
  return transport;
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  try {
    return JSON.parse(Buffer.concat(parts).toString());
  } catch {
    return undefined;
  }
}

function serveHttp(port) {
  const withoutSession = toNodeHandler(createMcpHandler(build, { legacy: "reject", bus }));
  const [isOurHost, isOurOrigin] = [localhostHostValidation(), localhostOriginValidation()];
  const answer = async (request, response) => {
    if (!isOurHost(request, response) || !isOurOrigin(request, response)) return;
    const body = request.method === "POST" ? await bodyOf(request) : undefined;
    const isLegacy = await isLegacyRequest(await toWebRequest(request, body));
    await (isLegacy ? inSession : withoutSession)(request, response, body);
  };
  createServer(answer).listen(port, "127.0.0.1");
}

if (where === "--stdio") serveStdio(build);
else serveHttp(Number(where));
