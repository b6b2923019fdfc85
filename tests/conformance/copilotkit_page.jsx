// A page with CopilotKit's chat, which shows plans and asks for approvals.
import { createRoot } from "react-dom/client";
import { z } from "zod";
import { CopilotChat, CopilotKitProvider, useInterrupt } from "@copilotkit/react-core/v2";

const plan = {
  activityType: "capgraph.plan",
  content: z.any(),
  render: ({ content }) => (
    <ul data-testid="plan">
      {(content.steps ?? []).map((step) => <li key={step.context_key}>{step.context_key}: {step.status}</li>)}
    </ul>
  ),
};

function Approvals() {
  useInterrupt({
    render: ({ interrupt, resolve }) => (
      <div data-testid="approval">
        <p>{interrupt?.message}</p>
        <button data-testid="approve" onClick={() => resolve("approve")}>Approve</button>
      </div>
    ),
  });
  return null;
}

const thread = new URLSearchParams(location.search).get("thread");

createRoot(document.getElementById("root")).render(
  <CopilotKitProvider runtimeUrl="/api/copilotkit" renderActivityMessages={[plan]}>
    <Approvals />
    <CopilotChat agentId="default" threadId={thread} />
  </CopilotKitProvider>,
);
