"""Settings of an agent, from YAML files, environment variables, and arguments.

Precedence, highest first: keyword arguments, environment variables
(``CAPGRAPH_LIMITS__MAX_PARALLEL=4``), YAML files, defaults. An unknown key is an error.
"""

from __future__ import annotations

import ipaddress
import os
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import yaml
from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from capgraph.configs.errors import ConfigurationError
from capgraph.configs.limits import Limits
from capgraph.configs.settings_model import SettingsModel
from capgraph.configs.suggestions import closest_match
from capgraph.configs.yaml_files import deep_merge, format_validation_errors, read_yaml

_PREFIX = "CAPGRAPH_"
_LOCAL_MODEL_TIMEOUT_SECONDS = 300.0
_FILE_VARIABLE = "CAPGRAPH_CONFIG"
_UPLOAD_SUFFIXES = ".csv .tsv .txt .tab .dat .json .jsonl .ndjson .parquet .pq .sqlite .sqlite3 .db"
_FILES_ARGUMENT = "_names_and_values_of_files"


@cache
def load_packaged_defaults() -> dict[str, Any]:
    """Load the packaged ``agent.yml``, which lists the modules that capgraph provides."""
    text = resources.files("capgraph.configs").joinpath("agent.yml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


StructuredMethod = Literal["auto", "json_schema", "function_calling", "json_mode", "text"]
PlanMode = Literal["plan", "look", "auto"]
PlanFeature = Literal["references", "for_each", "when", "look_again", "wait_until"]


class ModelSettings(SettingsModel):
    """Settings of a chat model.

    Attributes:
        model: ``"provider:name"``, as in ``langchain.chat_models.init_chat_model``.
        temperature: Sampling temperature. Defaults to that of the provider.
        base_url: URL of an OpenAI-compatible endpoint.
        api_key: API key. Defaults to the provider's environment variable.
        timeout_seconds: Time limit of one call. Defaults to 60, or to 300 for a local model or a
            ``base_url``, where the first call may process its prompt for minutes.
        options: Further arguments of the model's class.
        behaviors: Middleware and behaviors of its calls: ``{use: retry, max_retries: 2}``.
        fallbacks: Models to call in order if this one is unavailable, reaches its rate limit, refuses,
            or returns an invalid reply: names, or sections with these fields.
        structured: Method that requests structured output: ``json_schema`` (the server enforces a schema),
            ``function_calling``, ``json_mode`` (any JSON), or ``text`` (the prompt asks for JSON).
            ``auto`` uses the model's profile, and ``json_schema`` for an OpenAI-compatible
            ``base_url``.
    """

    model: str
    temperature: float | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    timeout_seconds: float | None = Field(60.0, gt=0)
    options: dict[str, Any] = Field(default_factory=dict)
    behaviors: list[Any] = Field(default_factory=list)
    fallbacks: list[str | ModelSettings] = Field(default_factory=list)

    @property
    def call_timeout_seconds(self) -> float | None:
        """Timeout for one model call, with a longer default for local models.

        >>> ModelSettings(model="openai:m", base_url="http://localhost/v1").call_timeout_seconds
        300.0
        """
        if "timeout_seconds" in self.model_fields_set:
            return self.timeout_seconds
        is_local = self.base_url is not None or self.model.startswith("local:")
        return _LOCAL_MODEL_TIMEOUT_SECONDS if is_local else self.timeout_seconds

    @field_validator("fallbacks")
    @classmethod
    def _refuse_nested_fallbacks(cls, value: list[Any]) -> list[Any]:
        if any(isinstance(item, ModelSettings) and item.fallbacks for item in value):
            raise ValueError(
                "a fallback model must not have its own 'fallbacks'; put all fallbacks in one list"
            )
        return value

    structured: StructuredMethod = "auto"


class PlanningSettings(SettingsModel):
    """Settings for a model that writes execution plans.

    Attributes:
        features: Optional features of plans that the model may use: ``references`` to earlier results,
            ``for_each``, ``when``, ``look_again``, ``wait_until``. ``auto`` enables references and
            ``for_each`` if outputs match parameters, and the others if planning guides use them.
        mode: ``plan`` plans a request at once. ``look`` plans only the steps whose parameters are known
            and calls the planner again with their results until it answers. ``auto`` lets the planner
            decide in each reply whether it needs the results. In ``look`` and ``auto`` the planner
            reads the conversation, so no separate call extracts the task.
        max_result_tokens: Maximum number of tokens of full results in the planner's prompt, latest
            first. Other results are shown as a summary or a preview. In ``look`` and ``auto``, results
            of the previous turn count, too.
        max_stored_results: Maximum number of results of earlier turns, per context type, in the planner's
            prompt, latest first. For older results the prompt contains only keys that a plan may use.
    """

    mode: PlanMode = "plan"
    max_result_tokens: int = Field(2000, ge=0)
    max_stored_results: int = Field(2, ge=0)
    features: Literal["auto", "all"] | list[PlanFeature] = "auto"


class SelectionSettings(SettingsModel):
    """Settings for choosing which capabilities are offered for a request.

    Attributes:
        strategy: ``auto`` leaves the selection to the planning model if all capabilities fit
            into the prompt, uses a selection model otherwise, and is ``lexical`` without a
            model. ``model`` always uses a selection model. ``per_capability`` asks one yes/no
            question per capability.
        max_catalog_tokens: Maximum total size of the capability descriptions, in tokens, for
            which ``auto`` leaves the selection to the planning model.
        shortlist: Maximum number of capabilities in the selection model's prompt, best matches
            first.
        max_concurrency: Maximum number of concurrent model calls with ``per_capability``.
    """

    strategy: Literal["auto", "lexical", "model", "per_capability"] = "auto"
    max_catalog_tokens: int = Field(3000, ge=0)
    shortlist: int = Field(20, ge=1)
    max_concurrency: int = Field(5, ge=1)


class ApprovalSettings(SettingsModel):
    """Settings that decide which steps and plans require a person's approval.

    Attributes:
        steps: Steps that require approval: ``declared`` (those whose capability requires it), ``all``, or
            ``none``.
        plans: True if every plan requires approval before it runs.
        max_rejections: Number of rejections after which the turn ends instead of planning again.
        callers_may_disable: True if users of the command line may turn approvals off.
        ungrounded: Policy for effects with parameters that a model invented: values that occur neither
            in the conversation, nor in results that the step or the planner reads, nor in declared
            defaults and choices. ``ask`` requires approval, ``refuse`` fails the step, ``allow`` runs
            it. Every approval request shows such parameters.
        new_message: Policy for an open approval request when the thread receives a new message.
            ``drop`` starts a new turn, whose outcome names the request. ``keep`` refuses the message
            until the request is answered.
    """

    steps: Literal["declared", "all", "none"] = "declared"
    plans: bool = False
    max_rejections: int = Field(3, ge=1)
    callers_may_disable: bool = False
    ungrounded: Literal["ask", "refuse", "allow"] = "ask"
    new_message: Literal["drop", "keep"] = "drop"


class PersistenceSettings(SettingsModel):
    """Settings of the storage of threads, and how long their data is kept.

    Attributes:
        url: ``sqlite:///file.db`` or ``postgresql://…``. None means no persistence.
        encryption_key: Key of 16, 24, or 32 bytes that encrypts checkpoints.
        keep_turns: Number of turns whose checkpoints are kept per thread. None means all. Messages
            and context data are always kept in full.
        keep_checkpoints: Number of checkpoints that are kept per thread. None means all.
        keep_results: Number of results of each type that a thread keeps when a turn starts, latest
            first. None means all.
        keep_days: Days after which unchanged threads without an open approval request, and usage
            records, are deleted. This and the two limits on checkpoints apply when a turn ends.
            ``capgraph threads prune`` applies them at once.
    """

    url: str | None = None
    encryption_key: SecretStr | None = None
    keep_turns: int | None = Field(None, ge=1)
    keep_checkpoints: int | None = Field(None, ge=1)
    keep_results: int | None = Field(None, ge=1)
    keep_days: float | None = Field(None, gt=0)


class AuditSettings(SettingsModel):
    """Settings of the audit log, a tamper-evident chain of records.

    Attributes:
        keep: True to record runs in the audit log. ``build_graph(audit=…)`` takes precedence.
        signing_key: Key that signs each record.
        name: Name of the audit log, which is part of each record. Defaults to an ID stored in
            the database. With a name, verification rejects records of a different audit log,
            even if the whole database was copied.
        retention_days: Number of days after which records are deleted and sealed. Checked
            daily.
    """

    keep: bool = False
    signing_key: SecretStr | None = None
    name: str | None = Field(None, min_length=1)
    retention_days: float = Field(183, gt=0)


class RoleSettings(SettingsModel):
    """Permissions of a role, which determine the capabilities that callers with the role may use.

    Attributes:
        role: Name of the role.
        mode: Highest permission mode: ``read_only``, ``workspace_write``, or ``full_access``.
        allowed_tools: Capabilities that the role may use. None means all that the mode allows.
        denied_tools: Capabilities that the role may not use. They take precedence.
        tenant: Tenant for which this entry replaces the general entry of the role.
    """

    role: str
    mode: str
    allowed_tools: list[str] | None = None
    denied_tools: list[str] = Field(default_factory=list)
    tenant: str | None = None


class PermissionSettings(SettingsModel):
    """Settings for the permissions of callers.

    If permissions are configured, callers without a configured role may not use any capability.

    Attributes:
        roles: Permissions of each role.
        tool_requirements: Minimum permission mode by capability name, if it is stricter than
            the capability's declaration.
        cedar: Cedar policies as text, instead of roles (requires the extra ``cedar``).
        overseer_roles: Roles whose users approve each step of a turn that has no known user.
            Without such a role, these steps are denied.
    """

    roles: list[RoleSettings] = Field(default_factory=list)
    tool_requirements: dict[str, str] = Field(default_factory=dict)
    cedar: str | None = None
    overseer_roles: list[str] = Field(default_factory=list)


class OidcSettings(SettingsModel):
    """Settings for login with OpenID Connect (requires the extra ``oidc``).

    Attributes:
        issuer: URL of the provider, which serves ``/.well-known/openid-configuration``.
        client_id: Client ID of this server.
        client_secret: Client secret; None for a public client.
        scopes: Requested scopes.
        user_claim: Claim with the user ID.
        role_claim: Claim with the role. None means that users have no role.
        tenant_claim: Claim with the tenant.
        fold_case: True to treat user IDs such as ``USER1`` and ``user1`` as the same user. Use
            it for a case-insensitive ``user_claim``, such as an email address.
    """

    issuer: str
    client_id: str
    client_secret: SecretStr | None = None
    scopes: list[str] = Field(default_factory=lambda: ["openid", "profile"])
    user_claim: str = "sub"
    role_claim: str | None = None
    tenant_claim: str | None = None
    fold_case: bool = False


class ProxySettings(SettingsModel):
    """Settings of a reverse proxy whose headers identify the user.

    Attributes:
        trusted: IP addresses of the proxy, or networks such as ``10.0.0.0/8``. Headers from
            other addresses are ignored.
        user_header: Header with the user ID, or None if users log in to this server.
        role_header: Header with the role.
        tenant_header: Header with the tenant.
        fold_case: True to treat user IDs such as ``USER1`` and ``user1`` as the same user. Set
            to False only if the proxy authenticates them as different people.
    """

    trusted: list[str]
    user_header: str | None = "x-forwarded-user"
    role_header: str | None = None
    tenant_header: str | None = None
    fold_case: bool = True

    @field_validator("trusted")
    @classmethod
    def _check_addresses(cls, trusted: list[str]) -> list[str]:
        for network in trusted:
            ipaddress.ip_network(network)
        return trusted

    def trusts(self, address: str) -> bool:
        """Return True if a connection from an IP address comes from a trusted proxy.

        >>> ProxySettings(trusted=["10.0.0.0/8"]).trusts("10.1.2.3")
        True
        """
        try:
            ip_address = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(ip_address in ipaddress.ip_network(network) for network in self.trusted)


class McpServeSettings(SettingsModel):
    """Settings for clients that use the server over MCP.

    Clients that declare the extension ``io.modelcontextprotocol/tasks`` can poll, answer, and
    cancel tasks.

    Attributes:
        tools: Names of capabilities that MCP clients may call in addition to ``ask``.
        task_after_seconds: Number of seconds after which a running call becomes a task.
        task_tools: Tools that run only as tasks. Calls by clients without the extension are
            rejected.
        resources: Paths of files that all users may read as MCP resources, by URI.
    """

    tools: list[str] = Field(default_factory=list)
    task_after_seconds: float = Field(5, ge=0)
    task_tools: list[str] = Field(default_factory=list)
    resources: dict[str, str] = Field(default_factory=dict)


class StreamServeSettings(SettingsModel):
    """Settings for clients that follow a run through an event stream.

    Attributes:
        stop_on_disconnect: True to stop a run when its client closes the connection, as the
            stop button of a front end does. By default, the run continues in its thread.
    """

    stop_on_disconnect: bool = False


class A2aServeSettings(SettingsModel):
    """Settings for clients that use the server over the A2A protocol.

    Attributes:
        push_hosts: Hosts that may receive push notifications about tasks, such as
            ``"*.example.com"``. If empty, the agent card does not offer push notifications.
        version_0_3: True to also support clients of protocol version 0.3 and add the fields of
            that version to the agent card.
    """

    push_hosts: list[str] = Field(default_factory=list)
    version_0_3: bool = True


class UploadSettings(SettingsModel):
    """Settings for file uploads. Each user has a separate upload folder.

    Attributes:
        folder: Parent folder of the users' folders. Data capabilities may read the caller's
            folder.
        kinds: Accepted file name suffixes.
        max_file_bytes: Maximum size of a file.
        max_files: Maximum number of files per user.
        max_user_bytes: Maximum total size of a user's files.
    """

    folder: str
    kinds: list[str] = Field(default_factory=_UPLOAD_SUFFIXES.split)
    max_file_bytes: int = Field(50_000_000, ge=1)
    max_files: int = Field(200, ge=1)
    max_user_bytes: int = Field(500_000_000, ge=1)


class WebhookSettings(SettingsModel):
    """Settings for a webhook that is notified of each new approval request.

    Attributes:
        url: URL of the webhook. ``http`` is allowed only for local addresses.
        secret: Key that signs the notifications. Set it with
            ``CAPGRAPH_SERVE__WEBHOOK__SECRET``.
        content: True to send the content of the request in addition to a link.
    """

    url: str
    secret: SecretStr = Field(min_length=16)
    content: bool = False


class CredentialsSettings(SettingsModel):
    """Settings for exchanging a signed JWT for a user's access token (RFC 8693).

    The JWT contains the user's ID.

    Attributes:
        token_url: URL of the token endpoint.
        client_id: Client ID of the agent.
        client_secret: Client secret, or None for a public client.
        issuer: Issuer of the JWT.
        signing_key: Private key that signs the JWT, as PEM text.
        algorithm: Signature algorithm.
        key_id: ID of the signing key.
        audience: Service for which the access token is intended.
        resource: URL of that service.
        scope: Requested scopes, separated by spaces.
    """

    token_url: str
    client_id: str
    client_secret: SecretStr | None = None
    issuer: str
    signing_key: SecretStr
    algorithm: str = "ES256"
    key_id: str | None = None
    audience: str | None = None
    resource: str | None = None
    scope: str | None = None


class AuthorizationSettings(SettingsModel):
    """Settings for access tokens that users grant with OAuth's authorization code grant.

    A step without a token asks its user to open the authorization page of ``capgraph serve``. The
    redirect URI is ``https://HOST/authorize/NAME/callback``.

    Attributes:
        name: Name of the authorization, which is part of its URLs.
        authorization_url: URL of the authorization endpoint.
        token_url: URL of the token endpoint.
        client_id: Client ID of the agent.
        client_secret: Client secret, or None for a public client.
        scope: Requested scopes, separated by spaces.
        resource: URL of the service for which the token is intended.
        store: URL of a database for the tokens. None stores them in memory.
        encryption_key: Secret that encrypts the tokens in the database.
    """

    name: str
    authorization_url: str
    token_url: str
    client_id: str
    client_secret: SecretStr | None = None
    scope: str | None = None
    resource: str | None = None
    store: str | None = None
    encryption_key: SecretStr | None = None


class McpSettings(SettingsModel):
    """Settings of an MCP server whose tools become capabilities.

    A value that applies to all tools may also be a mapping by tool name.

    Attributes:
        command: Program and arguments of a server over stdio.
        env: Environment variables of the program, in addition to a few that it inherits.
        url: URL of a server over streamable HTTP.
        headers: Headers of each request, such as ``Authorization``.
        credentials: Access tokens of the users for whom the tools act, or a ``Credentials`` object
            as ``"module:attribute"``. The tools are listed with ``headers`` instead.
        authorization: Access tokens that the users grant, in place of ``credentials``.
        prefix: Prefix of the capabilities' names.
        allow: Tools to use. None means all.
        effects: Effect by tool name, which replaces the effect in the tool's annotations.
        approve: Tools whose steps require approval; ``true`` means all.
        examples: Requests that need a tool, by tool name.
        permission: Permission that the tools require.
        pins: Digest of a tool's reviewed definition, by tool name. A tool with another digest is refused.
        timeout_seconds: Time limit of one call.
        sends_externally: True if arguments of the tools leave the organization.
        mode: Protocol mode; ``legacy`` for a server whose tools elicit input while they run.
        requires_approval: Approval policy of the tools.
        max_parallel: Maximum number of concurrent steps of a tool.
        max_attempts: Maximum number of attempts of a step.
        delay_seconds: Delay before the second attempt.
        classify_error: Function that classifies errors, as ``"module:attribute"``.
        parameters_from: Function that extracts parameters from a task, as ``"module:attribute"``.
        on_unknown: Policy for steps whose outcome is unknown after a crash.
        on_error: ``fail``, or ``observe`` to show failures to the planning model as results.
        always_active: True to select the tools for every request.
        effect_key: Parameters that identify an effect.
        repeatable: True if an effect may be repeated without approval.
        cost_usd: Cost of one call in US dollars.
        behaviors: Middleware and behaviors of the tools' steps.
        gate: Quality gate of the results.
        labels: Provenance labels of the results, in addition to ``untrusted``.
        removes_labels: Provenance labels that the tools remove from their results.
        undo: Name of the capability that reverts a step.
        queue: Queue of the workers that run the steps.
        large_result: Action for results that exceed ``limits.max_result_bytes``: ``fail`` or ``file``.
    """

    command: list[str] | None = Field(None, min_length=1)
    env: dict[str, str] | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    credentials: CredentialsSettings | str | None = None
    authorization: AuthorizationSettings | None = None
    prefix: str = ""
    allow: list[str] | None = None
    effects: dict[str, Literal["none", "idempotent", "once"]] = Field(default_factory=dict)
    approve: bool | list[str] = Field(default_factory=list)
    examples: dict[str, list[str]] = Field(default_factory=dict)
    permission: str | dict[str, str] | None = None
    pins: dict[str, str] | None = None
    timeout_seconds: float = Field(60.0, gt=0)
    sends_externally: bool = True
    mode: str = "auto"
    requires_approval: bool | dict[str, Any] | None = None
    max_parallel: int | dict[str, int] | None = None
    max_attempts: int | dict[str, int] | None = None
    delay_seconds: float | dict[str, float] | None = None
    classify_error: str | dict[str, str] | None = None
    parameters_from: str | dict[str, str] | None = None
    on_unknown: str | dict[str, str] | None = None
    on_error: str | dict[str, str] | None = None
    always_active: bool | dict[str, bool] | None = None
    effect_key: list[str] | dict[str, list[str]] | None = None
    repeatable: bool | dict[str, bool] | None = None
    cost_usd: float | dict[str, float] | None = None
    behaviors: list[Any] | dict[str, list[Any]] | None = None
    gate: dict[str, Any] | None = None
    labels: list[str] | dict[str, list[str]] | None = None
    removes_labels: list[str] | dict[str, list[str]] | None = None
    undo: str | dict[str, str] | None = None
    queue: str | dict[str, str] | None = None
    large_result: str | dict[str, str] | None = None

    @model_validator(mode="after")
    def _check_transport(self) -> McpSettings:
        if (self.command is None) == (self.url is None):
            raise ValueError("exactly one of 'command' and 'url' is required")
        if self.url is None and self.headers:
            raise ValueError("'headers' requires 'url'; use 'env' for a server over stdio")
        if self.credentials is not None and self.authorization is not None:
            raise ValueError("'credentials' and 'authorization' are mutually exclusive")
        if self.url is None and (self.credentials is not None or self.authorization is not None):
            raise ValueError("'credentials' and 'authorization' require 'url'")
        if self.command is None and self.env is not None:
            raise ValueError("'env' requires 'command'; use 'headers' for a server with a URL")
        if {"approve", "requires_approval"} <= self.model_fields_set:
            raise ValueError("'approve' and 'requires_approval' are mutually exclusive")
        return self


class ServeSettings(SettingsModel):
    """Settings of ``capgraph serve``.

    Attributes:
        base_url: Public URL of the server, if it differs from the address that it listens on. Its
            path is the prefix at which a proxy mounts the server.
        allowed_hosts: Further host names of the server.
        allowed_origins: Further origins whose pages may call the server.
        max_body_bytes: Maximum size of a request body.
        requests_per_minute: Rate limit per user, or per address without a login.
        logins_per_minute: Rate limit of login attempts per address.
        session_hours: Lifetime of a login session.
        max_connections: Maximum number of open connections. When it is reached, a new connection
            closes the connection that has been idle longest.
        max_streams_per_user: Maximum number of open event streams per user.
        max_active_runs_per_user: Maximum number of active runs per user.
        max_concurrent_runs: Maximum number of concurrent runs; further runs are queued.
        keep_runs_days: Days for which the events of a finished run are kept.
        admin_roles: Roles that may read the effects, usage, and audit of their whole tenant. Other users
            may read their own.
        uploads: Uploads of files. None disables them.
        downloads: Folders from which files that steps created can be downloaded.
        webhook: URL to notify of new approval requests.
        max_link_days: Maximum lifetime of read-only links to runs, in days. 0 disables the links.
        evaluations: Folder with the output of ``capgraph eval --json``, shown to admin roles.
        mcp: Capabilities that MCP clients may call.
        agui: Settings for AG-UI clients.
        openai: Settings for clients of OpenAI's API.
        a2a: Settings for A2A clients.
        oidc: Login with OpenID Connect.
        proxy: Reverse proxy that identifies users.
        session_secret: Key that signs the cookie of a login in progress. All server processes behind
            one host name need the same key. By default, each process creates a random one.
    """

    base_url: str | None = None
    allowed_hosts: list[str] = Field(default_factory=list)
    allowed_origins: list[str] = Field(default_factory=list)
    max_body_bytes: int = Field(1_048_576, ge=1)
    requests_per_minute: float = Field(1200, gt=0)
    logins_per_minute: float = Field(20, gt=0)
    session_hours: float = Field(12, gt=0)
    max_connections: int = Field(2000, ge=1)
    max_streams_per_user: int = Field(100, ge=1)
    max_active_runs_per_user: int = Field(16, ge=1)
    max_concurrent_runs: int = Field(200, ge=1)
    keep_runs_days: float = Field(7, gt=0)
    admin_roles: list[str] = Field(default_factory=lambda: ["admin", "auditor"])
    uploads: UploadSettings | None = None
    downloads: list[str] = Field(default_factory=lambda: ["capgraph-output"])
    webhook: WebhookSettings | None = None
    max_link_days: float = Field(30, ge=0, le=366)
    evaluations: str | None = None
    mcp: McpServeSettings = Field(default_factory=lambda: McpServeSettings())
    agui: StreamServeSettings = Field(default_factory=StreamServeSettings)
    openai: StreamServeSettings = Field(default_factory=StreamServeSettings)
    a2a: A2aServeSettings = Field(default_factory=A2aServeSettings)
    oidc: OidcSettings | None = None
    proxy: ProxySettings | None = None
    session_secret: SecretStr | None = Field(None, min_length=32)

    @property
    def authenticates_users(self) -> bool:
        """True if a login provider or a reverse proxy identifies users.

        Otherwise, ``local`` is the only user of the server.
        """
        by_proxy = self.proxy is not None and self.proxy.user_header is not None
        return by_proxy or self.oidc is not None


class ScaleSettings(SettingsModel):
    """Settings for running turns on several worker processes.

    Attributes:
        engine: Job queue: ``postgres`` (in the database of the threads) or ``temporal``.
        temporal: Address of the Temporal server, as ``host:port``.
        lease_seconds: Seconds without a heartbeat after which a worker, or the process that
            runs a thread, is considered dead.
        heartbeat_seconds: Interval between heartbeats. Defaults to a third of
            ``lease_seconds``.
        queues: Job queues that ``capgraph worker`` serves by default.
        max_losses: Maximum number of processes that may die while they run the same turn or
            step, before the turn or step fails.

    >>> ScaleSettings(lease_seconds=6).heartbeat_interval
    2.0
    """

    engine: Literal["postgres", "temporal"] = "postgres"
    temporal: str = "localhost:7233"
    lease_seconds: float = Field(30.0, gt=0)
    heartbeat_seconds: float | None = Field(None, gt=0)
    queues: list[str] = Field(default_factory=lambda: ["turns"], min_length=1)
    max_losses: int = Field(10, ge=1)

    @property
    def heartbeat_interval(self) -> float:
        """Return the time between heartbeats in seconds."""
        return self.heartbeat_seconds or self.lease_seconds / 3

    @model_validator(mode="after")
    def _check_heartbeat(self) -> ScaleSettings:
        if self.heartbeat_interval > self.lease_seconds / 2:
            raise ValueError(
                f"heartbeat_seconds ({self.heartbeat_interval:g}) must be at most half of"
                f" lease_seconds ({self.lease_seconds:g}); otherwise one late heartbeat would end"
                " the lease"
            )
        return self


class Settings(BaseSettings):
    """All settings of an agent.

    Attributes:
        name: Name of the agent.
        description: Purpose of the agent, used when it describes what it can do.
        infrastructure: Modules or packages with infrastructure nodes.
        modules: Modules or packages with capabilities and context types.
        tools: LangChain tools and functions as capabilities: ``{import: "app.tools:search",
            effect: none}``, with the keywords of ``tool_capability``.
        graphs: Compiled graphs as capabilities: ``{import: "app.graphs:pricing", input:
            "app.types:Order", output: "app.types:Price"}``, with the keywords of
            ``graph_capability``.
        agents: Agents as capabilities: ``{import: "app.agents:poet"}``, with the keywords of
            ``agent_capability``.
        mcp: MCP servers whose tools become capabilities: ``{command: [python, server.py]}`` or
            ``{url: "http://…/mcp"}``.
        include: Names of the capabilities to use. None means all.
        exclude: Names of capabilities to leave out.
        override: Replacement by capability name, as ``"module:Class"``.
        provided_types: Context types of data that callers send.
        recipes: Recipe files, and folders with recipes.
        model: ``"provider:name"`` for all roles. None means no model.
        models: Model by role (``extraction``, ``selection``, ``planning``, ``answer``,
            ``capability``).
        prompts: Prompts of the application, as ``"module:provider"``. None means the built-in ones.
        limits: Limits of a run.
        selection: Selection of capabilities.
        planning: Planning with a model.
        approvals: Steps and plans that require approval.
        persistence: Storage and retention of threads.
        behaviors: Middleware and behaviors of each step and model call: ``{use: retry, max_retries:
            2}``, with the name of a built-in behavior or ``"module:Class"``, and its arguments.
        capabilities: Settings by capability name. ``behaviors`` and ``queue`` among them apply to
            the capability's steps.
        budgets: Budgets, as arguments of ``Budget``: ``{tokens: 100000, per: user}``.
            ``build_graph(budget=…)`` takes precedence.
        prices: Prices by model, as arguments of ``ModelPricing``: ``{input_per_million: 1,
            output_per_million: 4}``. ``build_graph(prices=…)`` takes precedence.
        permissions: Permissions of callers. None means that everybody may use all capabilities.
        policies: Policies for plans and steps: ``{use: information_flow, on_violation: deny}``,
            ``{use: policy_engine, rules: […]}``.
        answer_gate: Quality gate of the answer: ``{use: quality_gate, …}``.
            ``build_graph(answer_gate=…)`` takes precedence.
        sinks: Receivers of run events: ``{use: json_lines, path: events.jsonl}``.
        audit: Audit log.
        serve: Settings of ``capgraph serve``.
        scale: Execution of turns on several workers.
        data_folders: Folders and files that data capabilities may read; empty means none.
            ``/srv/data/{user}`` is a separate folder for each user.
        result_folder: Folder for results that exceed ``limits.max_result_bytes``, from capabilities
            that declare ``large_result = "file"``. The files are not deleted with the thread.
        user: User ID at the command line. Defaults to the operating system's user. Programs set
            ``configurable.user_id`` for each run.
        role: Role at the command line.
        tenant: Tenant at the command line.
        context: Context data with which every turn of a new thread starts.
        secrets: Values to mask in errors, events, and logs, besides keys and passwords in other
            settings.

    >>> Settings().limits.max_planning_attempts
    2
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        extra="forbid",
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    name: str = "capgraph agent"
    description: str = ""
    infrastructure: list[str] = Field(
        default_factory=lambda: list(load_packaged_defaults()["infrastructure"])
    )
    modules: list[str] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    graphs: list[dict[str, Any]] = Field(default_factory=list)
    agents: list[dict[str, Any]] = Field(default_factory=list)
    mcp: list[McpSettings] = Field(default_factory=list)
    include: list[str] | None = None
    exclude: list[str] = Field(default_factory=list)
    override: dict[str, str] = Field(default_factory=dict)
    provided_types: list[str] = Field(default_factory=list)
    recipes: list[str] = Field(default_factory=list)
    model: str | None = None
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    prompts: str | None = None
    limits: Limits = Field(default_factory=lambda: Limits())
    selection: SelectionSettings = Field(default_factory=lambda: SelectionSettings())
    planning: PlanningSettings = Field(default_factory=lambda: PlanningSettings())
    approvals: ApprovalSettings = Field(default_factory=lambda: ApprovalSettings())
    persistence: PersistenceSettings = Field(default_factory=lambda: PersistenceSettings())
    behaviors: list[dict[str, Any]] = Field(default_factory=list)
    budgets: list[dict[str, Any]] = Field(default_factory=list)
    prices: dict[str, dict[str, float]] = Field(default_factory=dict)
    permissions: PermissionSettings | None = None
    policies: list[dict[str, Any]] = Field(default_factory=list)
    answer_gate: dict[str, Any] | None = None
    sinks: list[dict[str, Any]] = Field(default_factory=list)
    audit: AuditSettings = Field(default_factory=lambda: AuditSettings())
    serve: ServeSettings = Field(default_factory=lambda: ServeSettings())
    scale: ScaleSettings = Field(default_factory=lambda: ScaleSettings())
    capabilities: dict[str, dict[str, Any]] = Field(default_factory=dict)
    data_folders: list[str] = Field(default_factory=list)
    result_folder: str = "capgraph-output/results"
    user: str | None = None
    role: str | None = None
    tenant: str | None = None
    context: dict[str, dict[str, Any]] = Field(default_factory=dict)
    secrets: list[SecretStr] = Field(default_factory=list)

    if not TYPE_CHECKING:  # type checkers derive the arguments from the fields

        def __init__(self, **values: Any) -> None:
            """Load settings from environment variables and keyword arguments.

            Raises:
                ConfigurationError: A key is unknown, or a value is invalid. The message lists the
                    path of each invalid setting.
            """
            files, _ = values.get(_FILES_ARGUMENT, ((), {}))
            try:
                super().__init__(**values)
            except ValidationError as exc:
                raise _create_settings_error(exc, files) from exc
            except SettingsError as exc:
                raise ConfigurationError(
                    f"The settings are invalid: {exc}.",
                    fix="Write lists and sections in environment variables as JSON.",
                ) from exc

    def capability_settings(
        self, capability: str, user_folder: str | None = None
    ) -> dict[str, Any]:
        """Return the settings of a capability, including settings shared by all capabilities.

        Args:
            capability: Name of the capability.
            user_folder: Folder name of the caller. If omitted, folders with ``{user}`` are left
                out.

        >>> Settings(data_folders=["/srv/data", "/srv/of/{user}"]).capability_settings("query_data", "ada")
        {'data_folders': ['/srv/data', '/srv/of/ada']}
        """
        uploads = self.serve.uploads
        templates = [*self.data_folders, *([f"{uploads.folder}/{{user}}"] if uploads else [])]
        folders = [
            template.replace("{user}", user_folder or "")
            for template in templates
            if user_folder or "{user}" not in template
        ]
        section = self.capabilities.get(capability, {})
        own = {name: section[name] for name in section if name not in ("behaviors", "queue")}
        return own | ({"data_folders": folders} if folders else {})

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the settings sources in order of precedence: arguments, environment, and files."""
        _refuse_misspelled_variables()
        assert isinstance(init_settings, InitSettingsSource)
        files = InitSettingsSource(
            settings_cls, init_settings.init_kwargs.pop(_FILES_ARGUMENT, ((), {}))[1]
        )
        return init_settings, env_settings, files


def load_settings(*files: str | os.PathLike[str], **overrides: Any) -> Settings:
    """Load settings from YAML files, environment variables, and keyword arguments.

    Args:
        *files: YAML files. Later files take precedence over earlier ones. The file in
            ``CAPGRAPH_CONFIG`` is read first.
        **overrides: Values that take precedence over files and environment variables.

    Raises:
        ConfigurationError: A file cannot be read, a key is unknown, or a value is invalid. The
            message lists the path of each invalid setting.

    >>> load_settings(limits={"max_parallel": 2}).limits.max_parallel
    2
    """
    default_file = os.environ.get(_FILE_VARIABLE)
    values: dict[str, Any] = {}
    for file in ([default_file] if default_file else []) + [os.fspath(item) for item in files]:
        values = deep_merge(values, read_yaml(file))
    arguments: dict[str, Any] = {**overrides, _FILES_ARGUMENT: (files, values)}
    return Settings(**arguments)


def _create_settings_error(exc: ValidationError, files: tuple[Any, ...]) -> ConfigurationError:
    """Create an error that lists the invalid settings and the files and variables that set them."""
    candidates = [_PREFIX + "__".join(map(str, error["loc"])).upper() for error in exc.errors()]
    variables = sorted(name for name in os.environ if name.upper() in candidates)
    sources = [
        f"{kind}: {', '.join(map(str, names))}"
        for kind, names in (("files", files), ("environment", variables))
        if names
    ]
    source = f" ({'; '.join(sources)})" if sources else ""
    errors = format_validation_errors(exc, _known_keys)
    return ConfigurationError(f"The settings are invalid{source}:\n{errors}")


def _refuse_misspelled_variables() -> None:
    """Raise an error if an environment variable looks like a misspelled setting.

    Without this check, misspelled variables would be ignored silently.
    """
    known = list(Settings.model_fields)
    for variable in os.environ:
        prefix, name = variable[: len(_PREFIX)], variable[len(_PREFIX) :].lower()
        first, section, rest = name.partition("__")
        if prefix.upper() != _PREFIX or first in known or variable.upper() == _FILE_VARIABLE:
            continue
        near = closest_match(first, [*known, "config"])
        nested = [f"{key}__{field}" for key in known for field in _known_keys((key, ""))]
        if match := next((key for key in nested if key.replace("__", "_") == name), None):
            fix = f"Write {_PREFIX}{match.upper()}."
        elif near:
            fix = f"Write {_PREFIX}{(near + section + rest).upper()}."
        elif section:
            fix = f"Use one of: {', '.join(known)}."
        else:
            continue  # may be a variable of the application, for ${...} in its files
        raise ConfigurationError(
            f"The environment variable {variable!r} does not match any setting, because {first!r} "
            "is unknown.",
            fix=fix,
            facts={"variable": variable},
        )


def _known_keys(path: tuple[Any, ...]) -> list[str]:
    """Return the valid field names at the end of a path through nested settings."""
    kind: Any = Settings
    for part in path[:-1]:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field is not None else None
        else:
            kind = (get_args(kind) or [None])[-1]
    is_section = isinstance(kind, type) and issubclass(kind, BaseModel)
    return list(kind.model_fields) if is_section else []
