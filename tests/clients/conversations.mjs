// The TypeScript SDK 2: two conversations, each with its own knowledge graph. Like a model, it passes
// `session` back if a result says one.
import { createRequire } from "node:module";

const [folder, url, mode] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");

class Conversation {
  constructor(name) {
    this.name = name;
    this.session = {};
    this.client = new Client(
      { name: "typescript", version: "0" },
      { versionNegotiation: { mode: mode === "legacy" ? mode : { pin: mode } } },
    );
  }

  async call(name, given) {
    const result = await this.client.callTool({ name, arguments: { ...given, ...this.session } });
    const session = result._meta?.["leaseway/session"];
    if (session) this.session = { session };
    return result.structuredContent;
  }
}

const conversations = ["a", "b"].map((name) => new Conversation(name));
for (const { client } of conversations) {
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  await client.listTools();
}
for (const conversation of conversations) {
  const entity = { name: conversation.name, entityType: "letter", observations: [] };
  await conversation.call("create_entities", { entities: [entity] });
}
const graphs = [];
for (const conversation of conversations) graphs.push(await conversation.call("read_graph", {}));
console.log(JSON.stringify(graphs.map((graph) => graph.entities.map((entity) => entity.name))));
for (const { client } of conversations) await client.close();
