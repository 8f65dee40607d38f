"""By what each function that reads is covered, if it has no case of its own in test_linear_readers.py."""

DECODER = "test_linear_decoders.py"
REQUEST = "test_linear_requests.py"
CONFIGURATION = "the operator's own configuration"
GATEWAYS = ("bifrost", "claude_code_router", "cli_proxy_api", "kiro_gateway", "litellm")
SHIPPED = "a file of this package"
CAPTURE = "a capture, which this gateway wrote"
CREDENTIALS = "a file of the operator's own credentials, read up to a bound"
OWN = "files and counters of the gateway itself"
SHORT = "a field of a head, which is short, or a body up to a bound"
USERS_OWN = "a file or variable of the user who runs a command"
ROWS = "columns that this gateway wrote"
STORE = "what the store answers to the query of a page or span, which is bounded"
BOUNDED = "bodies up to a bound, taken in pieces"
SEALED = "a credential that the operator has put into the store, of a bounded size"
CONFIGURED = (
    *("environment:parse_dotenv", "environment:read_environment", "limit_sections:read_limits"),
    *("limit_sections:read_teams", "limits:parse_limit_name", "limits:decode_limits", "load:read_tools"),
    *("providers:read_providers", "providers:read_extra_credentials", "proxies:parse_proxy", "proxies:read_proxies"),
    *("settings:parse_thinking", "tree:read_section", "tree:read_fields"),
)
SECRET_KEYS = ("parse_secret_keys", "read_secret_variable", "read_secret_file")
COVERED = {
    "translate.caching.breakpoints:read_breakpoint": REQUEST,
    "translate.framing.fields:read_body": REQUEST,
    "translate.profiles.shipped_data:read_shipped": SHIPPED,
    **{f"upstreams.credentials.credential:{name}": CREDENTIALS for name in ("read_bytes", "read_table", "read_text")},
    **{f"upstreams.{vendor}.credential:read_account_file": CREDENTIALS for vendor in ("codex", "copilot", "gemini")},
    **{
        f"upstreams.kiro.credential_sources:{name}": CREDENTIALS
        for name in ("open_file", "read_account_file", "read_method")
    },
    **{
        f"upstreams.credentials.stored:{name}": SEALED for name in ("open_row", "open_stored_credentials", "open_table")
    },
    "translate.framing.fields:read_head": "translate.framing.fields:read_call_head",
    "translate.framing.fields:read_body_call": "translate.framing.fields:read_call_head",
    "translate.hub.opaque:read_opaque": "translate.hub.opaque:decode_envelope",
    "translate.hub.opaque:decode_base64": "translate.hub.opaque:unseal_thoughts",
    "translate.protocols.chat.decode_blocks:read_thinking_text": DECODER,
    "translate.protocols.chat.decode_blocks:read_block_opaque": DECODER,
    "translate.protocols.chat.decode_blocks:read_call_opaque": DECODER,
    "translate.protocols.chat.decode_blocks:read_field_opaque": DECODER,
    "translate.protocols.chat.decode_whole:decode_whole": DECODER,
    "translate.protocols.chat.decode_whole:decode_outline": DECODER,
    "translate.protocols.chat.errors:read_error": "translate.protocols.chat.errors:read_failure",
    "translate.protocols.chat.parse:parse": REQUEST,
    "translate.protocols.chat.parse:parse_settings": REQUEST,
    "translate.protocols.chat.parse:read_call": "translate.framing.fields:read_call_head",
    "translate.protocols.chat.parse_turns:parse_turns": REQUEST,
    "translate.protocols.gemini.build_count:read_count": "translate.framing.jsonread:parse_or",
    "translate.protocols.gemini.decode:decode_whole": DECODER,
    "translate.protocols.gemini.decode_blocks:read_grounding": DECODER,
    "translate.protocols.gemini.errors:read_error": "translate.protocols.gemini.errors:read_failure",
    "translate.protocols.gemini.parse:parse": REQUEST,
    "translate.protocols.gemini.parse:parse_attribution": REQUEST,
    "translate.protocols.gemini.parse:parse_for_count": REQUEST,
    "translate.protocols.gemini.parse:parse_generation": REQUEST,
    "translate.protocols.gemini.parse_content:parse_contents": REQUEST,
    "translate.protocols.gemini.parse_content:parse_instructions": REQUEST,
    "translate.caching.rendering:read_fields": "translate.caching.rendering:read_object",
    "translate.caching.session_names:read_name": REQUEST,
    "translate.protocols.kiro.decode:decode_whole": DECODER,
    "translate.protocols.kiro.errors:read_fault": "translate.protocols.kiro.errors:read_failure",
    "translate.protocols.kiro.wire:read_options": CONFIGURATION,
    "translate.protocols.messages.decode:decode_whole": DECODER,
    "translate.protocols.messages.errors:read_error": "translate.protocols.messages.errors:read_failure",
    "translate.protocols.messages.parse:parse": REQUEST,
    "translate.protocols.messages.parse:parse_settings": REQUEST,
    "translate.protocols.messages.parse:parse_for_count": REQUEST,
    "translate.protocols.messages.parse_content:parse_cache": REQUEST,
    "translate.protocols.messages.parse_content:parse_content": REQUEST,
    "translate.protocols.messages.parse_content:read_tool_uses": REQUEST,
    "translate.protocols.gemini.parse_content:read_tool_uses": REQUEST,
    "translate.protocols.echo.decode:decode_whole": DECODER,
    "translate.protocols.echo.wire:read_event": DECODER,
    "translate.protocols.relayed_paths:read_usage": "translate.protocols.relayed_paths:observe_document",
    "translate.protocols.responses.decode:decode_whole": DECODER,
    "translate.protocols.responses.errors:read_stream_error": "translate.protocols.responses.errors:read_failure",
    "translate.protocols.responses.errors:read_error": "translate.protocols.responses.errors:read_failure",
    "translate.protocols.responses.parse:parse": REQUEST,
    "translate.protocols.responses.parse:parse_settings": REQUEST,
    "translate.protocols.responses.parse:parse_with_items": REQUEST,
    "translate.protocols.responses.parse_turns:read_tool_uses": REQUEST,
    "translate.protocols.responses.state_items:read_id": REQUEST,
    "upstreams.codex.credential:read_expiry": "upstreams.codex.credential:read_claims",
    "upstreams.codex.credential:read_account_claims": "upstreams.codex.credential:read_claims",
    "upstreams.codex.credential:read_account_id": "upstreams.codex.credential:read_claims",
    "upstreams.context_windows:read_count": "upstreams.models:parse_list",
    "upstreams.rejections.sent:parse_path": "upstreams.rejections.complaint:read_complaint",
    "upstreams.learned_quirks:parse_rule": CAPTURE,
    "upstreams.section:read_dial": CONFIGURATION,
    **{f"operate.importing.{name}:read_{name}": CONFIGURATION for name in GATEWAYS},
    "upstreams.section:read_user_agent": CONFIGURATION,
    "upstreams.section:read_headers": CONFIGURATION,
    "upstreams.section:read_secrets": CONFIGURATION,
    "upstreams.section:read_endpoint": CONFIGURATION,
    "upstreams.section:read_catalogue": CONFIGURATION,
    "server_tools.backends:read_tool_secrets": CONFIGURATION,
    **{f"proxy.capture.{name}": CAPTURE for name in ("files:read_capture", "files:read_summary", "format:parse_event")},
    "proxy.decoding:read_events": DECODER,
    "proxy.reply_bounds:read_reply": DECODER,
    "proxy.reply_bounds:read_error": "upstreams.rejections.complaint:read_complaint",
    "proxy.steps.parked_runs:open_run": OWN,
    "proxy.steps.read_body:read_body": REQUEST,
    "proxy.steps.read_body:read_relayed_body": REQUEST,
    **{f"server.api.wire:{name}": SHORT for name in ("read_version", "read_idempotency_key")},
    "server.console.files:read_console_files": OWN,
    **{f"server.metrics:{name}": OWN for name in ("read_limits", "read_reloads", "read_shared_state")},
    "server.routes:read_short_body": SHORT,
    "server.socket_messages:read_fields": REQUEST,
    "server.socket_messages:read_lane": SHORT,
    **{f"config.{name}": CONFIGURATION for name in CONFIGURED},
    **{
        f"net.request_head:{name}": "net.request_head:parse_head"
        for name in (
            *("_parse", "_parse_known", "_read_deciding_fields", "_read_fields", "_read_framing"),
            "_read_request_line",
        )
    },
    "net.dial:_open": OWN,
    "net.dial:_parse_url": "net.dial:parse_url",
    "net.websocket:_read_close_code": SHORT,
    "state.run_copies:_read_blocks": OWN,
    "net.bodies:read_and_close": BOUNDED,
    "net.bodies:read_chunks": BOUNDED,
    "net.limits:open_files_limit": OWN,
    "net.proxy:open_tunnel": SHORT,
    "state.context:read_conversation": SHORT,
    "operate.accounts:read_account_file": CREDENTIALS,
    "operate.admin_access:open_keyring": OWN,
    "operate.admin_access:open_admin": OWN,
    "operate.captures.files:read_capture": CAPTURE,
    "operate.configuration.change:read_changed": CONFIGURATION,
    "operate.configuration.effective:read_with_local_servers": CONFIGURATION,
    "operate.configuration.settled_file:read_settled": CONFIGURATION,
    **{f"operate.clients.settings_format:{name}": USERS_OWN for name in ("read_json_object", "read_toml", "read_yaml")},
    **{
        f"operate.{name}": USERS_OWN
        for name in (
            *("clients.client_settings:opencode_settings", "clients.jsonc:read_jsonc"),
            *("clients.settings_file:read_text", "clients.settings_format:read_env"),
            *("clients.written_settings:read_record", "metrics.exporter:parse_pairs"),
            *("metrics.exporter:parse_milliseconds", "usage.reports:parse_span"),
        )
    },
    **{
        f"operate.{name}": OWN
        for name in (
            *("gateway.gateway_process:read_beginning", "gateway.gateway_status:read_status"),
            *("gateway.running_gateway:read_version", "gateway.service:read_state", "limits:read_levels"),
            *("provider_state:read_quotas", "stored_responses:open_stored", "usage.reports:read_quotas"),
        )
    },
    **{f"operate.usage.{name}": STORE for name in ("reports:read_usage", "series:read_series", "series:read_speed")},
    **{f"tenancy.keys:{name}": ROWS for name in ("parse_access", "read_thinking")},
    "tenancy.policies:read_settings": ROWS,
    **{f"tenancy.windows:{name}": ROWS for name in ("parse_window", "parse_scope", "parse_counter")},
    "store.meter:decode_charge": ROWS,
    "store.stored_totals:read_totals": STORE,
    "store.store:open_store": OWN,
    "store.valkey:parse_address": CONFIGURATION,
    **{f"store.sealing:{name}": CREDENTIALS for name in SECRET_KEYS},
    **{
        f"proxy.capture.lookups:{name}": CAPTURE
        for name in ("_read_address", "_read_choice", "_read_headers", "_read_options")
    },
    "proxy.decoding:_reads_events": OWN,
    "proxy.request_record:_read_lasting_sender": "proxy.request_record:read_sender",
    "proxy.steps.find_run:_open_or_join": OWN,
    "proxy.steps.read_body:_read_whole": REQUEST,
    "proxy.upstream:_read_refusal": "upstreams.rejections.complaint:read_complaint",
    "proxy.upstream:_read_words": BOUNDED,
    **{
        f"server.api.{name}": SHORT
        for name in (
            *("limits:_parse_position", "quirks:_read_position", "requests:_parse_position"),
            *("requests:_parse_search", "requests:_parse_span"),
        )
    },
    "server.api.requests:_read_series": STORE,
    "server.responses:_read_body": REQUEST,
    "server_tools.addresses:_decode_letters": "server_tools.addresses:find_named",
    "server_tools.backends:_read_secret": CONFIGURATION,
    "server_tools.guarded_fetch:_read": "server_tools.web_fetch:read_page",
    "server_tools.web_fetch:_read_fetched": "server_tools.web_fetch:read_page",
    "server_tools.web_search:_read_results": "server_tools.web_search:_read_brave",
}

REASONS = {CONFIGURATION, SHIPPED, CAPTURE, CREDENTIALS, SEALED, OWN, SHORT, USERS_OWN, ROWS, STORE, BOUNDED}
ELSEWHERE = {DECODER, REQUEST, *REASONS}
