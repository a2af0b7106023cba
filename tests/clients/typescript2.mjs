// The TypeScript SDK 2: like `typescript.mjs`, in the newest version and then with a handshake.
import { createRequire } from "node:module";

const [folder, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

let names, text;
for (const mode of [{ pin: "2026-07-28" }, "legacy"]) {
  const transport = words[0].startsWith("http")
    ? new StreamableHTTPClientTransport(new URL(words[0]))
    : new StdioClientTransport({ command: words[0], args: words.slice(1) });
  const client = new Client({ name: "typescript", version: "0" }, { versionNegotiation: { mode } });
  await client.connect(transport);
  const version = client.getNegotiatedProtocolVersion();
  if ((version === "2026-07-28") !== (mode !== "legacy")) throw new Error(`It speaks ${version}.`);
  names = (await client.listTools()).tools.map((tool) => tool.name).sort().join(" ");
  await client.callTool({ name: "odd_t18", arguments: {} }); // fails if the result does not fit its schema
const result = await client.callTool({ name: "echo", arguments: { text: "hello" } });
  text = result.content[0].text;
  const session = result._meta?.["leaseway/session"];
  if (session) {
    const again = { text: "hello", session };
    text = (await client.callTool({ name: "echo", arguments: again })).content[0].text;
    await client.callTool({ name: "lease_release", arguments: { handle: session } });
  }
  if (mode === "legacy" && transport.terminateSession) await transport.terminateSession();
  await client.close();
}
console.log(names);
console.log(text);
