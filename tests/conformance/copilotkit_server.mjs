// Serves the page and CopilotKit's runtime in front of an agent, and prints its port.
// Argument: the URL of the agent. The page is bundled in the folder of this script.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { build } from "esbuild";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";

const here = new URL(".", import.meta.url).pathname;
await build({
  entryPoints: [`${here}copilotkit_page.jsx`],
  outfile: `${here}page.js`,
  bundle: true,
  format: "esm",
  jsx: "automatic",
  loader: { ".woff": "dataurl", ".woff2": "dataurl", ".ttf": "dataurl" },
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "error",
});
const agent = new HttpAgent({ url: `${process.argv[2]}/agui` });
const runtime = createCopilotNodeListener({
  runtime: new CopilotRuntime({ agents: { default: agent } }),
  basePath: "/api/copilotkit",
});
const html = '<!doctype html><link rel="stylesheet" href="/page.css"><div id="root"></div><script type="module" src="/page.js"></script>';
const server = createServer((request, response) => {
  if (request.url.startsWith("/api/")) return runtime(request, response);
  const files = { "/page.js": "text/javascript", "/page.css": "text/css" };
  const type = files[request.url];
  response.setHeader("content-type", type ?? "text/html");
  response.end(type ? readFileSync(here + request.url) : html);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
