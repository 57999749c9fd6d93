"""Load by users against any box: `.venv/bin/locust -f loadtest/locustfile.py --host kafka://HOST:9092 --headless --users 50 --load-seconds 60`.

What they do is in `loadtest/users`. locust imports this file and reads its classes; nothing else may import it, because importing
locust changes Python's sockets, threads and sleeps for the whole process.
"""

from __future__ import annotations

from loadtest.users.hooks import register
from loadtest.users.kafka_users import ConsumerUser, ProducerUser
from loadtest.users.syslog_users import SyslogTcpUser, SyslogUdpUser

__all__ = ["ConsumerUser", "ProducerUser", "SyslogTcpUser", "SyslogUdpUser"]

register()
