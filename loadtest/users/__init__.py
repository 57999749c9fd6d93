"""Users of a box for locust: producers, consumers in groups, syslog senders; and the counts that are compared when they have finished.

Only `locustfile`, `*_user` and `native_thread` import locust or gevent, whose patches of Python's sockets must reach no other process.
"""
