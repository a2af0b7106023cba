// The TypeScript SDK's clients 1 and 2 read lists: those that they reject are printed, with why.
// The first argument is their folder; cases come from stdin: [{version, results: {method: result}}].
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/package.json`);
const one = require("@modelcontextprotocol/sdk/client/index.js");
const two = require("@modelcontextprotocol/client");
const MODERN = "2026-07-28";

class Canned {
  constructor(results) {
    this.results = results;
  }
  async start() {}
  async close() {
    this.onclose?.();
  }
  async send(message) {
    const result = this.results[message.method];
    if (message.id === undefined) return;
    const error = { code: -32601, message: "no such method" };
    const outcome = result === undefined ? { error } : { result };
    queueMicrotask(() => this.onmessage?.({ jsonrpc: "2.0", id: message.id, ...outcome }));
  }
}

function clients(version) {
  const info = { name: "lists", version: "0" };
  const mode = version === MODERN ? { pin: MODERN } : "legacy";
  const second = new two.Client(info, { versionNegotiation: { mode } });
  return version === MODERN ? [second] : [second, new one.Client(info)];
}

for (const [index, { version, results }] of JSON.parse(readFileSync(0)).entries()) {
  for (const client of clients(version)) {
    await client.connect(new Canned(results));
    for (const list of ["listTools", "listPrompts", "listResources", "listResourceTemplates"]) {
      try {
        await client[list]();
      } catch (error) {
        console.log(JSON.stringify({ index, version, list, why: `${error}`.slice(0, 2000) }));
      }
    }
    await client.close();
  }
}
