"""Telemetry: events, sinks, usage and prices, OpenTelemetry, and the audit log."""

from typing import TYPE_CHECKING

from capgraph.configs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from capgraph.telemetry.agent_events import AgentEvent as AgentEvent
    from capgraph.telemetry.agent_events import AgentEventName as AgentEventName
    from capgraph.telemetry.agent_events import AgentEventStatus as AgentEventStatus
    from capgraph.telemetry.agent_events import AgentFailureClass as AgentFailureClass
    from capgraph.telemetry.agent_events import to_agent_event as to_agent_event
    from capgraph.telemetry.audit_chain import Verification as Verification
    from capgraph.telemetry.audit_log import AuditLog as AuditLog
    from capgraph.telemetry.builtin_sinks import FanoutSink as FanoutSink
    from capgraph.telemetry.builtin_sinks import JsonLinesSink as JsonLinesSink
    from capgraph.telemetry.builtin_sinks import NoopSink as NoopSink
    from capgraph.telemetry.builtin_sinks import RingBufferSink as RingBufferSink
    from capgraph.telemetry.builtin_sinks import SqliteEventSink as SqliteEventSink
    from capgraph.telemetry.event_dispatcher import EventDispatcher as EventDispatcher
    from capgraph.telemetry.event_dispatcher import SentEvent as SentEvent
    from capgraph.telemetry.event_dispatcher import event_context as event_context
    from capgraph.telemetry.events import AnswerPart as AnswerPart
    from capgraph.telemetry.events import AnswerToken as AnswerToken
    from capgraph.telemetry.events import ApprovalDecided as ApprovalDecided
    from capgraph.telemetry.events import ApprovalRequested as ApprovalRequested
    from capgraph.telemetry.events import CapabilitiesSelected as CapabilitiesSelected
    from capgraph.telemetry.events import CircuitChanged as CircuitChanged
    from capgraph.telemetry.events import DialogueChanged as DialogueChanged
    from capgraph.telemetry.events import Event as Event
    from capgraph.telemetry.events import EventsDropped as EventsDropped
    from capgraph.telemetry.events import ModelCalled as ModelCalled
    from capgraph.telemetry.events import ModelFallback as ModelFallback
    from capgraph.telemetry.events import PlanMade as PlanMade
    from capgraph.telemetry.events import PolicyActionApplied as PolicyActionApplied
    from capgraph.telemetry.events import PromptShortened as PromptShortened
    from capgraph.telemetry.events import QuestionDropped as QuestionDropped
    from capgraph.telemetry.events import QuestionKept as QuestionKept
    from capgraph.telemetry.events import Reclassify as Reclassify
    from capgraph.telemetry.events import Replan as Replan
    from capgraph.telemetry.events import ReplyRepaired as ReplyRepaired
    from capgraph.telemetry.events import Retry as Retry
    from capgraph.telemetry.events import Status as Status
    from capgraph.telemetry.events import StepFailed as StepFailed
    from capgraph.telemetry.events import StepFinished as StepFinished
    from capgraph.telemetry.events import StepProgress as StepProgress
    from capgraph.telemetry.events import StepResumed as StepResumed
    from capgraph.telemetry.events import StepSkipped as StepSkipped
    from capgraph.telemetry.events import StepStarted as StepStarted
    from capgraph.telemetry.events import ToolCalled as ToolCalled
    from capgraph.telemetry.events import TurnFinished as TurnFinished
    from capgraph.telemetry.events import TurnSuspended as TurnSuspended
    from capgraph.telemetry.events import Usage as Usage
    from capgraph.telemetry.events import emit as emit
    from capgraph.telemetry.events import parse_event as parse_event
    from capgraph.telemetry.otel import OpenTelemetrySink as OpenTelemetrySink
    from capgraph.telemetry.usage import ModelPricing as ModelPricing
    from capgraph.telemetry.usage import PriceTable as PriceTable
    from capgraph.telemetry.usage import (
        PricingAlreadyRegisteredError as PricingAlreadyRegisteredError,
    )
    from capgraph.telemetry.usage import UsageSnapshot as UsageSnapshot
    from capgraph.telemetry.usage import format_cost as format_cost
    from capgraph.telemetry.usage import has_pricing as has_pricing
    from capgraph.telemetry.usage import load_pricing_from_file as load_pricing_from_file
    from capgraph.telemetry.usage import register_pricing as register_pricing

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "capgraph.telemetry.agent_events": (
            "AgentEvent",
            "AgentEventName",
            "AgentEventStatus",
            "AgentFailureClass",
            "to_agent_event",
        ),
        "capgraph.telemetry.audit_chain": ("Verification",),
        "capgraph.telemetry.audit_log": ("AuditLog",),
        "capgraph.telemetry.events": (
            "AnswerPart",
            "AnswerToken",
            "ApprovalDecided",
            "ApprovalRequested",
            "CapabilitiesSelected",
            "CircuitChanged",
            "DialogueChanged",
            "Event",
            "EventsDropped",
            "ModelCalled",
            "ModelFallback",
            "PlanMade",
            "PolicyActionApplied",
            "PromptShortened",
            "Reclassify",
            "Replan",
            "ReplyRepaired",
            "Retry",
            "Status",
            "StepFailed",
            "StepFinished",
            "StepProgress",
            "StepResumed",
            "StepSkipped",
            "StepStarted",
            "ToolCalled",
            "TurnFinished",
            "QuestionDropped",
            "QuestionKept",
            "TurnSuspended",
            "Usage",
            "emit",
            "parse_event",
        ),
        "capgraph.telemetry.otel": ("OpenTelemetrySink",),
        "capgraph.telemetry.builtin_sinks": (
            "FanoutSink",
            "JsonLinesSink",
            "NoopSink",
            "RingBufferSink",
            "SqliteEventSink",
        ),
        "capgraph.telemetry.event_dispatcher": ("EventDispatcher", "SentEvent", "event_context"),
        "capgraph.telemetry.usage": (
            "ModelPricing",
            "PriceTable",
            "PricingAlreadyRegisteredError",
            "UsageSnapshot",
            "format_cost",
            "has_pricing",
            "load_pricing_from_file",
            "register_pricing",
        ),
    },
)
