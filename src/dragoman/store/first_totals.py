"""The totals of stored responses and conversations, counted from all rows."""

# ruff: noqa: S608 - only names of our own schema and constants are put into statements

from dragoman.store.response_rows import (
    CONVERSATION_BYTES,
    EVENTS_BYTES,
    ITEM_BYTES,
    MEMBER_BYTES,
    RESPONSE_BYTES,
)

ITEM_SIZE = f"length(body) + coalesce(length(hidden), 0) + {ITEM_BYTES}"


def count_conversations(schema: str) -> str:
    """Return the statement that sets the size of every conversation."""
    return f"""
    UPDATE {schema}conversations SET bytes = {CONVERSATION_BYTES} + length(metadata) + (
        SELECT coalesce(sum({ITEM_SIZE} + {MEMBER_BYTES}), 0)
        FROM {schema}conversation_items AS member JOIN {schema}response_items AS item
            ON item.owner = member.owner AND item.digest = member.digest
        WHERE member.owner = conversations.owner AND member.conversation = conversations.id
    );
    """


def select_totals(schema: str) -> str:
    """Return the query of the totals of every owner, in the order of the columns of stored_totals."""
    return f"""
    SELECT owner, sum(responses), sum(conversations), sum(items), sum(bytes), sum(conversation_bytes) FROM (
        SELECT owner, 1 - removed AS responses, 0 AS conversations, 0 AS items,
            length(head) + length(input) + length(output) + {RESPONSE_BYTES} AS bytes, 0 AS conversation_bytes
        FROM {schema}responses
        UNION ALL SELECT owner, 0, 1, 0, length(metadata) + {CONVERSATION_BYTES}, bytes FROM {schema}conversations
        UNION ALL SELECT owner, 0, 0, 1, {ITEM_SIZE}, 0 FROM {schema}response_items
        UNION ALL SELECT owner, 0, 0, 0, {MEMBER_BYTES}, 0 FROM {schema}conversation_items
        UNION ALL SELECT owner, 0, 0, 0, length(body) + {EVENTS_BYTES}, 0 FROM {schema}response_events
        UNION ALL SELECT owner, 0, 0, 0, length(request) + {EVENTS_BYTES}, 0 FROM {schema}background_runs
    ) AS stored GROUP BY owner
    """
