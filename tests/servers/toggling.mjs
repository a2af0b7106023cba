// A server on the TypeScript SDK 2 over stdio, whose tools and prompt are enabled and disabled within a
// session.
//
// The argument is the folder that has the SDK.
import { createRequire } from "node:module";

const [folder] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { McpServer } = require("@modelcontextprotocol/server");
const { serveStdio } = require("@modelcontextprotocol/server/stdio");

const said = (text) => ({ content: [{ type: "text", text }] });

function build() {
  const server = new McpServer({ name: "toggling", version: "1" });
  const drill = server.registerTool("drill", { description: "Drill a hole." }, () => said("drilled"));
  drill.disable();
  const plan = server.registerPrompt("plan", { description: "Plan the holes." }, () => ({
    messages: [{ role: "user", content: { type: "text", text: "Plan it." } }],
  }));
  plan.disable();
  const open = server.registerTool("open", { description: "Open the box, which shows its tools." }, () => {
    drill.enable();
    plan.enable();
    open.disable();
    return said("opened");
  });
  server.registerTool("close", { description: "Close the box." }, () => {
    drill.disable();
    plan.disable();
    open.enable();
    return said("closed");
  });
  return server;
}

serveStdio(build);
