"""ListTransactions 0-1: the transactional ids that a broker coordinates (KIP-664, KIP-994).

Owned by nobody; messages as data. Weak spot: none known; kio knows every version.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from appliance.protocol.apis import ApiKey
from appliance.protocol.schema import INT16, INT32, INT64, STRING, ArrayOf, Field, Message


class ListTransactionsRequest(NamedTuple):
    """Of which states and producers, none for all; and open for longer than so many milliseconds, −1 for all."""

    state_filters: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    producer_id_filters: Annotated[tuple[int, ...], Field(ArrayOf(INT64))] = ()
    duration_filter_ms: Annotated[int, Field(INT64, since=1)] = -1


class ListedTransaction(NamedTuple):
    """One transactional id."""

    transactional_id: Annotated[str, Field(STRING)]
    producer_id: Annotated[int, Field(INT64)] = -1
    transaction_state: Annotated[str, Field(STRING)] = ""


class ListTransactionsResponse(NamedTuple):
    """Transactions in any order, and which filters name no state."""

    throttle_time_ms: Annotated[int, Field(INT32)] = 0
    error_code: Annotated[int, Field(INT16)] = 0
    unknown_state_filters: Annotated[tuple[str, ...], Field(ArrayOf(STRING))] = ()
    transactions: Annotated[tuple[ListedTransaction, ...], Field(ArrayOf(ListedTransaction))] = ()


REQUEST: Final = Message(ApiKey.LIST_TRANSACTIONS, "ListTransactions request", ListTransactionsRequest)
RESPONSE: Final = Message(ApiKey.LIST_TRANSACTIONS, "ListTransactions response", ListTransactionsResponse)
