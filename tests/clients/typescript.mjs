// The TypeScript SDK's client: lists tools and calls `echo`. The first argument is its folder.
import { createRequire } from "node:module";

const [folder, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const http = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const stdio = require("@modelcontextprotocol/sdk/client/stdio.js");

const transport = words[0].startsWith("http")
  ? new http.StreamableHTTPClientTransport(new URL(words[0]))
  : new stdio.StdioClientTransport({ command: words[0], args: words.slice(1) });
const client = new Client({ name: "typescript", version: "0" });
await client.connect(transport);
console.log((await client.listTools()).tools.map((tool) => tool.name).sort().join(" "));
await client.callTool({ name: "odd_t18", arguments: {} }); // fails if the result does not fit its schema
const result = await client.callTool({ name: "echo", arguments: { text: "hello" } });
console.log(result.content[0].text);
if (transport.terminateSession) await transport.terminateSession();
await client.close();
