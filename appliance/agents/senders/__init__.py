"""Where senders connect: listening sockets, streams, TLS, datagrams."""
