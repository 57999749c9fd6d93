"""Text that looks like logs and compresses like them, cut to size. Pure."""

from __future__ import annotations

from functools import lru_cache

SENTENCES = (
    "GET /api/v1/orders/{n} 200 {n} bytes in 0.0{n} s from 10.2.7.{m}; ",
    "connection from 10.2.{m}.{n} port 4{n} closed after 1{m} requests; ",
    "session {n}{m} opened for user app{m} by (uid={n}); ",
    "disk d{m} wrote {n} MiB in 0.{n} s, queue depth {m}; ",
)


@lru_cache(maxsize=64)
def filler(size: int) -> str:
    text = ""
    number = 0
    while len(text) < size:
        text += SENTENCES[number % len(SENTENCES)].format(n=number * 7919 % 997, m=number * 31 % 29)
        number += 1
    return text[:size]


def padded(head: str, size_bytes: int) -> bytes:
    """ASCII. No shorter than `head`, which makes it different from every other."""
    return (head + filler(max(0, size_bytes - len(head)))).encode()
