"""Typed events of a run, and the sinks that take them up."""

from typing import TYPE_CHECKING

from configs.lazy import found_in

if TYPE_CHECKING:
    from framework.telemetry.agent_events import (
        AgentEvent,
        AgentEventName,
        AgentEventStatus,
        AgentFailureClass,
        agent_event,
    )
    from framework.telemetry.audit_chain import Verification
    from framework.telemetry.audit_log import AuditLog
    from framework.telemetry.events import (
        AnswerPart,
        AnswerToken,
        ApprovalAsked,
        ApprovalGiven,
        CapabilitiesSelected,
        CircuitChanged,
        Event,
        EventsLost,
        ModelCalled,
        PlanMade,
        PolicyActed,
        Reclassify,
        Replan,
        Retry,
        Status,
        StepFailed,
        StepFinished,
        StepProgress,
        StepSkipped,
        StepStarted,
        ToolCalled,
        TurnFinished,
        Usage,
        Waiting,
        WaitOver,
        emit,
        parse_event,
    )
    from framework.telemetry.otel import OpenTelemetrySink
    from framework.telemetry.shipped import (
        FanoutSink,
        JsonLinesSink,
        NoopSink,
        RingBufferSink,
        SqliteEventSink,
    )
    from framework.telemetry.sinks import EventDispatcher, SentEvent, about
    from framework.telemetry.usage import (
        ModelPricing,
        PriceTable,
        PricingAlreadyRegisteredError,
        UsageSnapshot,
        UsageTracker,
        format_cost,
        has_pricing,
        register_pricing,
    )
    from framework.telemetry.usage_sinks import (
        FanoutUsageSink,
        NoopUsageSink,
        RingBufferUsageSink,
        SqliteUsageSink,
        UsageSink,
    )

__all__ = [
    "AgentEvent",
    "AgentEventName",
    "AgentEventStatus",
    "AgentFailureClass",
    "AnswerPart",
    "AnswerToken",
    "ApprovalAsked",
    "ApprovalGiven",
    "AuditLog",
    "CapabilitiesSelected",
    "CircuitChanged",
    "Event",
    "EventDispatcher",
    "EventsLost",
    "FanoutSink",
    "FanoutUsageSink",
    "JsonLinesSink",
    "ModelCalled",
    "ModelPricing",
    "NoopSink",
    "NoopUsageSink",
    "OpenTelemetrySink",
    "PlanMade",
    "PolicyActed",
    "PriceTable",
    "PricingAlreadyRegisteredError",
    "Reclassify",
    "Replan",
    "Retry",
    "RingBufferSink",
    "RingBufferUsageSink",
    "SentEvent",
    "SqliteEventSink",
    "SqliteUsageSink",
    "Status",
    "StepFailed",
    "StepFinished",
    "StepProgress",
    "StepSkipped",
    "StepStarted",
    "ToolCalled",
    "TurnFinished",
    "Usage",
    "UsageSink",
    "UsageSnapshot",
    "UsageTracker",
    "Verification",
    "WaitOver",
    "Waiting",
    "about",
    "agent_event",
    "emit",
    "format_cost",
    "has_pricing",
    "parse_event",
    "register_pricing",
]

_PARTS = (
    "events",
    "sinks",
    "usage",
    "audit_log",
    "audit_chain",
    "shipped",
    "usage_sinks",
    "agent_events",
    "otel",
)
__getattr__, __dir__ = found_in(__name__, _PARTS, __all__)
